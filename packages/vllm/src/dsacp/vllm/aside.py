"""What one engine heard of us. A process may hold several in turn, and each hears for itself."""

import logging
from collections.abc import Iterable
from typing import Any

from dsacp.vllm.settings import Blocker

logger = logging.getLogger("vllm.dsacp")

_ATTRIBUTE = "_dsacp_engine"


class Engine:
    """State of one engine in one process.

    Attributes:
        refused: reasons to stand aside that its configuration does not show.
        adopted: whether a draft layer of it names our backend.
        unfinished: bool [rows] on the device, set where a row of the batch is a chunk of an
            unfinished prompt; None where the framework does not say.
        chosen: the builder class that each of the framework's is served with (vllm-ascend).
    """

    def __init__(self) -> None:
        self.refused: list[Blocker] = []
        self.adopted = False
        self.unfinished: Any = None
        self.chosen: dict[Any, Any] = {}
        self._said: set[str] = set()

    def __reduce__(self) -> tuple[type["Engine"], tuple[()]]:
        """Start afresh in the process that a configuration is sent to."""
        return Engine, ()

    def warn_once(self, line: str, *, quiet: bool = False) -> None:
        """Log a line once an engine; ``quiet`` only counts it as said."""
        if line not in self._said:
            self._said.add(line)
            if not quiet:
                logger.warning("%s", line)

    def stand_aside(self, reasons: list[Blocker], *, quiet: bool = False) -> None:
        """Say once, in one line, why the engine runs as if dsacp were not installed."""
        line = f"dsacp stands aside, the engine is unchanged: {listed(reasons)}"
        self.warn_once(line, quiet=quiet)


def listed(reasons: Iterable[Blocker]) -> str:
    """Return reasons as one line; what has the same remedy is listed before it once."""
    by_remedy: dict[str, dict[str, None]] = {}
    for reason in reasons:
        by_remedy.setdefault(reason.remedy, {})[reason.found] = None
    parts = [f"found {', '.join(found)}; {remedy}" for remedy, found in by_remedy.items()]
    return "; ".join(parts)


def engine_of(vllm_config: Any) -> Engine:
    """Return the state of the engine that a configuration belongs to, made at the first call.

    The state lives and dies with the part of the configuration that vLLM registers an engine's
    layers in: copies of a configuration, as for a drafter, share it, other engines do not.
    """
    owned = vars(_owner(vllm_config))
    found: Engine = owned.setdefault(_ATTRIBUTE, Engine())
    return found


def new_engine(vllm_config: Any) -> Engine:
    """Forget what an earlier engine of the same configuration object heard."""
    vars(_owner(vllm_config)).pop(_ATTRIBUTE, None)
    return engine_of(vllm_config)


def current_engine() -> Engine:
    """Return the state of the engine whose configuration vLLM has set, or one for this call."""
    from vllm.config import get_current_vllm_config_or_none

    config = get_current_vllm_config_or_none()
    return Engine() if config is None else engine_of(config)


def _owner(vllm_config: Any) -> Any:
    return getattr(vllm_config, "compilation_config", None) or vllm_config
