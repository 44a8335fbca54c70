"""Signatures of vLLM's contract that the plug-in stands on; each is checked, none assumed."""

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from dsacp.vllm.settings import Blocker


@dataclass(frozen=True)
class Hook:
    """A callable that is replaced or called, and the parameters that we rely on."""

    where: str
    target: Callable[..., Any] | None
    parameters: tuple[str, ...]


def check_hooks(hooks: Iterable[Hook]) -> Iterator[Blocker]:
    """Yield a blocker for every hook that is absent or has lost a parameter."""
    for hook in hooks:
        if hook.target is None:
            yield Blocker(f"no {hook.where}", "use a vLLM version with this hook (0.32 has it)")
            continue
        names = inspect.signature(hook.target).parameters
        lost = [name for name in hook.parameters if name not in names]
        if lost:
            yield Blocker(
                f"{hook.where}({', '.join(names)}) without {', '.join(lost)}",
                "use a vLLM version with this signature (0.32 has it)",
            )


def check_fields(owner: Any, names: Iterable[str]) -> Iterator[Blocker]:
    """Yield a blocker if a dataclass lacks fields that the field map writes or reads."""
    have = {field.name for field in dataclasses.fields(owner)}
    lost = sorted(set(names) - have)
    if lost:
        yield Blocker(
            f"{owner.__name__} without the fields {', '.join(lost)}",
            "use a vLLM version with these fields (0.32 has them)",
        )


def stock_hooks(swa: Any, cache: Any) -> list[Hook]:
    """List what the plug-in replaces or calls in vLLM 0.32.

    Args:
        swa: the stock builder class of window metadata.
        cache: the class of a layer's window cache, which names the layer's backend.
    """
    return [
        Hook("SWA cache layer", cache.__init__, ("prefix", "backend_cls")),
        Hook(
            "window builder build",
            getattr(swa, "build", None),
            ("common_prefix_len", "common_attn_metadata", "fast_build"),
        ),
        Hook(
            "window builder build_for_drafting",
            getattr(swa, "build_for_drafting", None),
            ("common_attn_metadata", "draft_index"),
        ),
        Hook(
            "window builder build_for_cudagraph_capture",
            getattr(swa, "build_for_cudagraph_capture", None),
            ("common_attn_metadata",),
        ),
        Hook(
            "window builder update_draft_decode_metadata",
            getattr(swa, "update_draft_decode_metadata", None),
            ("metadata",),
        ),
        Hook(
            "window builder update_block_table",
            getattr(swa, "update_block_table", None),
            ("metadata", "blk_table", "slot_mapping"),
        ),
    ]
