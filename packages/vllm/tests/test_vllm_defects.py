"""What our builder clears and adopts, on vLLM's own classes; engines show the defect itself."""

import importlib.util
from types import SimpleNamespace

import pytest
import torch

if importlib.util.find_spec("vllm") is None:
    pytest.skip("needs vLLM: nox -s vllm", allow_module_level=True)


def advanced_by_the_proposer():
    """A batch of three requests after step 0, changed in place as the V1 proposer does."""
    from vllm.v1.attention.backend import CommonAttentionMetadata

    from dsacp.vllm_cpu_kit import register

    register()
    starts = torch.tensor([0, 4, 8, 12], dtype=torch.int32)
    common = CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts.clone(),
        seq_lens=torch.tensor([20, 30, 40], dtype=torch.int32),
        num_reqs=3,
        num_actual_tokens=12,
        max_query_len=4,
        max_seq_len=40,
        block_table_tensor=torch.arange(12, dtype=torch.int32).view(3, 4),
        slot_mapping=torch.arange(12),
    )
    buffer = torch.zeros(16, dtype=torch.int32)
    assert common.token_to_req_indices(buffer).tolist() == [0] * 4 + [1] * 4 + [2] * 4
    common.num_actual_tokens = 3
    common.max_query_len = 1
    common.query_start_loc = torch.arange(4, dtype=torch.int32)
    common.query_start_loc_cpu = torch.arange(4, dtype=torch.int32)
    return common, buffer


def test_a_cleared_map_names_each_request() -> None:
    common, buffer = advanced_by_the_proposer()
    fresh = common.replace(_token_to_req_indices_cache=None)
    assert fresh.token_to_req_indices(buffer).tolist() == [0, 1, 2]


def test_every_tensor_field_of_the_metadata_is_in_the_map() -> None:
    from dataclasses import fields

    from vllm.v1.attention.backends.mla.sparse_swa import DeepseekSparseSWAMetadata

    from dsacp.vllm.field_map import FROM_BUILDER, FROM_STOCK, HOST_ONLY

    tensors = {
        item.name for item in fields(DeepseekSparseSWAMetadata) if "Tensor" in str(item.type)
    }
    assert tensors - FROM_BUILDER.keys() - FROM_STOCK.keys() == HOST_ONLY.keys()


def draft_engine(**changes):
    """What the plug-in reads of an engine's configuration, and a draft layer's window cache."""
    from vllm.v1.attention.backends.mla import sparse_swa as swa

    config = SimpleNamespace(
        additional_config={"enable_dsa_cp": True},
        parallel_config=SimpleNamespace(),
        speculative_config=SimpleNamespace(method="mtp", num_speculative_tokens=3),
        model_config=SimpleNamespace(
            hf_config=SimpleNamespace(compress_ratios=[1, 4], num_hidden_layers=2)
        ),
    )
    layer = SimpleNamespace(
        prefix="model.layers.2.attn.swa_cache", backend_cls=swa.DeepseekSparseSWABackend
    )
    return SimpleNamespace(**{**vars(config), **changes}), layer, swa


def test_only_draft_layers_are_adopted() -> None:
    from dsacp.vllm.plugin import adopt

    config, draft, swa = draft_engine()
    stock = draft.backend_cls
    target = SimpleNamespace(prefix="model.layers.1.attn.swa_cache", backend_cls=stock)
    assert not adopt(target, config, swa)
    assert target.backend_cls is stock
    assert adopt(draft, config, swa)
    assert draft.backend_cls.get_name() == "DSACP_SPARSE_SWA"
    assert issubclass(draft.backend_cls.get_builder_cls(), stock.get_builder_cls())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"pipeline_parallel_size": 2}, "pipeline parallelism of 2"),
        ({"prefill_context_parallel_size": 2}, "prefill context parallelism of 2"),
        (
            {"decode_context_parallel_size": 2, "tensor_parallel_size": 2},
            "decode context parallelism of 2",
        ),
        ({"enable_dbo": True}, "ubatching"),
    ],
    ids=["pp", "pcp", "dcp", "dbo"],
)
def test_the_engines_own_parallel_settings_make_us_stand_aside(
    settings, said, caplog, monkeypatch
) -> None:
    from vllm.config import ParallelConfig

    from dsacp.vllm import plugin

    monkeypatch.setattr(plugin.logger, "propagate", True)
    real = ParallelConfig(**settings, distributed_executor_backend="mp")
    config, layer, swa = draft_engine(parallel_config=real)
    stock = layer.backend_cls
    with caplog.at_level("WARNING", logger=plugin.logger.name):
        assert not plugin.adopt(layer, config, swa)
    assert layer.backend_cls is stock
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"dsacp stands aside, the engine is unchanged: found {said}")


def test_a_plain_parallel_configuration_is_served() -> None:
    from vllm.config import ParallelConfig

    from dsacp.vllm.settings import blockers

    config, _, _ = draft_engine(parallel_config=ParallelConfig())
    assert list(blockers(config)) == []
