"""vLLM 0.32: the CPU window builder returns three layer kinds, its base reads five."""

from typing import Any


def missing_tile_keys(builder_cls: Any) -> tuple[str, ...]:
    """Return the layer kinds that the base builder reads and ``builder_cls`` does not return.

    Empty once upstream returns them all; then this workaround does nothing.
    """
    from vllm.v1.attention.backends.mla import sparse_swa as swa

    wanted = {value for name, value in vars(swa).items() if name.startswith("_LAYER_TYPE_")}
    found = builder_cls.build_tile_scheduler(None, 0)
    return tuple(sorted(wanted - set(found)))


def install_tile_keys() -> tuple[str, ...]:
    """Make the CPU builder return every layer kind; returns the kinds that were added."""
    from vllm.models.deepseek_v4.cpu.cpu_mla import DeepseekV4CPUSparseSWAMetadataBuilder as Builder

    missing = missing_tile_keys(Builder)
    if missing:
        stock = Builder.build_tile_scheduler

        def build_tile_scheduler(self: Any, num_decode_tokens: int) -> dict[str, Any]:
            return {**dict.fromkeys(missing), **stock(self, num_decode_tokens)}

        Builder.build_tile_scheduler = build_tile_scheduler
    return missing
