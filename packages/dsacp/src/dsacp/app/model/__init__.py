"""A seeded DeepSeek-V4-shaped target and MTP drafter that metadata alone drives."""

from dsacp.app.model.config import ModelConfig

__all__ = ["ModelConfig"]
