"""The trace that a run leaves behind. Needs no vLLM."""

import io
import json

from dsacp.vllm.recorder import TraceRecorder


def lines(stream: io.StringIO) -> list[dict[str, int]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_lines_come_in_the_order_of_arrival() -> None:
    times = iter([10.0, 10.25, 11.5])
    stream = io.StringIO()
    recorder = TraceRecorder(stream, clock=lambda: next(times))
    for name in "abc":
        recorder.arrived(name)
    recorder.finished("b", 70, 4)
    assert stream.getvalue() == ""
    recorder.finished("a", 5, 9)
    recorder.finished("c", 17, 1)
    assert lines(stream) == [
        {"timestamp": 0, "input_length": 5, "output_length": 9},
        {"timestamp": 250, "input_length": 70, "output_length": 4},
        {"timestamp": 1500, "input_length": 17, "output_length": 1},
    ]


def test_requests_that_answered_nothing_or_are_unknown_leave_no_line() -> None:
    stream = io.StringIO()
    recorder = TraceRecorder(stream, clock=lambda: 0.0)
    recorder.arrived("aborted")
    recorder.arrived("kept")
    recorder.finished("aborted", 5, 0)
    recorder.finished("never seen", 5, 5)
    recorder.finished("kept", 3, 2)
    assert [line["input_length"] for line in lines(stream)] == [3]
