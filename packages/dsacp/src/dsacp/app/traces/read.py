"""Reads serving traces: the Azure CSV form, or JSON lines."""

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from dsacp.app.files import read_text
from dsacp.core import INT32_MAX, DsacpError

CSV_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
JSON_KEYS = ("timestamp", "input_length", "output_length")
LONGEST_MS = 1e15
"""Beyond it a float no longer tells one step of the clock from the next."""
DEFAULT_TRACE = "recorded.jsonl"
"""Requests as vLLM's scheduler saw them: ``python -m dsacp.vllm.record FILE`` wrote it."""

T = TypeVar("T")


class TraceError(DsacpError):
    """A trace file, or one of its lines, cannot be read."""


@dataclass(frozen=True)
class TraceRequest:
    """One request of a trace.

    Attributes:
        arrival_ms: milliseconds after the first request.
        input_length: prompt tokens, 1..2**31 - 1.
        output_length: tokens to generate, 1..2**31 - 1.
    """

    arrival_ms: float
    input_length: int
    output_length: int


def load_trace(path: Path | None, limit: int | None = None) -> tuple[TraceRequest, ...]:
    """Read a trace ordered by arrival; the packaged one when ``path`` is None.

    Args:
        path: a CSV file with the Azure columns, or JSON lines with ``timestamp`` (milliseconds),
            ``input_length`` and ``output_length``; the first line tells which.
        limit: requests to keep.

    Raises:
        TraceError: the file cannot be read, has no request, or a line is wrong; the message has
            the file, the line number and the reason.
    """
    name, text = _read(path)
    # splitlines would also part lines at separators that JSON strings may hold
    lines = text.split("\n")
    first = next((line for line in lines if line.strip()), "")
    parse = _parse_json if first.lstrip().startswith("{") else _parse_csv
    requests = sorted(parse(name, lines), key=lambda request: request.arrival_ms)
    if not requests:
        raise TraceError(f"{name}: expected at least one request, found none: check the file")
    origin = requests[0].arrival_ms
    return tuple(
        TraceRequest(request.arrival_ms - origin, request.input_length, request.output_length)
        for request in requests[:limit]
    )


def dump_trace(requests: Iterable[TraceRequest]) -> str:
    """Return requests as JSON lines that ``load_trace`` reads back."""
    rows = (
        dict(
            zip(
                JSON_KEYS,
                (request.arrival_ms, request.input_length, request.output_length),
                strict=True,
            )
        )
        for request in requests
    )
    return "".join(json.dumps(row) + "\n" for row in rows)


def trace_file(path: Path | None) -> Path | None:
    """Return the file that ``load_trace`` reads; None if the packaged trace lies in no file."""
    if path is not None:
        return path
    packaged = _packaged()
    return packaged if isinstance(packaged, Path) else None


def _packaged() -> Traversable:
    return resources.files("dsacp.app") / "data" / DEFAULT_TRACE


def _read(path: Path | None) -> tuple[str, str]:
    if path is None:
        return DEFAULT_TRACE, _packaged().read_text(encoding="utf-8")
    return str(path), read_text(path, TraceError)


def _parse_csv(name: str, lines: list[str]) -> Iterator[TraceRequest]:
    reader = csv.reader(lines)
    rows = _csv_rows(name, reader)
    header = [column.strip() for column in next(rows, [])]
    if header != list(CSV_COLUMNS):
        line = max(reader.line_num, 1) if header else 1
        _bad(name, line, f"expected the header {','.join(CSV_COLUMNS)}, found {_cut(header)}")
    for row in rows:
        line = reader.line_num
        if len(row) != len(CSV_COLUMNS):
            _bad(name, line, f"expected {len(CSV_COLUMNS)} columns, found {len(row)}")
        arrival = _convert(name, line, CSV_COLUMNS[0], row[0], _clock_ms)
        lengths = (
            _convert(name, line, column, value, _digits)
            for column, value in zip(CSV_COLUMNS[1:], row[1:], strict=True)
        )
        yield TraceRequest(arrival, *lengths)


def _csv_rows(name: str, reader: Any) -> Iterator[list[str]]:
    """Yield rows that hold something; ``reader`` is one of the csv module."""
    while True:
        try:
            row = next(reader, None)
        except csv.Error as error:
            _bad(name, reader.line_num, f"expected a line of CSV, found an error: {error}")
        if row is None:
            return
        if any(value.strip() for value in row):
            yield row


def _parse_json(name: str, lines: list[str]) -> Iterator[TraceRequest]:
    for line, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
            # besides bad syntax: integers with thousands of digits, and deep nesting
            _bad(name, line, f"expected a JSON object, found an error: {error}")
        if not isinstance(row, dict):
            _bad(name, line, f"expected a JSON object, found {type(row).__name__}")
        missing = [key for key in JSON_KEYS if key not in row]
        if missing:
            _bad(name, line, f"expected the keys {', '.join(JSON_KEYS)}, missing {missing}")
        yield TraceRequest(
            _convert(name, line, JSON_KEYS[0], row[JSON_KEYS[0]], _milliseconds),
            _convert(name, line, JSON_KEYS[1], row[JSON_KEYS[1]], _length),
            _convert(name, line, JSON_KEYS[2], row[JSON_KEYS[2]], _length),
        )


def _convert(name: str, line: int, key: str, value: Any, read: Callable[[Any], T]) -> T:
    try:
        return read(value)
    except (TypeError, ValueError, OverflowError) as error:
        _bad(name, line, f"{key}: {error}")


def _length(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"expected a whole number of tokens, found {_cut(value)}")
    if value < 1:
        raise ValueError(f"expected at least 1 token, found {_cut(value)}")
    if value > INT32_MAX:
        raise ValueError(f"expected at most {INT32_MAX} tokens, found {_cut(value)}")
    return value


def _digits(value: str) -> int:
    text = value.strip()
    if not re.fullmatch("-?[0-9]{1,4000}", text):
        raise ValueError(f"expected a whole number of tokens, found {_cut(value)}")
    return _length(int(text))


def _milliseconds(value: object) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not abs(value) < LONGEST_MS:  # type: ignore[arg-type]
        raise ValueError(
            f"expected milliseconds as a finite number below {LONGEST_MS:.0e}, found {_cut(value)}"
        )
    return float(value)  # type: ignore[arg-type]


def _cut(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"


def _clock_ms(value: str) -> float:
    try:
        moment = datetime.fromisoformat(value.strip())
    except ValueError:
        raise ValueError(f"expected a date and time, found {_cut(value)}") from None
    # Only differences matter; a fixed zone keeps a daylight-saving hour out of them.
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000.0


def _bad(name: str, line: int, reason: str) -> NoReturn:
    raise TraceError(f"{name}:{line}: {reason}")
