"""Reads a model's ``config.json`` and checks the few values that the doctor looks at."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsacp.app.files import read_text
from dsacp.core import INT32_MAX, LayoutError, check_whole

WHOLE = (
    "max_position_embeddings",
    "original_max_position_embeddings",
    "qk_rope_head_dim",
    "sliding_window",
)
NUMBERS = ("factor", "compress_rope_theta")
NESTED = ("rope_scaling", "rope_parameters")


def read_model(path: Path | None) -> Mapping[str, Any] | None:
    """Read a model's ``config.json`` (or the folder that holds it), None where none is named.

    Raises:
        LayoutError: the file is missing or no JSON object, or a value is of the wrong kind.
    """
    if path is None:
        return None
    file = path / "config.json" if path.is_dir() else path
    text = read_text(file, LayoutError)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LayoutError(
            f"{file}: expected a model's config.json, found an error: {error}: check the file"
        ) from None
    _check(file, content)
    for name in NESTED:
        if content.get(name) is not None:
            _check(f"{file}: {name}", content[name])
    return dict(content)


def _check(where: object, content: object) -> None:
    if not isinstance(content, dict):
        raise LayoutError(
            f"expected a JSON object in {where}, found {type(content).__name__}: check the file"
        )
    for name in WHOLE:
        if content.get(name) is not None:
            check_whole(f"{name} in {where}", content[name], 1)
    for name in NUMBERS:
        value = content.get(name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (number and 0 <= value <= INT32_MAX and math.isfinite(value)):
            raise LayoutError(
                f"expected {name} in {where} as a number of 0..{INT32_MAX}, found "
                f"{str(value)[:40]!r}: check the file"
            )
