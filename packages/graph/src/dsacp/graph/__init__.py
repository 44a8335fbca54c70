"""Capture and replay over CUDA, ACL and a CPU tape, and the guard of the five invariants."""

from dsacp.graph.backends import Backend, CpuBackend, GraphApi, StreamBackend, make_backend
from dsacp.graph.capture import Graph, capture
from dsacp.graph.guard import GraphGuard
from dsacp.graph.guard.alias import check_isolated
from dsacp.graph.guard.walk import Found, tensors_of, walk
from dsacp.graph.guard.words import POISON_WORD
from dsacp.graph.hot_path.jit import no_jit_compile
from dsacp.graph.hot_path.launches import LaunchCounter
from dsacp.graph.hot_path.sync import no_host_sync
from dsacp.graph.tape import CpuTape, is_recording

__all__ = [
    "POISON_WORD",
    "Backend",
    "CpuBackend",
    "CpuTape",
    "Found",
    "Graph",
    "GraphApi",
    "GraphGuard",
    "LaunchCounter",
    "StreamBackend",
    "capture",
    "check_isolated",
    "is_recording",
    "make_backend",
    "no_host_sync",
    "no_jit_compile",
    "tensors_of",
    "walk",
]
