"""Compares upstream's metadata with ours, field by field, and counts what was compared."""

from collections import Counter
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from ascend_double.host import HEADS, LAYERS, TOPK, WINDOW, HostDouble
from ascend_double.ops import CORES
from dsacp.sas_metadata import QliSpec, SasSpec, decode_sas

PLANS = ("sas_metadata", "qli_metadata")
TOTALS: Counter[str] = Counter()
"""What the parity tests of this run compared, printed at its end."""
PROXIES = ("cos", "sin", "local_cos", "local_sin")


class Parity:
    """Compares builds of one KV group; ``counts`` says how many fields were equal.

    Args:
        host: the configuration.
        ratio: compress ratio of the group.
        family: "a2" or "a5".
        window_left: window that plans were made for.
    """

    def __init__(
        self,
        host: HostDouble,
        ratio: int = 1,
        family: Any = "a2",
        window_left: int = WINDOW - 1,
    ) -> None:
        self.host = host
        self.window_left = window_left
        self.family = family
        self.ratio = ratio
        self.padded_tokens = 0
        self.counts: Counter[str] = Counter()

    def check(self, upstream: Any, ours: Any, real_tokens: int, real_reqs: int) -> None:
        """Assert that every field is equal on real rows, and where it has no rows, altogether."""
        assert type(upstream) is type(ours)
        for field in fields(upstream):
            left, right = getattr(upstream, field.name), getattr(ours, field.name)
            self._field(field.name, left, right, real_tokens, real_reqs)

    def _field(self, name: str, left: Any, right: Any, tokens: int, reqs: int) -> None:
        if name in ("req_metadata", "cp_metadata"):
            assert type(left) is type(right)
            for field in fields(left):
                pair = getattr(left, field.name), getattr(right, field.name)
                self._field(field.name, *pair, tokens, reqs)
            return
        self.counts[name] += 1
        if left is None or right is None or not isinstance(left, Tensor | type(left)):
            assert left is right, name
        elif name in PLANS:
            assert self._ranges(name, left) == self._ranges(name, right), name
        elif name in PROXIES:
            self._proxy(name, left, right, tokens)
        elif isinstance(left, Tensor):
            self._tensor(name, left, right, tokens, reqs)
        else:
            assert left == right, (name, left, right)

    def _tensor(self, name: str, left: Tensor, right: Tensor, tokens: int, reqs: int) -> None:
        assert left.shape == right.shape, (name, left.shape, right.shape)
        assert left.dtype == right.dtype, (name, left.dtype, right.dtype)
        if name == "start_pos":
            left, right = left[:reqs], right[:reqs]
        elif name == "input_positions":
            left, right = left[:tokens], right[:tokens]
        assert torch.equal(left, right), (name, left, right)

    def _proxy(self, name: str, left: Any, right: Any, tokens: int) -> None:
        start = 0
        if name.startswith("local"):
            per = self.padded_tokens // self.host.tp_size
            start = self.host.tp_rank * per
        for layer in LAYERS.values():
            pair = left[layer], right[layer]
            if isinstance(pair[0], dict):
                pair = pair[0]["default"], pair[1]["default"]
            assert pair[0].shape == pair[1].shape, (name, pair[0].shape, pair[1].shape)
            real = max(min(tokens - start, pair[0].shape[0]), 0)
            assert torch.equal(pair[0][:real], pair[1][:real]), name

    def _ranges(self, name: str, words: Tensor) -> Any:
        if name == "qli_metadata":
            spec: Any = QliSpec(num_cores=CORES)
        else:
            ratio = self.ratio
            spec = SasSpec(
                num_heads=HEADS,
                device_family=self.family,
                num_cores=CORES,
                window_left=self.window_left,
                cmp_ratio=ratio,
                cmp_topk=TOPK if ratio == 4 else 0,
            )
        size = spec.record_size
        enabled = words[: size * CORES].view(CORES, size)[:, 0].tolist()
        return decode_sas(words, spec), enabled
