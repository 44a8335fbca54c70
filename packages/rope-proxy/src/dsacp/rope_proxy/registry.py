"""Which layer uses which RoPE configuration, and the tables of those in use."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from dsacp.core import LayoutError
from dsacp.rope_proxy.table import RopeConfig, build_table

DEFAULT_GROUP = "default"
"""The group of rows at token positions; others, such as ``c4``, hold compressed positions."""


class RopeRegistry:
    """Layers, their RoPE configuration and the groups of positions they are rotated at.

    Each instance owns its layers and tables: a target and its drafter never meet in a global.
    """

    def __init__(self) -> None:
        self._configs: dict[str, RopeConfig] = {}
        self._groups: dict[str, frozenset[str]] = {}
        self._tables: dict[torch.device, dict[RopeConfig, tuple[Tensor, Tensor]]] = {}

    def register(
        self, layer_name: str, config: RopeConfig, groups: Iterable[str] = (DEFAULT_GROUP,)
    ) -> None:
        """Add one layer; doing it again with equal values changes nothing.

        Raises:
            LayoutError: no group was given, or the layer is known with other values.
        """
        wanted = frozenset([groups] if isinstance(groups, str) else groups)
        if not wanted:
            raise LayoutError(f"expected at least one group for layer {layer_name!r}, found none")
        known = (self._configs.get(layer_name, config), self._groups.get(layer_name, wanted))
        if known != (config, wanted):
            raise LayoutError(
                f"expected layer {layer_name!r} as registered with {known[0]} in groups "
                f"{sorted(known[1])}, found {config} in {sorted(wanted)}: use one registry a model"
            )
        self._configs[layer_name] = config
        self._groups[layer_name] = wanted

    @property
    def layers(self) -> tuple[str, ...]:
        """Every layer, in registration order."""
        return tuple(self._configs)

    @property
    def groups(self) -> tuple[str, ...]:
        """Every group, sorted."""
        return tuple(sorted({group for groups in self._groups.values() for group in groups}))

    def config_of(self, layer_name: str) -> RopeConfig:
        """Return a layer's configuration.

        Raises:
            LayoutError: the layer is not registered.
        """
        if layer_name not in self._configs:
            raise LayoutError(
                f"expected a registered layer, found {layer_name!r}; known are "
                f"{list(self._configs)}: register it first"
            )
        return self._configs[layer_name]

    def layer_configs(self, group: str = DEFAULT_GROUP) -> Mapping[str, RopeConfig]:
        """Return the layers of a group with their configurations, in registration order.

        Raises:
            LayoutError: no layer has the group.
        """
        found = {
            layer: config for layer, config in self._configs.items() if group in self._groups[layer]
        }
        if not found:
            raise LayoutError(
                f"expected a registered group, found {group!r}; known are {list(self.groups)}: "
                "name it when a layer is registered"
            )
        return found

    def configs(self, group: str = DEFAULT_GROUP) -> tuple[RopeConfig, ...]:
        """Return the distinct configurations of a group in registration order, () if unknown."""
        if group not in self.groups:
            return ()
        return tuple(dict.fromkeys(self.layer_configs(group).values()))

    def tables(self, device: torch.device | str) -> Mapping[RopeConfig, tuple[Tensor, Tensor]]:
        """Return (cos, sin) of every configuration on ``device``, built once and then kept."""
        kept = self._tables.setdefault(torch.empty(0, device=device).device, {})
        for config in dict.fromkeys(self._configs.values()):
            if config not in kept:
                kept[config] = build_table(config, device)
        return dict(kept)

    def full_table(self, group: str, device: torch.device | str) -> tuple[Tensor, Tensor]:
        """Return (cos, sin) of the one configuration that has ``group``.

        Raises:
            LayoutError: none has it, or several have.
        """
        configs = tuple(dict.fromkeys(self.layer_configs(group).values()))
        if len(configs) != 1:
            raise LayoutError(
                f"expected one configuration with group {group!r}, found {len(configs)}: "
                f"{list(configs)}; ask for the table of a layer's own configuration"
            )
        return self.tables(device)[configs[0]]
