"""Which drafts are accepted when there is no model."""

import random
from collections.abc import Iterator

from dsacp.app.scheduling import EngineStep


class GeometricAcceptance:
    """Accepts each draft with one chance, as long as the drafts before it were accepted.

    Args:
        chance: of one draft.
        num_draft_tokens: K, proposed after every sampled token.
        seed: the same seed and steps give the same outcome.
    """

    def __init__(self, chance: float, num_draft_tokens: int, seed: int) -> None:
        self._chance = chance
        self._num_draft_tokens = num_draft_tokens
        self._source = random.Random(seed)

    def sampled(self, step: EngineStep) -> tuple[int, ...]:
        """Return sampled tokens by row: accepted drafts and one more, or 0 where none is."""
        return tuple(1 + sum(self._run(row.num_drafts)) if row.samples else 0 for row in step.rows)

    def proposed(self, step: EngineStep) -> tuple[int, ...]:
        """Return drafts by row."""
        return tuple(self._num_draft_tokens if row.samples else 0 for row in step.rows)

    def _run(self, drafts: int) -> Iterator[int]:
        for _ in range(drafts):
            if self._source.random() >= self._chance:
                return
            yield 1
