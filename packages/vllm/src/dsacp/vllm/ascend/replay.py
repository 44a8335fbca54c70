"""The method that vllm-ascend's draft path calls after every graph replay, and its one condition.

Upstream's DSA-CP attention class has none, so upstream's own drafting fails loudly there. With our
builders nothing has to be done: captured addresses hold the new values. With upstream's they do
not, so the no-op exists only once a builder of ours serves, and says no while one is refused.

The attention class outlives an engine, and so may an engine's builders: the framework names the
engine that replays by its speculative configuration, and only that engine's builders decide.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any
from weakref import WeakSet

from dsacp.core import UnsupportedHostError
from dsacp.vllm.ascend.settings import switched_off
from dsacp.vllm.settings import ENABLE_VARIABLE

NAME = "update_graph_params"
SPECULATIVE = "speculative_config"
POSITION = 4
"""Where upstream passes the speculative configuration: (stream, context, tokens, engine, this)."""


class ReplayNoOp:
    """Puts the no-op into one attention class.

    Args:
        impl: ``AscendDSACPImpl``.
    """

    def __init__(self, impl: Any) -> None:
        self._impl = impl
        self._builders: WeakSet[Any] = WeakSet()

    def watch(self, builder: Any) -> None:
        """Let a builder's ``dsacp_refused`` decide, for as long as the builder lives."""
        self._builders.add(builder)

    def serve(self) -> None:
        """Install the no-op, unless the class has a method of that name."""
        if not hasattr(self._impl, NAME):
            setattr(self._impl, NAME, staticmethod(self._update))

    def _update(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to do: captured addresses hold the new values.

        Raises:
            UnsupportedHostError: upstream builds for a layer, so its graphs hold freed addresses.
        """
        speculative = _speculative(args, kwargs)
        own = [builder for builder in self._builders if _belongs(builder, speculative)]
        if speculative is not None and not own and switched_off():
            raise _refused(f"none in an engine that {ENABLE_VARIABLE} leaves to upstream")
        # a configuration that was copied on its way names no engine: then all builders decide
        for builder in own or self._builders:
            if builder.dsacp_refused is not None:
                raise _refused(f"one left to the framework: {builder.dsacp_refused}")


def _speculative(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return args[POSITION] if len(args) > POSITION else kwargs.get(SPECULATIVE)


def _belongs(builder: Any, speculative: Any) -> bool:
    return speculative is not None and builder.speculative_config is speculative


def _refused(found: str) -> UnsupportedHostError:
    return UnsupportedHostError(
        "expected dsacp to build the metadata of every DSA-CP layer whose graph is replayed, found "
        f'{found}: change that, or put "enforce_eager": true into the speculative configuration'
    )


@cache
def replay_of(impl: Any) -> ReplayNoOp:
    """Return the one ``ReplayNoOp`` of an attention class."""
    return ReplayNoOp(impl)
