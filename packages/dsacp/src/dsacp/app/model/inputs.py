"""Token ids of a step in persistent buffers, and the text that they belong to."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dsacp.app.scheduling import EngineStep
from dsacp.core import CapacityError

UNKNOWN = -1
"""``known_next`` of a row that samples its next token."""


@dataclass(frozen=True)
class StepTokens:
    """Tokens of one step on the host.

    Attributes:
        token_ids: by token, row after row.
        num_drafts: by row, drafts at the end of its tokens.
        known_next: by row, the next prompt token of an unfinished prompt, else -1.
    """

    token_ids: tuple[int, ...]
    num_drafts: tuple[int, ...]
    known_next: tuple[int, ...]


@dataclass(frozen=True)
class ModelInputs:
    """Buffers that captured graphs read; a step only rewrites their contents.

    Attributes:
        token_ids: int32 [max_tokens], 0 on padding.
        num_drafts: int32 [max_reqs], 0 on padding.
        known_next: int32 [max_reqs], -1 on padding.
    """

    token_ids: Tensor
    num_drafts: Tensor
    known_next: Tensor

    @classmethod
    def allocate(cls, max_tokens: int, max_reqs: int, device: torch.device) -> "ModelInputs":
        """Allocate inert buffers."""
        words = torch.zeros(max_tokens + max_reqs, dtype=torch.int32, device=device)
        known = torch.full((max_reqs,), UNKNOWN, dtype=torch.int32, device=device)
        return cls(words[:max_tokens], words[max_tokens:], known)

    def write(self, tokens: StepTokens) -> None:
        """Overwrite all buffers with a step, padding included.

        Raises:
            CapacityError: the step has more tokens or rows than the buffers hold.
        """
        sizes = len(tokens.token_ids), len(tokens.num_drafts)
        holds = self.token_ids.shape[0], self.num_drafts.shape[0]
        if sizes[0] > holds[0] or sizes[1] > holds[1]:
            raise CapacityError(
                f"the step needs {sizes[0]} tokens and {sizes[1]} requests, the model's inputs "
                f"hold {holds[0]} and {holds[1]}: raise max_num_batched_tokens or max_num_seqs"
            )
        _fill(self.token_ids, tokens.token_ids, 0)
        _fill(self.num_drafts, tokens.num_drafts, 0)
        _fill(self.known_next, tokens.known_next, UNKNOWN)


def _fill(buffer: Tensor, values: Sequence[int], rest: int) -> None:
    row = [*values, *[rest] * (buffer.shape[0] - len(values))]
    buffer.copy_(torch.tensor(row, dtype=buffer.dtype))


class Conversations:
    """The text of every request: a seeded prompt, then what was sampled.

    Args:
        lengths: prompt tokens by request id.
        vocab_size: token ids are below it.
        seed: the same seed gives the same prompts.
    """

    def __init__(self, lengths: Mapping[int, int], vocab_size: int, seed: int) -> None:
        source = random.Random(seed)
        self._text = {
            request: [source.randrange(vocab_size) for _ in range(length)]
            for request, length in sorted(lengths.items())
        }
        self._prompts = dict(lengths)
        self._drafts: dict[int, list[int]] = {}

    def tokens(self, step: EngineStep) -> StepTokens:
        """Return the tokens that a step computes."""
        ids: list[int] = []
        known: list[int] = []
        for row in step.rows:
            text = self._text[row.request_id]
            if row.is_decode:
                drafts = self._drafts.get(row.request_id, [])
                ids += [text[row.start], *drafts[: row.num_drafts]]
            else:
                ids += text[row.start : row.seq_len]
            known.append(UNKNOWN if row.samples else text[row.seq_len])
        return StepTokens(tuple(ids), tuple(row.num_drafts for row in step.rows), tuple(known))

    def extend(
        self, step: EngineStep, sampled: Sequence[Sequence[int]], drafts: Sequence[Sequence[int]]
    ) -> None:
        """Append what a step sampled, by row, and keep its drafts for the next one."""
        for row, tokens, proposed in zip(step.rows, sampled, drafts, strict=True):
            self._text[row.request_id] += tokens
            self._drafts[row.request_id] = list(proposed) if row.samples else []

    def sampled(self, request: int) -> tuple[int, ...]:
        """Return every token sampled for a request so far."""
        return tuple(self._text[request][self._prompts[request] :])
