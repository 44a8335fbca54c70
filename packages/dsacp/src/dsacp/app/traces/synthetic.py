"""Seeded traces of our own making, of any length; short ones serve the tests.

Run ``python -m dsacp.app.traces.synthetic > trace.jsonl`` to write one.
"""

import random
import sys

from dsacp.app.traces.read import TraceRequest, dump_trace

DEFAULT_REQUESTS = 24
DEFAULT_SEED = 7


def synthetic_trace(
    num_requests: int = DEFAULT_REQUESTS, seed: int = DEFAULT_SEED
) -> tuple[TraceRequest, ...]:
    """Return requests of mixed lengths that arrive in bursts, so that they join and leave.

    One prompt in six is long enough for chunked prefill and for a group of 128 tokens; one answer
    in five is a few tokens only. The same arguments give the same trace on every machine.
    """
    source = random.Random(seed)
    arrival = 0.0
    requests = []
    for index in range(num_requests):
        burst = index % 6 in (1, 2)
        arrival += 0.0 if index == 0 else source.uniform(0.0, 20.0 if burst else 420.0)
        prompt = source.randint(130, 210) if index % 6 == 4 else source.randint(3, 60)
        answer = source.randint(1, 4) if index % 5 == 3 else source.randint(16, 64)
        requests.append(TraceRequest(round(arrival, 1), prompt, answer))
    return tuple(requests)


if __name__ == "__main__":
    sys.stdout.write(dump_trace(synthetic_trace()))
