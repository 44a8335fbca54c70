"""Prefix caching and chunked prefill for seeded models on CPUs without AMX.

vLLM's CPU platform switches both off for DeepSeek-V4 unless the machine has AMX tiles, which its
own operators need. The kit's operators do not, and address pages as the others do.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dsacp.vllm_cpu_kit.weights import LOAD_FORMAT


@contextmanager
def amx_reported() -> Iterator[None]:
    """Let torch report AMX tiles, for the length of one configuration check."""
    import torch

    stock = torch.cpu._is_amx_tile_supported
    torch.cpu._is_amx_tile_supported = lambda: True
    try:
        yield
    finally:
        torch.cpu._is_amx_tile_supported = stock


def install_features() -> None:
    """Wrap the platform's configuration check; engines with other weights are not affected."""
    from vllm.platforms.cpu import CpuPlatform

    stock = CpuPlatform.check_and_update_config

    def check_and_update_config(_cls: Any, vllm_config: Any) -> None:
        if vllm_config.load_config.load_format != LOAD_FORMAT:
            stock(vllm_config)
            return
        with amx_reported():
            stock(vllm_config)

    CpuPlatform.check_and_update_config = classmethod(check_and_update_config)
