"""The tape repeats ops on captured addresses exactly as eager code would compute them."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dsacp.graph import CpuTape


@torch.library.custom_op("dsacp_graph_test::scale_into", mutates_args=("out",))
def scale_into(source: Tensor, out: Tensor, factor: int) -> None:
    # A kernel's Python may read values on the host: the tape must not look inside.
    for row, value in enumerate(source.tolist()):
        out[row] = value * factor


def _geometry_in_place(x: Tensor) -> Tensor:
    y = (x + 1).unsqueeze(0)
    y.squeeze_(0).mul_(2)
    return y.unsqueeze_(1) + x[:, None]


def _resized_out(x: Tensor) -> Tensor:
    out = torch.empty(0)
    torch.mul(x, 3, out=out)
    return out.add_(1)


def _index_put(x: Tensor) -> Tensor:
    y = torch.zeros(9)
    y[torch.arange(7) + 2] = x
    y.index_put_((torch.arange(3),), x[4:], accumulate=True)
    return y


def _custom(x: Tensor) -> Tensor:
    out = torch.full((7,), float("nan"))
    scale_into(x, out, 3)
    return out


def _parts(x: Tensor) -> Tensor:
    a, b = (x * 2).split([3, 4])
    values, where = b.topk(2)
    return torch.cat([a, values, where.float(), torch.stack(x.unbind()).cumsum(0)])


PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    "arithmetic": lambda x: (x * 2 + 1).relu().sum(),
    "matmul": lambda x: torch.outer(x, x) @ x,
    "softmax": lambda x: torch.softmax(x.reshape(1, 7), -1),
    "views": lambda x: x.view(7, 1).t()[0, 1:5].flip(0) + 0,
    "view of the input": lambda x: x[2:6],
    "contiguous copy": lambda x: x.expand(3, 7).t().contiguous(),
    "casts": lambda x: (x.double() / 3).to(torch.bfloat16).float(),
    "integers": lambda x: x.int() // 2 + torch.arange(7) % 3,
    "where": lambda x: torch.where(x > 1, x, -1.0),
    "factories": lambda x: torch.ones(7) + torch.full_like(x, 2) + x.new_zeros(7),
    "searchsorted": lambda x: torch.searchsorted(x.abs().sort().values, x),
    "mean and var": lambda x: torch.stack(torch.var_mean(x)),
    "attention": lambda x: torch.nn.functional.scaled_dot_product_attention(
        *x.reshape(1, 1, 7, 1).expand(3, 1, 1, 7, 1).unbind()
    ),
    "complex": lambda x: torch.view_as_real(torch.complex(x, x + 1).conj() * 1j),
    "geometry in place": _geometry_in_place,
    "resized out": _resized_out,
    "index_put": _index_put,
    "custom op": _custom,
    "parts": _parts,
}


@pytest.mark.parametrize("inference", [False, True], ids=["grad", "inference"])
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_replay_equals_eager(program: Callable[[Tensor], Tensor], inference: bool) -> None:
    first, second = torch.arange(7.0) - 2, torch.tensor([3.0, 1, 4, 1, 5, 9, 2])
    source = first.clone()
    with torch.inference_mode(inference), CpuTape() as tape:
        out = program(source)
    assert torch.equal(out, program(first))
    for values in (second, first * 10):
        with torch.inference_mode(inference):
            source.copy_(values)
        tape.replay()
        assert torch.equal(out, program(values))
        assert torch.equal(source, values)


@given(
    ops=st.lists(st.integers(0, 6), min_size=1, max_size=12),
    values=st.lists(st.integers(-50, 50), min_size=1, max_size=9),
)
@settings(max_examples=50, deadline=None)
def test_random_programs_replay_as_eager(ops: list[int], values: list[int]) -> None:
    def program(x: Tensor, persistent: Tensor) -> Tensor:
        y = x
        for op in ops:
            if op == 0:
                y = y + 1
            elif op == 1:
                y = y.flip(0)
            elif op == 2:
                persistent.copy_(y)
            elif op == 3:
                y = persistent * 2
            elif op == 4:
                y = y.clone().clamp_(-20, 20)
            elif op == 5:
                persistent.add_(y)
            else:
                y = torch.cat([y[1:], y[:1]])
        return y

    count = len(values)
    start, later = torch.arange(count), torch.tensor(values)
    source, persistent = start.clone(), torch.zeros(count, dtype=torch.int64)
    with CpuTape() as tape:
        out = program(source, persistent)
    eager = persistent.clone()
    source.copy_(later)
    tape.replay()
    assert torch.equal(out, program(later, eager))
    assert torch.equal(persistent, eager)


def test_random_data_made_outside_is_read_at_its_address() -> None:
    noise, out = torch.randn(5), torch.full((5,), float("nan"))
    with CpuTape() as tape:
        out.copy_(noise * 2)
    noise.normal_()
    tape.replay()
    assert torch.equal(out, noise * 2)


def test_random_ops_on_the_tape_draw_anew() -> None:
    with CpuTape() as tape:
        out = torch.rand(64)
    before = out.clone()
    tape.replay()
    assert not torch.equal(out, before)
    assert out.min() >= 0
    assert out.max() < 1


def test_foreign_tensors_are_written_only_by_recorded_ops() -> None:
    source, guarded = torch.arange(4.0), torch.full((12,), 7.0)
    target = guarded[4:8]
    with CpuTape() as tape:
        target.copy_(source + 1)
    guarded.fill_(7.0)
    tape.replay()
    assert guarded.tolist() == [7.0] * 4 + [1.0, 2.0, 3.0, 4.0] + [7.0] * 4


def test_geometry_is_frozen_when_recorded() -> None:
    source = torch.arange(6.0)
    with CpuTape() as tape:
        out = source.view(2, 3) + 1
    source.unsqueeze_(0)
    out.squeeze_().t_()
    source.fill_(3)
    tape.replay()
    assert out.unique().tolist() == [4.0]
