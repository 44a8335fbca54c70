"""Speaks up in engines that ask for dsacp, where every worker loads its model."""

from collections.abc import Callable
from functools import wraps
from typing import Any


def install_watch(around: Callable[[Any, Callable[..., Any]], Callable[..., Any]]) -> None:
    """Give every worker the chance to have its ``load_model`` wrapped; idempotent.

    Args:
        around: from a worker and its own ``load_model`` to what stands there instead.
    """
    from vllm.v1.worker.worker_base import WorkerBase

    if getattr(WorkerBase, "_dsacp_watched", False):
        return
    stock_init = WorkerBase.__init__

    @wraps(stock_init)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        stock_init(self, *args, **kwargs)
        stock = getattr(self, "load_model", None)
        if stock is not None and (ours := around(self, stock)) is not stock:
            self.load_model = ours

    WorkerBase.__init__ = init
    WorkerBase._dsacp_watched = True
