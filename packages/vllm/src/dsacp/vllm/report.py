"""What our builders did in a run: call counts, and the guard's verdict when it is on."""

import json
import logging
import os
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

from dsacp.core import DsacpError
from dsacp.drafting_cache import DraftMetadataBuilder, StepMetadata
from dsacp.graph import GraphGuard, check_isolated, is_recording, tensors_of

REPORT_VARIABLE = "DSACP_REPORT"
GUARD_VARIABLE = "DSACP_GUARD"

logger = logging.getLogger("vllm.dsacp")
_NUMBERS = count()


class Reporter:
    """Counts builds of one builder instance; with a folder, keeps its JSON there up to date.

    Args:
        cache: the instance's metadata builder.
        layers: the layers that it serves.
        v2: whether the V2 runner drives it.
        folder: where to write, None for nowhere.
        guard: whether to check addresses, guard words, padding, and that draft steps share no
            byte, after every build; it waits for the device, so builds that a graph records pass.

    ``attention`` counts the layers' sharded forward passes and all-to-alls.
    """

    def __init__(
        self,
        cache: DraftMetadataBuilder,
        layers: Any,
        v2: bool,
        folder: Path | None = None,
        guard: bool = False,
    ) -> None:
        self.calls: Counter[str] = Counter()
        self.attention: Counter[str] = Counter()
        self.guarded: Counter[str] = Counter()
        self.violations: list[str] = []
        self._about = {"layers": list(layers), "runner": "V2" if v2 else "V1", "pid": os.getpid()}
        self._folder = folder
        self._index = next(_NUMBERS)
        self._guard = GraphGuard(cache.regions(), cache.storages()) if guard else None
        self._device = cache.config.device
        self._seen: dict[tuple[int, ...], dict[str, int]] = {}
        self._steps: dict[str, list[dict[str, Any]]] = {}

    @classmethod
    def from_environment(cls, cache: DraftMetadataBuilder, layers: Any, v2: bool) -> "Reporter":
        """Read ``DSACP_REPORT`` (a folder) and ``DSACP_GUARD`` (1 to check every build)."""
        folder = os.environ.get(REPORT_VARIABLE)
        guard = os.environ.get(GUARD_VARIABLE, "") == "1"
        return cls(cache, layers, v2, Path(folder) if folder else None, guard)

    def built(self, hook: str, bank: int, metadata: Any, step: StepMetadata) -> None:
        """Note one build."""
        self.calls[f"{hook}[{bank}]"] += 1
        if self._guard is not None and not is_recording(self._device):
            self._check(self._guard, bank, metadata, step)
        if self._folder is not None:
            self._write(self._folder)

    def _check(self, guard: GraphGuard, bank: int, metadata: Any, step: StepMetadata) -> None:
        shape = (bank, step.num_reqs, step.num_tokens)
        label = f"step{bank}/{step.num_reqs}x{step.num_tokens}"
        try:
            if shape not in self._seen:
                guard.watch(step, label)
                self._seen[shape] = addresses(metadata)
                self._isolated(bank, metadata)
            guard.check(step, label)
            self.guarded["builds"] += 1
            self.guarded["addresses"] += len(self._seen[shape])
            self._moved(shape, metadata)
            self._alive(metadata)
        except DsacpError as error:
            self.violations.append(str(error))

    def _isolated(self, bank: int, metadata: Any) -> None:
        """No two draft steps may share a byte of what layers read, the host's table aside.

        Shapes of one step share its buffers; each is kept, for a later step may overlap any.
        """
        read = {name: getattr(metadata, name) for name in _OURS if name != "block_table"}
        self._steps.setdefault(f"step{bank}", []).append(read)
        check_isolated(self._steps, metadata.block_table)

    def _moved(self, shape: tuple[int, ...], metadata: Any) -> None:
        now = addresses(metadata)
        for name, address in self._seen[shape].items():
            if name in now and now[name] != address:
                self.violations.append(f"moved: {name} {address:#x} -> {now[name]:#x}")

    def _alive(self, metadata: Any) -> None:
        """Padding of the rank's slice must read nothing and must not be written.

        The host's token count decides what is real: a later step's shard is rounded up already.
        """
        local = metadata.local
        real = metadata.host.num_actual_tokens - local.shard.start
        padding = slice(min(max(real, 0), local.shard.per_rank), None)
        self.guarded["padding_rows"] += local.valid[padding].numel()
        if bool(local.valid[padding].any()) or bool((local.indices[padding] >= 0).any()):
            self.violations.append(f"alive padding past row {padding.start}")

    def _write(self, folder: Path) -> None:
        try:
            self._replace(folder)
        except OSError as error:
            self._folder = None
            logger.warning("dsacp reports no more to %s, the engine goes on: %r", folder, error)

    def _replace(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        content = {
            **self._about,
            "calls": dict(self.calls),
            "attention": dict(self.attention),
            "guarded": dict(self.guarded),
            "violations": self.violations,
        }
        path = folder / f"{os.getpid()}-{self._index}.json"
        temporary = path.with_suffix(".part")
        temporary.write_text(json.dumps(content))
        temporary.replace(path)


_OURS = (
    "query_start_loc", "seq_lens", "slot_mapping", "block_table", "token_to_req_indices",
    "is_valid_token", "decode_swa_indices", "decode_swa_lens", "prefill_swa_indices",
    "prefill_swa_lens", "local",
)  # fmt: skip
"""Fields that layers read and that must stay where they are."""


def addresses(metadata: Any) -> dict[str, int]:
    """Addresses of every non-empty tensor that a layer reads through the field map."""
    return {
        path: tensor.data_ptr()
        for name in _OURS
        for path, tensor in tensors_of(getattr(metadata, name), name)
        if tensor.numel()
    }


def read_reports(folder: Path) -> list[dict[str, Any]]:
    """Load the reports that every process of a run left in ``folder``."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
