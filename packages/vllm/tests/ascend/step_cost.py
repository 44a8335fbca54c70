"""Prints what a speculative step costs with upstream's builder and with ours.

    python packages/vllm/tests/ascend/step_cost.py --drafts 3 5 --requests 16 --tp 4

Launches are exact and the same on every machine; host times compare two builders on one machine.
"""

import argparse
from collections.abc import Iterator, Sequence
from importlib.metadata import version

import ascend_double  # noqa: F401  first: it sets up the environment of vLLM's import
import torch
from ascend_double.proposal import Proposal
from ascend_double.scenario import stock
from ascend_double.step_cost import count_launches, measure_host

from dsacp.vllm.ascend.plugin import choose

HEADER = """\
| builder | K | first build | advance | draft builds | rest | launches | host us, median | least |
|---|---|---|---|---|---|---|---|---|"""


def rows(given: argparse.Namespace) -> Iterator[str]:
    """Yield a line for every K and builder."""
    for drafts in given.drafts:
        for name, cls in (("upstream", stock()), ("dsacp", choose(stock()))):
            proposal = Proposal(cls, drafts, given.requests, given.padded, given.tp)
            cost = count_launches(proposal, stock())
            time = measure_host(proposal, stock(), given.steps)
            cells = (name, drafts, *cost.parts, cost.total, round(time.median), round(time.least))
            yield "| " + " | ".join(map(str, cells)) + " |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--drafts", type=int, nargs="+", default=[3, 5], help="K")
    parser.add_argument("--requests", type=int, default=16, help="requests of the batch")
    parser.add_argument("--padded", type=int, help="requests of the captured bucket")
    parser.add_argument("--tp", type=int, default=4, help="ranks")
    parser.add_argument("--steps", type=int, default=200, help="steps whose host time is taken")
    given = parser.parse_args(arguments)
    given.padded = max(given.padded or 0, given.requests)
    torch.set_num_threads(1)
    print(
        f"vllm-ascend {version('vllm-ascend')}, {given.requests} requests in {given.padded}, "
        f"tp {given.tp}: one speculative step before the draft model's first forward\n\n{HEADER}"
    )
    for line in rows(given):
        print(line, flush=True)


if __name__ == "__main__":
    main()
