"""Persistent buffers of one role of one builder: the target's, or one draft step's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dsacp.core import BufferRegion, Uncopied
from dsacp.drafting_cache import Arena, FieldKey, plan_arena
from dsacp.kernels import DRAFT_FIELDS, LocalMetadata
from dsacp.sas_metadata import SAS_METADATA_SIZE

RopeTables = Mapping[str, tuple[Tensor, Tensor]]
"""Cos and sin tables, fp32 [L, rd], by the host's configuration key."""
_PAIR = ("cos", "sin")


@dataclass(frozen=True)
class BankSize:
    """Bounds of one bank.

    Attributes:
        rows: request rows.
        tokens: token rows, a multiple of the tensor-parallel size.
        slot_width: integers of one slot: 2 for (block, offset), 1 for flat slots.
        dspark_width: columns of DSpark's slot indices, 0 for none.
        table_width: columns of an own block table, 0 to read the host's. Only draft steps of one
            token a request have one.
    """

    rows: int
    tokens: int
    slot_width: int
    dspark_width: int = 0
    table_width: int = 0

    def holds(self, rows: int, tokens: int) -> bool:
        """Whether a step of this many rows and padded tokens fits."""
        return rows <= self.rows and tokens <= self.tokens

    @property
    def one_token(self) -> bool:
        """Whether the bank is that of draft steps with one token a request."""
        return self.table_width > 0


@dataclass(frozen=True)
class LaunchTables:
    """Where ``draft_steps`` finds the fields of a one-token bank.

    Attributes:
        pointers: int64, addresses of the block table and the RoPE tables.
        layout: int32 [1, 1, 7], word offsets of the fields.
        rope_layout: int32 [C, 1, 2], word offsets of cos and sin rows.
    """

    pointers: Tensor
    layout: Tensor
    rope_layout: Tensor


class Bank(Uncopied):
    """One field, one address, for as long as the bank lives (docs/invariants.md I1, I5).

    Args:
        name: cache group, for messages.
        step: 0 for the target, 1 for the drafter's first pass, then draft index + 1.
        size: bounds.
        tables: RoPE tables whose rows the bank keeps.
        device: where the buffers live.
        guard_words: words between fields.
    """

    def __init__(
        self,
        name: str,
        step: int,
        size: BankSize,
        tables: RopeTables,
        device: torch.device,
        guard_words: int = 16,
    ) -> None:
        self.size = size
        self.tables = tables
        fields = _word_fields(size)
        words = plan_arena([((name, step, key), count) for key, count in fields], guard_words)
        self._words = Arena.allocate(words, device, torch.int32)
        rows = plan_arena(list(_rope_fields(name, step, size, tables)), guard_words)
        self._rope = Arena.allocate(rows, device, torch.float32)
        self._views = {key[2]: self._words.view(key) for key in words.fields}
        self.rope_rows = {
            key: (
                self._rope_view(f"{name}/rope{index}", step, "cos", cos.shape[1]),
                self._rope_view(f"{name}/rope{index}", step, "sin", sin.shape[1]),
            )
            for index, (key, (cos, sin)) in enumerate(tables.items())
        }
        self._clean()
        self.launch = self._launch_tables(name, step, device) if size.one_token else None

    def words(self, field: str) -> Tensor:
        """Return a whole field as int32 [n]."""
        return self._views[field]

    @property
    def positions(self) -> Tensor:
        """Token positions as the host wants them, int64 [tokens]."""
        return self._views["positions64"].view(torch.int64)

    @property
    def slots(self) -> Tensor:
        """Slots in the device's format: int32 [tokens, 2], or [tokens] where they are flat."""
        slots = self._views["slots"]
        return slots if self.size.slot_width == 1 else slots.view(-1, self.size.slot_width)

    @property
    def dspark(self) -> Tensor:
        """DSpark's slot indices, int32 [tokens, 1, width]."""
        return self._views["dspark"].view(self.size.tokens, 1, self.size.dspark_width)

    @property
    def table(self) -> Tensor:
        """The bank's own block table, int32 [rows, columns]."""
        return self._views["table"].view(self.size.rows, self.size.table_width)

    @property
    def local(self) -> LocalMetadata:
        """Rank-local starts and lengths and global start positions, of all rows."""
        return LocalMetadata(
            self._views["local_query_start_loc"],
            self._views["local_seq_lens"],
            self._views["start_pos"],
        )

    def regions(self) -> tuple[BufferRegion, ...]:
        """Return every field's byte range."""
        return (*self._words.regions(), *self._rope.regions())

    def storages(self) -> tuple[Tensor, ...]:
        """Return the storages that hold ``regions()``, guard words included."""
        return self._words.storage, self._rope.storage

    @property
    def nbytes(self) -> int:
        """Device bytes of the bank, guard words and launch tables included."""
        tables = () if self.launch is None else vars(self.launch).values()
        return sum(tensor.nbytes for tensor in (*self.storages(), *tables))

    def _rope_view(self, name: str, step: int, field: str, width: int) -> Tensor:
        return self._rope.view((name, step, field)).view(self.size.tokens, width)

    def _launch_tables(self, name: str, step: int, device: torch.device) -> LaunchTables:
        table = self.table
        tables = [table for pair in self.tables.values() for table in pair]
        pointers = [table.data_ptr(), table.stride(0), table.shape[1]]
        pointers += [rows.data_ptr() for rows in tables]
        words = [self._words.plan.offset((name, step, field)) for field in DRAFT_FIELDS]
        rows = [
            [self._rope.plan.offset((f"{name}/rope{index}", step, field)) for field in _PAIR]
            for index in range(len(self.tables))
        ]
        return LaunchTables(
            torch.tensor(pointers, dtype=torch.int64, device=device),
            torch.tensor([[words]], dtype=torch.int32, device=device),
            torch.tensor(rows, dtype=torch.int32, device=device).view(-1, 1, 2),
        )

    def _clean(self) -> None:
        for name, view in self._views.items():
            view.fill_(-1 if name in ("slots", "dspark") else 0)
        if self.size.one_token:
            one_by_one = self._views["one_by_one"]
            torch.arange(one_by_one.numel(), out=one_by_one)
        for cos, sin in self.rope_rows.values():
            cos.fill_(1.0)
            sin.fill_(0.0)


def _word_fields(size: BankSize) -> list[tuple[str, int]]:
    fields = [
        ("inputs", 3 * size.rows + 2),
        ("local_query_start_loc", size.rows + 1),
        ("local_seq_lens", size.rows),
        ("start_pos", size.rows),
        ("positions", size.tokens),
        ("positions64", 2 * size.tokens),
        ("slots", size.tokens * size.slot_width),
        ("sas", SAS_METADATA_SIZE),
        ("qli", SAS_METADATA_SIZE),
        ("dspark", size.tokens * size.dspark_width),
        ("table", size.rows * size.table_width),
        ("one_by_one", size.rows + 1 if size.one_token else 0),
        ("lengths", size.rows if size.one_token else 0),
    ]
    return [(name, count) for name, count in fields if count]


def _rope_fields(
    name: str, step: int, size: BankSize, tables: RopeTables
) -> Sequence[tuple[FieldKey, int]]:
    return [
        ((f"{name}/rope{index}", step, field), size.tokens * table.shape[1])
        for index, pair in enumerate(tables.values())
        for field, table in zip(_PAIR, pair, strict=True)
    ]
