"""Tests of compiled code need both compilers; the others run anywhere with a C compiler."""

import sys
from pathlib import Path

import pytest

from dsacp.ascend_ir import IrError
from dsacp.ascend_ir.execute import preload

sys.path.append(str(Path(__file__).parent))


def absent() -> str:
    """Return why compiled code cannot run here, or an empty string."""
    try:
        preload()
    except IrError as error:
        return str(error)
    return ""


@pytest.fixture(scope="session")
def compilers() -> None:
    """Skip a test where a compiler is absent."""
    if why := absent():
        pytest.skip(why)


@pytest.fixture(autouse=True, scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory):
    """Compile into a folder of this run, unless one was chosen."""
    with pytest.MonkeyPatch.context() as patch:
        import os

        if "DSACP_ASCEND_IR_CACHE" not in os.environ:
            patch.setenv("DSACP_ASCEND_IR_CACHE", str(tmp_path_factory.mktemp("ascend-ir")))
        yield
