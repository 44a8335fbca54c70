"""The kit inside vLLM 0.32 on a CPU, and the upstream defect that it works around."""

import importlib.util

import pytest

if importlib.util.find_spec("vllm") is None:
    pytest.skip("needs vLLM: nox -s vllm", allow_module_level=True)


def test_the_cpu_builder_still_lacks_layer_kinds() -> None:
    """vLLM 0.32: KeyError 'c1a' at the first forward on any CPU.

    Fails when upstream returns all kinds: then drop tile_keys.py.
    """
    from vllm.models.deepseek_v4.cpu import cpu_mla
    from vllm.v1.attention.backends.mla.sparse_swa import DeepseekSparseSWAMetadataBuilder

    from dsacp.vllm_cpu_kit.tile_keys import missing_tile_keys

    class Stock(DeepseekSparseSWAMetadataBuilder):
        build_tile_scheduler = _stock_build_tile_scheduler(cpu_mla)

    assert missing_tile_keys(Stock) == ("c1a", "c2a")


def _stock_build_tile_scheduler(module):
    """Take the method from the module's own source: the kit has replaced it in this process."""
    source = importlib.util.find_spec(module.__name__)
    fresh = importlib.util.module_from_spec(source)
    source.loader.exec_module(fresh)
    return fresh.DeepseekV4CPUSparseSWAMetadataBuilder.build_tile_scheduler


def test_the_workaround_completes_the_kinds_and_is_idempotent() -> None:
    from vllm.models.deepseek_v4.cpu.cpu_mla import DeepseekV4CPUSparseSWAMetadataBuilder as Builder

    from dsacp.vllm_cpu_kit.tile_keys import install_tile_keys, missing_tile_keys

    install_tile_keys()
    assert missing_tile_keys(Builder) == ()
    method = Builder.build_tile_scheduler
    assert install_tile_keys() == ()
    assert Builder.build_tile_scheduler is method


def test_register_twice_adds_nothing_twice() -> None:
    import torch

    from dsacp.vllm_cpu_kit import register
    from dsacp.vllm_cpu_kit.ops import SCHEMAS, install_ops

    register()
    register()
    assert install_ops() == ()
    assert all(hasattr(torch.ops._C, operator.__name__) for operator in SCHEMAS)


def test_the_draft_model_is_registered() -> None:
    from vllm.model_executor.models.registry import ModelRegistry

    from dsacp.vllm_cpu_kit import register

    register()
    assert "DeepSeekV4MTPModel" in ModelRegistry.get_supported_archs()
    entry = ModelRegistry.models["DeepSeekV4MTPModel"]
    assert entry.module_name == "dsacp.vllm_cpu_kit.mtp"
