"""Kinds of captured buckets: which batches each is declared for."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Uniform:
    """Every request of the batch has as many query tokens; ``str()`` is how messages name it.

    Attributes:
        query_len: query tokens of each request.
    """

    query_len: int

    def admits(self, num_tokens: int, num_reqs: int) -> bool:
        """Tell whether the totals can be of this kind; who has which tokens they do not say."""
        return num_reqs >= 0 and num_tokens == num_reqs * self.query_len

    def __str__(self) -> str:
        return f"uniform({self.query_len})"
