from dataclasses import replace
from pathlib import Path

import pytest

from dsacp.app.replay.session import run_replay
from dsacp.app.replay.settings import ReplayConfig, resolve
from dsacp.app.traces.read import TraceError, TraceRequest, dump_trace, load_trace
from dsacp.app.traces.synthetic import synthetic_trace

CSV = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def json_line(timestamp, length):
    return f'{{"timestamp": {timestamp}, "input_length": {length}, "output_length": 1}}\n'


def write(folder, text, name="trace.txt"):
    path = folder / name
    path.write_text(text)
    return path


def test_azure_csv_counts_from_the_first_request(tmp_path):
    path = write(
        tmp_path,
        CSV + "2023-11-16 18:15:46.6805900,374,44\r\n\n2023-11-16 18:15:47.1805900,396,109\n",
    )
    assert load_trace(path) == (TraceRequest(0.0, 374, 44), TraceRequest(500.0, 396, 109))


def test_json_lines_are_sorted_by_arrival_and_limited(tmp_path):
    rows = (
        '{"timestamp": 30, "input_length": 5, "output_length": 1}\n\n'
        '{"timestamp": 10.5, "input_length": 7, "output_length": 2, "hash_ids": [1]}\n'
    )
    path = write(tmp_path, rows)
    assert load_trace(path) == (TraceRequest(0.0, 7, 2), TraceRequest(19.5, 5, 1))
    assert load_trace(path, 1) == (TraceRequest(0.0, 7, 2),)


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("TIMESTAMP,ContextTokens\n", 1, "expected the header"),
        (CSV + "2023-11-16 18:15:46,1,2\n2023-11-16 18:15:46,1\n", 3, "3 columns, found 2"),
        (CSV + "yesterday,1,2\n", 2, "TIMESTAMP: expected a date"),
        (CSV + "2023-11-16 18:15:46,1.5,2\n", 2, "ContextTokens: expected a whole number"),
        (CSV + "2023-11-16 18:15:46,1,\n", 2, "GeneratedTokens: expected a whole number"),
        (
            CSV + "2023-11-16 18:15:46,1,0\n",
            2,
            "GeneratedTokens: expected at least 1 token, found 0",
        ),
        ('{"timestamp": 1, "input_length": 1, "output_length": 1}\n{oops\n', 2, "expected a JSON"),
        ('{"timestamp": 1, "input_length": 1}\n', 1, "missing ['output_length']"),
        ('{"timestamp": NaN, "input_length": 1, "output_length": 1}\n', 1, "finite number"),
        (
            '{"timestamp": 1, "input_length": true, "output_length": 1}\n',
            1,
            "input_length: expected",
        ),
        ('{"timestamp": 1, "input_length": 1, "output_length": 1}\n[1]\n', 2, "found list"),
        (json_line("1", "9" * 5000), 1, "found an error: Exceeds the limit"),
        (json_line("1" * 400, "1"), 1, "timestamp: expected milliseconds as a finite number"),
        (json_line("1e999", "1"), 1, "timestamp: expected milliseconds as a finite number"),
        ('{"a": ' * 200_000, 1, "found an error: maximum recursion depth"),
        (json_line("1", "1000000000000"), 1, "at most 2147483647 tokens, found 1000000000000"),
        (json_line("1", "2147483648"), 1, "at most 2147483647 tokens"),
        (json_line("1", '"5"'), 1, "input_length: expected a whole number of tokens, found '5'"),
        (json_line("1", "1e3"), 1, "input_length: expected a whole number"),
        (json_line('"1"', "5"), 1, "timestamp: expected milliseconds"),
        (CSV + "2023-11-16 18:15:46,1_0,2\n", 2, "ContextTokens: expected a whole number"),
        (CSV + "2023-11-16 18:15:46,+5,2\n", 2, "ContextTokens: expected a whole number"),
        (CSV + "2023-11-16 18:15:46,\u0665,2\n", 2, "ContextTokens: expected a whole number"),
        (CSV + "2023-11-16 18:15:46,1," + "9" * 5000, 2, "GeneratedTokens: expected a whole"),
        (CSV + "2023-11-16 18:15:46,1,4294967296\n", 2, "at most 2147483647 tokens"),
        (CSV + "x" * 140_000 + ",1,2\n", 2, "field larger than field limit"),
        ("\nTIMESTAMP,ContextTokens\n", 2, "expected the header"),
    ],
)
def test_bad_line_names_file_line_and_reason(tmp_path, text, line, reason):
    path = write(tmp_path, text)
    with pytest.raises(TraceError) as caught:
        load_trace(path)
    message = str(caught.value)
    assert message.startswith(f"{path}:{line}: ")
    assert reason in message
    assert len(message) < 400


def test_blank_lines_are_skipped_before_the_first_one_too(tmp_path):
    path = write(tmp_path, f"\n  \n{CSV}\n2023-11-16 18:15:46,1,2\n")
    assert load_trace(path) == (TraceRequest(0.0, 1, 2),)
    separator = '{"timestamp": 1, "note": "\u2028", "input_length": 1, "output_length": 1}\n'
    assert load_trace(write(tmp_path, "\n" + separator)) == (TraceRequest(0.0, 1, 1),)


@pytest.mark.parametrize("special", ["/dev/zero", "."])
def test_what_may_never_end_is_not_read(special):
    with pytest.raises(TraceError, match="expected a regular file"):
        load_trace(Path(special))


def test_missing_and_empty_files_are_trace_errors(tmp_path):
    with pytest.raises(TraceError, match="readable text file"):
        load_trace(tmp_path / "absent.csv")
    with pytest.raises(TraceError, match="at least one request"):
        load_trace(write(tmp_path, CSV))


def test_packaged_trace_joins_and_leaves_and_is_chunked():
    """Recorded from the engine, so that only its use as the default can be checked."""
    trace = load_trace(None)
    assert 20 <= len(trace) <= 100
    assert trace[0].arrival_ms == 0
    assert trace[-1].arrival_ms > 20 * ReplayConfig().step_ms
    chunk = resolve(ReplayConfig(), trace).max_num_batched_tokens
    assert max(request.input_length for request in trace) > 2 * chunk
    assert min(request.input_length for request in trace) < 16
    assert len({request.output_length for request in trace}) > 10


def test_packaged_trace_runs_by_graph_for_the_most_part():
    config = ReplayConfig(drafter="none", max_num_seqs=6, max_num_batched_tokens=64, workers=1)
    result = run_replay(replace(config, tp=1), load_trace(None), lambda *_: None)
    assert result.ok
    captured = sum(count for size, count in result.buckets.items() if size)
    assert captured > 0.6 * result.steps
    assert all(result.buckets[size] > 0 for size in (4, 8, 16, 32))
    assert all(result.accepted[position] > 0 for position in (1, 2, 3))


def test_synthetic_traces_are_seeded_and_read_back(tmp_path):
    path = write(tmp_path, dump_trace(synthetic_trace(9, seed=2)))
    assert load_trace(path) == synthetic_trace(9, seed=2)
    assert synthetic_trace(9, seed=3) != synthetic_trace(9, seed=2)
