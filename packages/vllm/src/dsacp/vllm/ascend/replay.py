"""The method that vllm-ascend's draft path calls after every graph replay, and its one condition.

Upstream's DSA-CP attention class has none, so upstream's own drafting fails loudly there. With our
builders nothing has to be done: captured addresses hold the new values. With upstream's they do
not, so the no-op exists only once a builder of ours serves, and says no while one is refused.
"""

from functools import cache
from typing import Any
from weakref import WeakSet

from dsacp.core import UnsupportedHostError

NAME = "update_graph_params"


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
        del args, kwargs
        for builder in self._builders:
            if builder.dsacp_refused is not None:
                raise UnsupportedHostError(
                    "expected dsacp to build the metadata of every DSA-CP layer whose graph is "
                    f"replayed, found one left to the host: {builder.dsacp_refused}: change that, "
                    'or put "enforce_eager": true into the speculative configuration'
                )


@cache
def replay_of(impl: Any) -> ReplayNoOp:
    """Return the one ``ReplayNoOp`` of an attention class."""
    return ReplayNoOp(impl)
