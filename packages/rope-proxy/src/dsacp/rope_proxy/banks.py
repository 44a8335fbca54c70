"""Persistent RoPE rows, one bank a draft step (docs/invariants.md I1, I3, I4, I5)."""

import torch
from torch import Tensor

from dsacp.core import (
    GUARD_WORD,
    BufferRegion,
    CapacityError,
    DraftCapacity,
    LayoutError,
    Uncopied,
    check_whole,
)
from dsacp.kernels import rope_gather
from dsacp.rope_proxy.bank_plan import FIELDS, plan_banks
from dsacp.rope_proxy.proxy import RopeDataProxy, RopeRows
from dsacp.rope_proxy.registry import DEFAULT_GROUP, RopeRegistry
from dsacp.rope_proxy.table import RopeConfig


class RopeBanks(Uncopied):
    """Cos and sin rows of every (configuration, draft step), in one storage, addresses for life.

    Step 0 holds ``capacity.max_tokens`` rows, later steps ``capacity.max_rows``. Banks start out
    inert (cos 1, sin 0) and guard words lie before, between and after them.

    Args:
        registry: the layers; those registered later are not in the banks.
        capacity: bounds of the serving configuration.
        num_steps: banks, >= 1; index 0 is the first pass over the verified batch.
        device: where the banks live.
        group: the positions that the rows belong to.
        guard_words: int32 words between banks, >= 0.

    Attributes:
        configs: distinct configurations of the group, in registration order (C of them).
        storage: fp32 [words], banks and guards.
        layout: int32 [C, num_steps, 2] on ``device``, word offsets of cos and sin in ``storage``.
        cos_tables: fp32 [L_c, rd] of each configuration.
        sin_tables: fp32 [L_c, rd] of each configuration.

    Raises:
        LayoutError: a count is out of range, or the group is unknown though layers are registered.
        CapacityError: the banks outgrow 32-bit word offsets.
    """

    def __init__(
        self,
        registry: RopeRegistry,
        capacity: DraftCapacity,
        num_steps: int,
        device: torch.device | str,
        group: str = DEFAULT_GROUP,
        guard_words: int = 16,
    ) -> None:
        check_whole("num_steps", num_steps, 1)
        check_whole("guard_words", guard_words, 0)
        self.num_steps = num_steps
        self._layers = registry.layer_configs(group) if registry.layers else {}
        self.configs: tuple[RopeConfig, ...] = tuple(dict.fromkeys(self._layers.values()))
        tokens = [capacity.max_tokens, *[capacity.max_rows] * (num_steps - 1)]
        self._fields, words = plan_banks(self.configs, tokens, guard_words)
        self.storage = torch.full((words,), GUARD_WORD, dtype=torch.int32, device=device).view(
            torch.float32
        )
        self._views = {
            (field.config, field.step, field.name): field.view(self.storage)
            for field in self._fields
        }
        for field in self._fields:
            self._views[field.config, field.step, field.name].fill_(field.fill)
        self.layout = self._offsets().to(device)
        tables = registry.tables(device)
        self.cos_tables: tuple[Tensor, ...] = tuple(tables[config][0] for config in self.configs)
        self.sin_tables: tuple[Tensor, ...] = tuple(tables[config][1] for config in self.configs)

    def view(self, config: RopeConfig, step: int, tokens: int) -> tuple[Tensor, Tensor]:
        """Return the first ``tokens`` rows of cos and sin, fp32 [tokens, rd], in place.

        Raises:
            LayoutError: the configuration or the step has no bank.
            CapacityError: the bank holds fewer rows.
        """
        if config not in self.configs:
            raise LayoutError(
                f"expected a configuration of these banks, found {config}; known are "
                f"{list(self.configs)}: register its layers before the banks are made"
            )
        index = self.configs.index(config)
        cos, sin = (self._bank(index, step, name, tokens) for name, _ in FIELDS)
        return cos[:tokens], sin[:tokens]

    def proxy(self, step: int, tokens: int) -> RopeRows:
        """Return the first ``tokens`` rows of a step's bank, looked up by layer.

        Raises:
            LayoutError: the step has no bank.
            CapacityError: the bank holds fewer rows.
        """
        self._check_step(step)
        cos, sin = (self._field_proxy(step, tokens, name, fill) for name, fill in FIELDS)
        return RopeRows(cos, sin)

    def fill(self, step: int, positions: Tensor, max_position: int) -> RopeRows:
        """Write the rows of ``positions`` into a step's bank, and make every later row inert.

        The eager path of a host that drives one step at a time; ``dsacp.kernels.draft_steps``
        writes all steps at once and cleans only what a shrinking batch left.

        Args:
            step: the bank.
            positions: int32 [n] on the banks' device.
            max_position: the largest position, known to the host: asking the device would wait.

        Raises:
            LayoutError: the step has no bank, or a dtype does not fit.
            CapacityError: the bank holds fewer rows, or a table ends before ``max_position``.
        """
        tokens = positions.numel()
        rows = self.proxy(step, tokens)
        for config in self.configs:
            config.check_position(max_position)
        for index, config in enumerate(self.configs):
            cos, sin = self.view(config, step, tokens)
            rope_gather(positions, self.cos_tables[index], self.sin_tables[index], cos, sin)
            for name, value in FIELDS:
                self._views[index, step, name][tokens:].fill_(value)
        return rows

    def regions(self) -> tuple[BufferRegion, ...]:
        """Return every field of every bank as the guard sees it, group ``rope:<configuration>``."""
        base = self.storage.data_ptr()
        return tuple(
            BufferRegion(
                f"rope:{field.config}",
                field.step,
                field.name,
                base + 4 * field.offset,
                4 * field.tokens * field.width,
                4 * field.guard,
            )
            for field in self._fields
        )

    def _field_proxy(self, step: int, tokens: int, name: str, fill: float) -> RopeDataProxy:
        banks = {
            config: self._bank(index, step, name, tokens)
            for index, config in enumerate(self.configs)
        }
        rows = {config: bank[:tokens] for config, bank in banks.items()}
        return RopeDataProxy(self._layers, rows, fill, banks)

    def _bank(self, index: int, step: int, name: str, tokens: int) -> Tensor:
        self._check_step(step)
        bank = self._views[index, step, name]
        if not 0 <= tokens <= bank.shape[0]:
            raise CapacityError(
                f"step {step} needs {tokens} RoPE rows, its bank holds {bank.shape[0]}: raise "
                "max_num_batched_tokens (step 0), or max_num_seqs or the largest capture size"
            )
        return bank

    def _check_step(self, step: int) -> None:
        if not 0 <= step < self.num_steps:
            raise LayoutError(
                f"expected a draft step in 0..{self.num_steps - 1}, found {step}: make the banks "
                "with num_steps above the largest draft index that the host passes"
            )

    def _offsets(self) -> Tensor:
        offsets = torch.full(
            (len(self.configs), self.num_steps, len(FIELDS)), -1, dtype=torch.int32
        )
        names = [name for name, _ in FIELDS]
        for field in self._fields:
            offsets[field.config, field.step, names.index(field.name)] = field.offset
        return offsets
