"""Replay of a trace, eager and by graph in lockstep: builders, executors, comparison, report."""
