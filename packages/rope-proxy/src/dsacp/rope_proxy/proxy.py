"""RoPE rows of one batch, looked up by layer name."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import overload

import torch
from torch import Tensor

from dsacp.core import CapacityError, LayoutError, Uncopied
from dsacp.rope_proxy.table import RopeConfig


@dataclass(frozen=True, eq=False)
class RopeDataProxy(Uncopied):
    """The cos or the sin rows of a batch for every layer; layers of one configuration share them.

    Attributes:
        layers: configuration of each layer that may be asked for.
        rows: fp32 [n, rd] of each configuration.
        fill: the value of inert rows, 1 for cos and 0 for sin.
        banks: whole banks, fp32 [capacity, rd], that ``rows`` are views of; None when not banked.
        start: the bank row where ``rows`` begin.
        open_end: whether only inert rows follow ``rows`` in the bank.
    """

    layers: Mapping[str, RopeConfig]
    rows: Mapping[RopeConfig, Tensor]
    fill: float
    banks: Mapping[RopeConfig, Tensor] | None = None
    start: int = 0
    open_end: bool = True

    def __len__(self) -> int:
        """Return n, the rows of every tensor."""
        return next((tensor.shape[0] for tensor in self.rows.values()), 0)

    @overload
    def __getitem__(self, key: str) -> Tensor: ...
    @overload
    def __getitem__(self, key: slice) -> "RopeDataProxy": ...

    def __getitem__(self, key: "str | slice") -> "Tensor | RopeDataProxy":
        """Return a layer's rows [n, rd], or the proxy of a contiguous slice of the rows.

        Raises:
            LayoutError: the layer is unknown, or the slice has a step.
        """
        return self._slice(key) if isinstance(key, slice) else self._layer(key)

    def pad_to(self, num_rows: int) -> "RopeDataProxy":
        """Return ``num_rows`` rows, those past the batch inert (cos 1, sin 0).

        A banked proxy returns a view of its bank, at the same address as before.

        Raises:
            LayoutError: fewer rows were asked for, or real rows follow the slice in its bank.
            CapacityError: the bank holds fewer rows.
        """
        size = len(self)
        if num_rows < size:
            raise LayoutError(f"expected pad_to >= {size} rows, found {num_rows}: slice instead")
        if num_rows == size:
            return self
        if self.banks is not None:
            return self._extend(self.banks, num_rows)
        padded = {
            config: torch.cat([rows, rows.new_full((num_rows - size, rows.shape[1]), self.fill)])
            for config, rows in self.rows.items()
        }
        return replace(self, rows=padded)

    def _layer(self, name: str) -> Tensor:
        config = self.layers.get(name)
        if config is None or config not in self.rows:
            raise LayoutError(
                f"expected a layer of this proxy, found {name!r}; known are {list(self.layers)}: "
                "register the layer, with this group, before the banks are made"
            )
        return self.rows[config]

    def _slice(self, key: slice) -> "RopeDataProxy":
        begin, end, step = key.indices(len(self))
        if step != 1:
            raise LayoutError(f"expected a slice of step 1, found {step}: rows stay contiguous")
        end = max(begin, end)
        return replace(
            self,
            rows={config: rows[begin:end] for config, rows in self.rows.items()},
            start=self.start + begin,
            open_end=self.open_end and end == len(self),
        )

    def _extend(self, banks: Mapping[RopeConfig, Tensor], num_rows: int) -> "RopeDataProxy":
        if not self.open_end:
            raise LayoutError(
                f"expected inert rows after row {self.start + len(self)} of the bank, found rows "
                "of the batch: pad before slicing"
            )
        capacity = min(bank.shape[0] for bank in banks.values())
        end = self.start + num_rows
        if end > capacity:
            raise CapacityError(
                f"padding to {num_rows} rows needs {end} rows of the RoPE bank, it holds "
                f"{capacity}: raise max_num_batched_tokens or the largest capture size"
            )
        return replace(
            self, rows={config: bank[self.start : end] for config, bank in banks.items()}
        )


@dataclass(frozen=True, eq=False)
class RopeRows(Uncopied):
    """Cos and sin rows of the same tokens."""

    cos: RopeDataProxy
    sin: RopeDataProxy

    def __getitem__(self, key: slice) -> "RopeRows":
        """Return both for a contiguous slice of the tokens."""
        return RopeRows(self.cos[key], self.sin[key])

    def pad_to(self, num_rows: int) -> "RopeRows":
        """Return both padded; see ``RopeDataProxy.pad_to``."""
        return RopeRows(self.cos.pad_to(num_rows), self.sin.pad_to(num_rows))
