"""Capture and replay over CUDA, ACL and a CPU tape, and the guard of the five invariants."""

from dsacp.graph.alias import check_isolated
from dsacp.graph.backends import Backend, CpuBackend, GraphApi, StreamBackend, make_backend
from dsacp.graph.capture import Graph, capture
from dsacp.graph.guard import GraphGuard
from dsacp.graph.jit import no_jit_compile
from dsacp.graph.launches import LaunchCounter
from dsacp.graph.recording import is_recording
from dsacp.graph.sync import no_host_sync
from dsacp.graph.tape import CpuTape
from dsacp.graph.walk import Found, tensors_of, walk
from dsacp.graph.words import POISON_WORD

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
