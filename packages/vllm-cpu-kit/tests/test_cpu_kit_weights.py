"""Seeded weights and the tiny model. Needs no vLLM."""

import json

import pytest
import torch
from torch import nn

from dsacp.vllm_cpu_kit import VOCAB, tiny_config, write_model
from dsacp.vllm_cpu_kit.weights import canonical_name, fill, full_tensor


class ColumnParallelLinear(nn.Module):
    """Shaped as vLLM's layer of this name: the loader goes by names and attributes."""

    def __init__(self, tp: int, parts: list[int], width: int) -> None:
        super().__init__()
        self.tp_size, self.output_partition_sizes = tp, [part // tp for part in parts]
        self.weight = nn.Parameter(torch.full((sum(parts) // tp, width), float("nan")))


class RowParallelLinear(nn.Module):
    def __init__(self, tp: int, rows: int, width: int) -> None:
        super().__init__()
        self.tp_size = tp
        self.weight = nn.Parameter(torch.full((rows, width // tp), float("nan")))


class Model(nn.Module):
    def __init__(self, tp: int) -> None:
        super().__init__()
        self.gate_up_proj = ColumnParallelLinear(tp, [6, 10], 5)
        self.down_proj = RowParallelLinear(tp, 3, 8)
        self.norm = nn.LayerNorm(7, bias=False)


def filled(tp: int, rank: int) -> Model:
    model = Model(tp)
    fill(model, rank)
    return model


def test_shards_of_every_size_are_cut_from_the_same_model() -> None:
    whole = filled(1, 0)
    left, right = filled(2, 0), filled(2, 1)
    gate, up = whole.gate_up_proj.weight.split([6, 10])
    parts = [side.gate_up_proj.weight.split([3, 5]) for side in (left, right)]
    assert torch.equal(gate, torch.cat([part[0] for part in parts]))
    assert torch.equal(up, torch.cat([part[1] for part in parts]))
    assert not torch.equal(parts[0][0], parts[1][0])
    down = torch.cat((left.down_proj.weight, right.down_proj.weight), dim=1)
    assert torch.equal(whole.down_proj.weight, down)
    assert torch.equal(left.norm.weight, torch.ones(7))


def test_a_name_decides_the_values() -> None:
    first = full_tensor("model.layers.0.attn.wq_b.weight", (4, 6))
    assert torch.equal(first, full_tensor("model.layers.0.attn.wq_b.weight", (4, 6)))
    assert not torch.equal(first, full_tensor("model.layers.1.attn.wq_b.weight", (4, 6)))
    assert torch.equal(full_tensor("x.e_proj.weight", (3, 3)), torch.eye(3))


def test_the_drafter_shares_the_targets_head() -> None:
    assert canonical_name("model.layers.4.shared_head.head.weight") == "lm_head.weight"
    assert canonical_name("model.embed_tokens.weight") == "model.embed_tokens.weight"


def test_an_integer_parameter_without_a_rule_is_refused() -> None:
    model = nn.Module()
    model.register_parameter("ids", nn.Parameter(torch.zeros(2, dtype=torch.int32), False))
    with pytest.raises(NotImplementedError, match="'ids'"):
        fill(model, 0)


def test_the_model_folder_is_written_from_nothing(tmp_path) -> None:
    folder = write_model(tmp_path / "model", tokenizer=False)
    assert json.loads((folder / "config.json").read_text()) == tiny_config()
    config = tiny_config()
    assert config["index_topk"] * 4 >= config["max_position_embeddings"]


def test_the_tokenizer_names_every_id(tmp_path) -> None:
    transformers = pytest.importorskip("transformers", reason="no transformers here")
    folder = write_model(tmp_path)
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    assert len(tokenizer) == VOCAB
    ids = list(range(3, VOCAB, 7))
    assert tokenizer.encode(tokenizer.decode(ids), add_special_tokens=False) == ids
