"""The runner's look-up of every access, driven from here: no compiler but `cc` is needed."""

import ctypes
import faulthandler
from collections.abc import Iterator

import pytest
import torch

from dsacp.ascend_ir.library import runtime
from dsacp.ascend_ir.memory import Arena, Note, Span, merged, span_of

LOAD, STORE, WRITES, READ = range(4)


class Machine:
    """Two arguments of 40 and 6 bytes, and programs that access them."""

    def __init__(self, guard: str) -> None:
        self.words = torch.arange(10, dtype=torch.int32)
        self.shorts = torch.arange(3, dtype=torch.int16)
        self.arena = Arena(guard)
        self.library = runtime()
        for name in ("load", "store"):
            function = getattr(self.library, f"ascend_ir_{name}")
            function.restype = ctypes.c_uint64
            function.argtypes = [ctypes.c_uint64, ctypes.c_int32, ctypes.c_int32]
        self.library.ascend_ir_malloc.restype = ctypes.c_uint64
        self.library.ascend_ir_malloc.argtypes = [ctypes.c_uint64]

    def __enter__(self) -> "Machine":
        self.arena.__enter__()
        spans = [span_of("words", self.words), span_of("shorts", self.shorts)]
        self.arena.place(spans, [])
        self.at = self.arena.address(spans[0])
        self.at_shorts = self.arena.address(spans[1])
        self.library.ascend_ir_begin(1, 1)
        self.program(0)
        return self

    def __exit__(self, *_: object) -> None:
        self.arena.__exit__()

    def program(self, number: int, poison: int = 0x5B) -> None:
        self.library.ascend_ir_program_end()
        self.library.ascend_ir_program(number, number, poison)

    def load(self, at: int, size: int = 4, site: int = 7) -> int:
        found = self.library.ascend_ir_load(at, size, site)
        return int.from_bytes(ctypes.string_at(found, size), "little", signed=True)

    def store(self, at: int, value: int, size: int = 4, site: int = 8) -> None:
        place = self.library.ascend_ir_store(at, size, site)
        ctypes.memmove(place, value.to_bytes(size, "little", signed=True), size)

    def notes(self) -> list[Note]:
        self.library.ascend_ir_program_end()
        list_, lost = ctypes.POINTER(Note)(), ctypes.c_int32()
        count = self.library.ascend_ir_notes(ctypes.byref(list_), ctypes.byref(lost))
        assert lost.value == 0
        return [list_[index] for index in range(count)]

    def summary(self) -> list[tuple[int, str, int, int]]:
        names = {-1: "local", -2: "nowhere"}
        return [
            (
                note.kind,
                names.get(note.slot) or self.arena.name(note.slot),
                note.nearest,
                note.count,
            )
            for note in self.notes()
        ]


@pytest.fixture(params=["end", "start"])
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    with Machine(request.param) as made:
        yield made


def test_inside_is_silent_and_lands(machine: Machine) -> None:
    assert [machine.load(machine.at + 4 * i) for i in (0, 9)] == [0, 9]
    assert machine.load(machine.at_shorts + 4, size=2) == 2
    machine.store(machine.at + 36, -5)
    assert machine.summary() == []
    machine.arena.copy_back()
    assert machine.words.tolist() == [*range(9), -5]


@pytest.mark.parametrize(
    ("offset", "size", "distance"),
    [(40, 4, 4), (37, 4, 1), (-4, 4, -4), (-1, 1, -1), (40, 1, 1), (2**33, 4, 2**33 - 36)],
)
def test_both_ends_are_exact_to_the_byte(
    machine: Machine, offset: int, size: int, distance: int
) -> None:
    machine.load(machine.at + offset, size)
    assert machine.summary() == [(LOAD, "words", distance, 1)]


@pytest.mark.parametrize("offset", [2**33, -(2**33), 2**34 - 8192])
def test_no_32_bit_index_reaches_another_argument(machine: Machine, offset: int) -> None:
    """2 ** 31 elements of 8 bytes are 16 GiB, and this is where another tensor might begin."""
    machine.store(machine.at + offset, 1)
    ((kind, name, _, _),) = machine.summary()
    assert (kind, name) == (STORE, "words")


@pytest.mark.parametrize("address", [0, 8, 2**47 - 4096, 2**63])
def test_far_accesses_land_nowhere(machine: Machine, address: int) -> None:
    machine.store(address, 1)
    ((kind, name, _, _),) = machine.summary()
    assert (kind, name) == (STORE, "nowhere")


def test_a_bad_load_yields_poison_and_a_bad_store_changes_nothing(machine: Machine) -> None:
    machine.store(machine.at + 40, 0)
    assert machine.load(machine.at + 40) == 0x5B5B5B5B
    machine.arena.copy_back()
    assert machine.words.tolist() == list(range(10))


def test_accesses_of_one_line_are_one_note(machine: Machine) -> None:
    for program in (0, 3):
        machine.program(program)
        for index in (10, 12, 11):
            machine.load(machine.at + 4 * index)
    (note,) = machine.notes()
    assert (note.count, note.nearest, note.farthest, note.site) == (6, 4, 12, 7)
    assert list(note.programs)[: note.num_programs] == [0, 3]


def test_local_buffers_are_poisoned_and_bounded(machine: Machine) -> None:
    first, second = (machine.library.ascend_ir_malloc(size) for size in (100, 8))
    assert machine.load(first, 8) == 0x5B5B5B5B5B5B5B5B
    machine.store(first + 96, 3)
    machine.load(second + 4)
    assert machine.summary() == []
    machine.load(first + 100, 1)
    machine.store(second - 4, 1)
    machine.store(second + 6, 1)
    machine.load(first - 1, 1)
    kinds = [(kind, name, count) for kind, name, _, count in machine.summary()]
    assert kinds == [
        (LOAD, "local", 1),
        (STORE, "local", 1),
        (STORE, "local", 1),
        (LOAD, "local", 1),
    ]
    machine.program(1, poison=0xA4)
    assert machine.library.ascend_ir_malloc(100) == first
    assert machine.load(first + 96, 1) == 0xA4 - 256


def test_two_programs_that_write_one_word_are_told_of(machine: Machine) -> None:
    machine.store(machine.at, 1)
    machine.program(1)
    machine.store(machine.at, 2)
    machine.program(2)
    assert machine.summary() == [(WRITES, "words", 0, 1)]


def test_one_value_from_two_programs_is_no_race(machine: Machine) -> None:
    machine.store(machine.at, 1)
    machine.program(1)
    machine.store(machine.at, 9)
    machine.store(machine.at, 1)  # what counts is what a program leaves
    assert machine.summary() == []


def test_bytes_beside_each_other_are_no_race(machine: Machine) -> None:
    machine.store(machine.at_shorts, 1, size=2)
    machine.program(1)
    machine.store(machine.at_shorts + 2, 2, size=2)
    assert machine.summary() == []


@pytest.mark.parametrize("writer_first", [True, False])
def test_reading_what_another_program_writes_is_a_race(
    machine: Machine, writer_first: bool
) -> None:
    for program in (0, 1):
        machine.program(program)
        if (program == 0) is writer_first:
            machine.store(machine.at + 8, 77)
        else:
            machine.load(machine.at + 8)
    assert [(kind, name, at) for kind, name, at, _ in machine.summary()] == [(READ, "words", 8)]


def test_a_store_of_the_same_value_is_no_race_with_a_reader(machine: Machine) -> None:
    machine.load(machine.at + 8)
    machine.program(1)
    machine.store(machine.at + 8, 2)
    assert machine.summary() == []


def test_an_access_that_is_not_looked_up_ends_the_process() -> None:
    """Pages beside an argument are closed, so that nothing lands there in silence."""
    from dsacp.ascend_ir.forked import run_forked

    def touch(offset: int) -> int:
        faulthandler.disable()  # this end is meant
        with Machine("end") as machine:
            return ctypes.c_int32.from_address(machine.at + offset).value

    calls = [lambda: touch(0), lambda: touch(40), lambda: touch(-4096)]
    inside, after, before = run_forked(calls, 1, 60)
    assert inside.value == 0
    assert "ended by SIGSEGV" in after.error
    assert "ended by SIGSEGV" in before.error


def test_arguments_that_share_bytes_share_a_copy() -> None:
    spans = [
        Span(("a",), 100, 40),
        Span(("b",), 120, 40),
        Span(("c",), 160, 8),
        Span(("d",), 60, 0),
    ]
    assert merged(spans) == [
        Span(("d",), 60, 0),
        Span(("a", "b"), 100, 60),
        Span(("c",), 160, 8),
    ]


def test_a_span_covers_strides_and_nothing_else() -> None:
    wide = torch.zeros(4, 10, dtype=torch.int16)
    assert span_of("x", wide[1:3, 2:5]) == Span(("x",), wide.data_ptr() + 24, 26)
    assert span_of("x", wide[:0]).size == 0
