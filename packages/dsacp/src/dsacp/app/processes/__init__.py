"""Processes that end together: signals that end a command, workers that end with their parent.

Nothing here imports torch: a worker watches its parent before it does.
"""
