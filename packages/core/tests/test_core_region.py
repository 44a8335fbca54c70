import inspect

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsacp import core
from dsacp.core import AliasError, BufferRegion, DsacpError, LayoutError, check_disjoint


def region(address: int, nbytes: int, guard: int = 0, step: int = 0) -> BufferRegion:
    return BufferRegion("swa", step, "seq_lens", address, nbytes, guard)


def test_end_counts_the_guard_and_the_label_names_the_owner() -> None:
    assert region(100, 40, 16).end == 156
    assert region(100, 40, step=2).label == "swa/step2/seq_lens"


def test_neighbours_that_touch_are_disjoint() -> None:
    check_disjoint([region(200, 10), region(100, 84, 16), region(0, 100)])
    check_disjoint([])


def test_an_overlap_names_both_owners_and_the_bytes() -> None:
    with pytest.raises(AliasError, match=r"swa/step1/seq_lens .* swa/step2/.* sharing 4 bytes"):
        check_disjoint([region(136, 40, step=2), region(100, 40, step=1)])


def test_a_guard_that_another_buffer_lies_in_is_an_overlap() -> None:
    with pytest.raises(AliasError, match="sharing 8 bytes"):
        check_disjoint([region(0, 32, 16), region(40, 8, step=1)])


def test_a_region_inside_another_is_found_behind_a_neighbour() -> None:
    with pytest.raises(AliasError):
        check_disjoint([region(0, 100), region(10, 10, step=1), region(50, 10, step=2)])


def test_an_empty_region_shares_nothing_and_hides_nothing() -> None:
    check_disjoint([region(0, 32), region(8, 0, step=1)])
    with pytest.raises(AliasError, match="step0.*step2"):
        check_disjoint([region(0, 100), region(10, 0, step=1), region(50, 10, step=2)])


@pytest.mark.parametrize("values", [(-4, 8), (4, -8), (4, 8, -4), (4, 8.0)])
def test_a_region_that_no_storage_has_is_refused(values: tuple[int, ...]) -> None:
    with pytest.raises(LayoutError, match=r"of swa/step0/seq_lens in 0\.\.\d+ as a whole number"):
        region(*values)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=6))
def test_overlap_is_found_exactly_when_a_byte_has_two_owners(
    spans: list[tuple[int, int]],
) -> None:
    owned = [byte for start, size in spans for byte in range(start, start + size)]
    regions = [region(start, size, step=index) for index, (start, size) in enumerate(spans)]
    if len(owned) == len(set(owned)):
        check_disjoint(regions)
    else:
        with pytest.raises(AliasError):
            check_disjoint(regions)


def test_there_is_one_error_family() -> None:
    found = [
        item
        for item in vars(core).values()
        if inspect.isclass(item) and issubclass(item, Exception)
    ]
    assert len(found) == 9
    assert all(issubclass(item, DsacpError) for item in found)


def test_every_public_name_exists_and_is_documented() -> None:
    for name in core.__all__:
        item = getattr(core, name)
        if inspect.isclass(item) or inspect.isfunction(item):
            assert inspect.getdoc(item), name
