"""Address-stable draft metadata for DSA context parallelism: arenas, cross-group cache, builder."""
