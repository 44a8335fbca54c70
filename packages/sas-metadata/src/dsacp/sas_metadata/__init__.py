"""Planner, codec and explainer of the sparse-attention-shared-KV work split (int32[1024])."""
