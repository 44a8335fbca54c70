"""The tiny model and its tokenizer, written to a folder by a function: nothing is downloaded."""

import json
from pathlib import Path
from typing import Any

VOCAB = 512
WINDOW = 64


def tiny_config() -> dict[str, Any]:
    """Return the configuration of a four-layer DeepSeek-V4 with every kind of layer.

    Head, rope and index sizes are fixed by asserts in the engine; ``index_topk`` is large enough
    that the indexer selects every compressed state.
    """
    return {
        "architectures": ["DeepseekV4ForCausalLM"],
        "model_type": "deepseek_v4",
        "torch_dtype": "bfloat16",
        "vocab_size": VOCAB,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "tie_word_embeddings": False,
        "hidden_size": 128,
        "num_hidden_layers": 4,
        "num_nextn_predict_layers": 1,
        "compress_ratios": [1, 4, 128, 4],
        "sliding_window": WINDOW,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 512,
        "qk_rope_head_dim": 64,
        "q_lora_rank": 64,
        "o_lora_rank": 64,
        "o_groups": 2,
        "index_head_dim": 128,
        "index_n_heads": 4,
        "index_topk": 512,
        "hc_mult": 4,
        "hc_eps": 1e-6,
        "hc_sinkhorn_iters": 4,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "compress_rope_theta": 40000.0,
        "rope_scaling": {"rope_type": "default"},
        "max_position_embeddings": 1024,
        "hidden_act": "silu",
        "swiglu_limit": 10.0,
        "moe_intermediate_size": 64,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "num_hash_layers": 1,
        "scoring_func": "sqrtsoftplus",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.5,
        "expert_dtype": "bf16",
    }


def write_model(folder: Path | str, *, tokenizer: bool = True) -> Path:
    """Write config.json and, unless ``tokenizer`` is False, a tokenizer; returns the folder."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(tiny_config(), indent=2))
    if tokenizer:
        _write_tokenizer(folder)
    return folder


def _words() -> list[str]:
    """Two special tokens, then made-up syllables: readable output from random weights."""
    syllables = [a + b for a in "bdfghjklmnprstvz" for b in "aeiou"]
    pairs = [a + b for a in syllables for b in syllables[:8]]
    return ["<s>", "</s>", "<unk>", *pairs[: VOCAB - 3]]


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocab = {word: index for index, word in enumerate(_words())}
    core = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder)
