"""The trace that a run leaves behind. Needs no vLLM."""

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dsacp.vllm.recorder import SafeRecorder, TraceRecorder, wrap_scheduler


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


class Scheduler:
    """What the recorder wraps of vLLM's scheduler."""

    def __init__(self, **ranks: int) -> None:
        self.vllm_config = SimpleNamespace(parallel_config=SimpleNamespace(**ranks))
        self.freed: list[str] = []

    def add_request(self, request: Any) -> str:
        return f"added {request.request_id}"

    def _free_request(self, request: Any, delay_free_blocks: bool = False) -> bool:
        self.freed.append(request.request_id)
        return delay_free_blocks


def wrapped(target: Path) -> tuple[type[Scheduler], list[str]]:
    said: list[str] = []
    scheduler_cls = type("Wrapped", (Scheduler,), {})
    wrap_scheduler(scheduler_cls, SafeRecorder(str(target), said.append))
    return scheduler_cls, said


REQUEST = SimpleNamespace(request_id="a", num_prompt_tokens=5, num_output_tokens=7)


@pytest.mark.parametrize("request_", [REQUEST, SimpleNamespace(request_id="a")])
def test_a_trace_that_cannot_be_written_never_ends_the_engine(tmp_path, request_) -> None:
    """A folder that does not exist, or a request of another shape: one line, and no trace."""
    folder = tmp_path if request_ is not REQUEST else tmp_path / "none"
    scheduler_cls, said = wrapped(folder / "trace.jsonl")
    scheduler = scheduler_cls(data_parallel_index=0)
    for _ in range(2):
        assert scheduler.add_request(request_) == "added a"
        assert scheduler._free_request(request_, delay_free_blocks=True) is True
    assert scheduler.freed == ["a", "a"]
    (line,) = said
    assert "trace.jsonl, the engine goes on" in line


@pytest.mark.parametrize(
    ("ranks", "name"),
    [
        ({"data_parallel_index": 0, "data_parallel_rank": 0}, "trace.jsonl"),
        ({"data_parallel_index": 1, "data_parallel_rank": 0}, "trace.dp1.jsonl"),
        ({"data_parallel_rank": 2}, "trace.dp2.jsonl"),
        ({}, "trace.jsonl"),
    ],
)
def test_data_parallel_cores_write_files_of_their_own(tmp_path, ranks, name) -> None:
    """Each core opened the same file for writing: the last one to start kept it."""
    scheduler_cls, said = wrapped(tmp_path / "trace.jsonl")
    scheduler = scheduler_cls(**ranks)
    scheduler.add_request(REQUEST)
    scheduler._free_request(REQUEST)
    assert said == []
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert json.loads((tmp_path / name).read_text())["output_length"] == 7
