"""What launches for an NPU have that those on tensors of the CPU lack."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

if TYPE_CHECKING:
    from dsacp.ascend_ir import Launch, Reached


@contextmanager
def as_npu() -> Iterator[None]:
    """Let launchers that ask for the tensors' device hear "npu"."""
    attention = import_module("dsacp.kernels.sparse_attention.triton")
    plan = import_module("dsacp.kernels.sas_plan.triton")
    tiles, constants = attention.tile_sizes, plan.constants
    with ExitStack() as stack:
        stack.enter_context(
            patch.object(attention, "tile_sizes", lambda *sizes: tiles(*sizes[:-1], "npu"))
        )
        stack.enter_context(patch.object(plan, "constants", lambda _: constants("npu")))
        yield


def reach(launch: "Launch", arguments: Mapping[str, Any]) -> list["Reached"]:
    """Return the tables of the draft steps, whose kernel gets their addresses in ``pointers``."""
    if launch.name != "draft_steps_kernel":
        return []
    words = arguments["pointers"].flatten().tolist()
    return [*_block_tables(words, arguments), *_rope_tables(words, launch, arguments)]


def _block_tables(words: list[int], arguments: Mapping[str, Any]) -> Iterator["Reached"]:
    from dsacp.ascend_ir import Reached

    for group in range(arguments["groups"]):
        address, stride, width = words[3 * group : 3 * group + 3]
        rows = arguments["table_rows"]
        size = 4 * ((rows - 1) * stride + width) if address and rows > 0 else 0
        yield Reached(f"block table {group}", "pointers", 3 * group, address, max(size, 0))


def _rope_tables(
    words: list[int], launch: "Launch", arguments: Mapping[str, Any]
) -> Iterator["Reached"]:
    from dsacp.ascend_ir import Reached

    first = arguments["table_at"]
    for word in range(first, min(len(words), first + 8)):
        table, part = divmod(word - first, 2)
        size = 4 * launch.constants["ROTARY"] * arguments[f"length{table}"]
        if words[word]:
            name = f"{'sin' if part else 'cos'} table {table}"
            yield Reached(name, "pointers", word, words[word], size)
