"""The ``dsacp`` command. Torch is imported when a command runs, so that help is fast."""

import contextlib
import os
import sys
import traceback

import typer

from dsacp.app.cli import bench, doctor, explain, replay, serve_demo
from dsacp.app.cli.common import DEFECT
from dsacp.app.processes.signals import Stopped, ends_on_signals

app = typer.Typer(
    help="Graph-safe draft metadata for DSA context parallelism.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(replay.replay)
app.command()(explain.explain)
app.command()(doctor.doctor)
app.command()(bench.bench)
_PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
app.command("serve-demo", context_settings=_PASSED_ON, add_help_option=False)(serve_demo.serve_demo)


def main() -> None:
    """Run the command; exits with 3 on a defect, for 1 says that something differs.

    A signal ends it with 128 + its number, at once: threads and peers have nothing to add.
    """
    try:
        with ends_on_signals():
            app()
    except Stopped as stopped:
        with contextlib.suppress(OSError):
            print(stopped, file=sys.stderr)
            sys.stdout.flush()
        os._exit(stopped.code)
    except Exception:
        traceback.print_exc()
        sys.exit(DEFECT)
