"""Capture and replay over CUDA, ACL and a CPU tape, and the guard of the five invariants."""
