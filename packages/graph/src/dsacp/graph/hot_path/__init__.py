"""What must not happen between two replays: host syncs, compilation, launches nobody counted."""
