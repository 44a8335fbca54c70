"""RoPE rows in the host's own proxy class, so that its attention code reads them unchanged."""

from functools import cache
from typing import Any

from torch import Tensor

from dsacp.vllm.ascend.banks import Bank, RopeTables

DEFAULT_GROUP = "default"


def host_tables(rope_module: Any) -> RopeTables:
    """Return the tables of every configuration that rotates tokens at their own positions.

    Args:
        rope_module: ``vllm_ascend.ops.rope_dsv4``, whose tables the model made when it was built.
    """
    state = rope_module._ROPE_STATE
    return {
        key: tuple(table.view(table.shape[0], table.shape[-1]) for table in pair)
        for key, pair in state.full_rope_cache.items()
        if DEFAULT_GROUP in state.registry_summary.get(key, ())
    }


@cache
def banked_proxy_class(stock: Any) -> type[Any]:
    """Return the host's proxy class with a ``pad_to`` that gives the bank's own longer view.

    The host's pads by making new tensors, zero in cosine and sine, whenever tokens do not divide
    by the ranks: the address then moves and padded rows lose their RoPE dimensions.
    """

    class BankedRope(stock):  # type: ignore[misc]
        """Views of a bank, which already holds the padded rows."""

        def __init__(self, rows: Any, is_cos: bool, padded: Any) -> None:
            super().__init__(rows, is_cos=is_cos)
            self._padded = padded

        def pad_to(self, target_len: int, dim: int = 0) -> Any:
            """Return the padded view if it has that length, else what the host would make."""
            lengths = {
                pair[0].shape[0] for group in self._padded.values() for pair in group.values()
            }
            if dim == 0 and lengths == {target_len}:
                return stock(self._padded, is_cos=self.idx == 0)
            return super().pad_to(target_len, dim)

    return BankedRope


def rope_views(bank: Bank, stock: Any, tokens: int, padded: int) -> tuple[Any, Any]:
    """Return cosine and sine proxies of a step's tokens, each tensor fp32 [tokens, 1, 1, rd]."""
    proxy = banked_proxy_class(stock)
    rows, longer = _mapping(bank, tokens), _mapping(bank, padded)
    return proxy(rows, True, longer), proxy(rows, False, longer)


def _mapping(bank: Bank, tokens: int) -> dict[str, dict[str, tuple[Tensor, Tensor]]]:
    return {
        key: {DEFAULT_GROUP: (_four(cos, tokens), _four(sin, tokens))}
        for key, (cos, sin) in bank.rope_rows.items()
    }


def _four(rows: Tensor, tokens: int) -> Tensor:
    return rows[:tokens].view(tokens, 1, 1, rows.shape[1])
