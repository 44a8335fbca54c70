"""Paged KV: who owns which block. A freed block is the next one handed out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

NULL_BLOCK = 0
"""Never handed out: a zeroed block-table row points at it."""


@dataclass(frozen=True)
class KvGroup:
    """One KV-cache group.

    Attributes:
        name: key of the group in metadata and block tables.
        tokens_per_block: raw tokens that one block stands for.
        num_blocks: blocks of the cache, the null block included.
    """

    name: str
    tokens_per_block: int
    num_blocks: int

    def blocks_for(self, tokens: int) -> int:
        """Return the blocks that hold ``tokens`` raw tokens."""
        return -(-tokens // self.tokens_per_block)


class BlockPool:
    """Free lists and ownership of every group.

    The lists are stacks, so that a block changes its owner as soon as possible: stale block
    tables and slots then hit another request's KV and cannot pass unseen.
    """

    def __init__(self, groups: Sequence[KvGroup]) -> None:
        self.groups = tuple(groups)
        self._free = [list(range(group.num_blocks - 1, NULL_BLOCK, -1)) for group in groups]
        self._owned: dict[int, tuple[list[int], ...]] = {}

    @property
    def num_free(self) -> Mapping[str, int]:
        """Free blocks by group name."""
        return {group.name: len(free) for group, free in zip(self.groups, self._free, strict=True)}

    @property
    def owners(self) -> tuple[int, ...]:
        """Requests that hold blocks."""
        return tuple(self._owned)

    def blocks(self, request_id: int) -> tuple[list[int], ...]:
        """Return the request's blocks, one list a group."""
        return self._owned[request_id]

    def grow(self, request_id: int, tokens: int) -> bool:
        """Let a request hold ``tokens`` raw tokens in every group, or change nothing.

        Returns:
            False if a group has too few free blocks.
        """
        owned = self._owned.get(request_id)
        held = [len(blocks) for blocks in owned] if owned else [0] * len(self.groups)
        missing = [
            group.blocks_for(tokens) - count for group, count in zip(self.groups, held, strict=True)
        ]
        if any(need > len(free) for need, free in zip(missing, self._free, strict=True)):
            return False
        if owned is None:
            owned = self._owned.setdefault(request_id, tuple([] for _ in self.groups))
        for need, blocks, free in zip(missing, owned, self._free, strict=True):
            for _ in range(need):
                blocks.append(free.pop())
        return True

    def release(self, request_id: int) -> None:
        """Take back every block of a request."""
        for blocks, free in zip(self._owned.pop(request_id), self._free, strict=True):
            free.extend(blocks)
