"""Block tables: persistent tensors whose rows follow the batch."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from dsacp.app.scheduling.blocks import BlockPool, KvGroup


class BlockTables:
    """One int32 [num_rows, columns] table a group, updated in place and never replaced.

    On an accelerator the tables have a host copy, and ``publish`` brings it over.
    """

    def __init__(
        self,
        groups: Sequence[KvGroup],
        num_rows: int,
        max_model_len: int,
        device: torch.device | str = "cpu",
    ) -> None:
        self._host = tuple(
            torch.zeros(num_rows, group.blocks_for(max_model_len), dtype=torch.int32)
            for group in groups
        )
        self._filled = [[0] * len(groups) for _ in range(num_rows)]
        on_host = torch.device(device).type == "cpu"
        tensors = self._host if on_host else tuple(table.to(device) for table in self._host)
        self.tensors: Mapping[str, Tensor] = {
            group.name: tensor for group, tensor in zip(groups, tensors, strict=True)
        }

    def write(self, row: int, blocks: Sequence[Sequence[int]]) -> None:
        """Append to a row the blocks that its request got since the last write."""
        filled = self._filled[row]
        for index, owned in enumerate(blocks):
            have, want = filled[index], len(owned)
            if want > have:
                self._host[index][row, have:want] = torch.tensor(owned[have:], dtype=torch.int32)
                filled[index] = want

    def move(self, source: int, target: int) -> None:
        """Let ``target`` hold what ``source`` held, and zero ``source``."""
        self.clear(target)
        for table in self._host:
            table[target].copy_(table[source])
        self._filled[target] = list(self._filled[source])
        self.clear(source)

    def swap(self, left: int, right: int) -> None:
        """Exchange two rows."""
        for table in self._host:
            kept = table[left].clone()
            table[left].copy_(table[right])
            table[right].copy_(kept)
        rows = self._filled
        rows[left], rows[right] = rows[right], rows[left]

    def clear(self, row: int) -> None:
        """Zero a row, so that it points at the null block."""
        for index, table in enumerate(self._host):
            table[row, : self._filled[row][index]] = 0
        self._filled[row] = [0] * len(self._host)

    def publish(self) -> None:
        """Copy the host tables to the device, in stream order; nothing to do on the CPU."""
        for host, tensor in zip(self._host, self.tensors.values(), strict=True):
            if tensor is not host:
                tensor.copy_(host)


class BatchRows:
    """Which request sits in which row, kept as vLLM's input batch does it."""

    def __init__(self, tables: BlockTables) -> None:
        self._tables = tables
        self._rows: list[int] = []

    def arrange(self, decode: Mapping[int, bool], pool: BlockPool) -> tuple[int, ...]:
        """Make the rows hold exactly the requests of ``decode``, decode rows first.

        A request that leaves is replaced by the last row, a new one is appended, and then
        prefill rows before decode rows change places with them.
        """
        self._drop(decode)
        present = set(self._rows)
        self._rows.extend(request for request in decode if request not in present)
        for row, request in enumerate(self._rows):
            self._tables.write(row, pool.blocks(request))
        self._decode_first(decode)
        self._tables.publish()
        return tuple(self._rows)

    def forget(self, request_id: int) -> None:
        """Drop a request whose blocks were taken, so that it starts over in a clean row."""
        if request_id in self._rows:
            self._remove(self._rows.index(request_id))

    def _drop(self, kept: Mapping[int, bool]) -> None:
        for row in reversed(range(len(self._rows))):
            if self._rows[row] not in kept:
                self._remove(row)

    def _remove(self, row: int) -> None:
        last = len(self._rows) - 1
        if row == last:
            self._tables.clear(row)
        else:
            self._tables.move(last, row)
            self._rows[row] = self._rows[last]
        self._rows.pop()

    def _decode_first(self, decode: Mapping[int, bool]) -> None:
        left, right = 0, len(self._rows) - 1
        while left < right:
            if decode[self._rows[left]]:
                left += 1
            elif not decode[self._rows[right]]:
                right -= 1
            else:
                self._tables.swap(left, right)
                rows = self._rows
                rows[left], rows[right] = rows[right], rows[left]
