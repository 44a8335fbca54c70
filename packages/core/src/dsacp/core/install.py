"""How messages say what to install: dsacp is on no package index, a clone or its wheels have it."""

import re
import shlex


def install_hint(*requirements: str) -> str:
    """Return a command that installs what is missing beside the rest of dsacp.

    Args:
        requirements: distributions with their extras, of dsacp ("dsacp-vllm[cpu]") or others.
    """
    command = shlex.join(["pip", "install", *map(_in_a_clone, requirements)])
    return f"`{command}` in a clone of dsacp"


def _in_a_clone(requirement: str) -> str:
    """Turn a distribution of dsacp into its folder; ``dsacp-core`` lies in ``packages/core``."""
    return re.sub(r"^(?:dsacp-(?=\w)|(?=dsacp\b))", "./packages/", requirement)
