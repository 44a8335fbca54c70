import ast
import importlib
import inspect
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from dsacp.core import install_hint

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = sorted(path.parent for path in ROOT.glob("packages/*/pyproject.toml"))
NAMES = [package.name for package in PACKAGES]


def project(package: Path) -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    return table


def portion(package: Path) -> str:
    """The one import name that a package adds to the namespace."""
    (found,) = [path.name for path in (package / "src" / "dsacp").iterdir() if path.is_dir()]
    return f"dsacp.{found}"


def test_the_namespace_has_no_init() -> None:
    """An ``__init__`` in one portion would hide all the others from the import system."""
    assert list(ROOT.glob("packages/*/src/dsacp/__init__.py")) == []


def test_all_packages_share_one_version() -> None:
    assert len({project(package)["version"] for package in PACKAGES}) == 1


@pytest.mark.parametrize("package", PACKAGES, ids=NAMES)
def test_a_package_is_typed_and_explains_itself(package: Path) -> None:
    assert list(package.glob("src/dsacp/*/py.typed"))
    assert "```" in (package / "README.md").read_text()


@pytest.mark.parametrize("package", PACKAGES, ids=NAMES)
def test_every_sibling_that_is_imported_is_required(package: Path) -> None:
    """An import that only the workspace's shared environment satisfies breaks a lone install."""
    owners = {portion(other): project(other)["name"] for other in PACKAGES}
    meta = project(package)
    extras = meta.get("optional-dependencies", {}).values()
    asked = [*meta["dependencies"], *(item for extra in extras for item in extra)]
    reached = _reachable({_name(item) for item in asked})
    for source in package.glob("src/**/*.py"):
        for module in _imports(source):
            owner = owners.get(".".join(module.split(".")[:2]))
            # the command takes the plug-in where an engine is installed, and works without
            if owner and (package.name, owner) != ("dsacp", "dsacp-vllm"):
                assert owner in reached | {meta["name"]}, f"{source} imports {module}"


@pytest.mark.parametrize("package", PACKAGES, ids=NAMES)
def test_it_imports_alone_and_documents_every_public_name(package: Path) -> None:
    # also the engine's plug-ins: `dsacp doctor` loads them where no engine is installed
    module = importlib.import_module(portion(package))
    assert inspect.getdoc(module)
    for name in getattr(module, "__all__", []):
        item = getattr(module, name)
        if inspect.isclass(item) or inspect.isfunction(item):
            assert inspect.getdoc(item), name


@pytest.mark.parametrize("place", ["*.md", "docs", "packages", "tools", "benchmarks"])
def test_nothing_is_installed_from_an_index_that_has_it_not(place: str) -> None:
    """The README said ``pip install dsacp-vllm``, a name on PyPI that anybody may take."""
    found = [path for path in ROOT.glob(place) if path.is_file()]
    for folder in (path for path in ROOT.glob(place) if path.is_dir()):
        found += [path for kind in ("md", "py", "toml") for path in folder.rglob(f"*.{kind}")]
    assert found
    for path in found:
        if "tests" not in path.parts and ".venv" not in path.parts:
            for line in path.read_text().splitlines():
                assert not from_index(line), f"{path.relative_to(ROOT)}: {line.strip()}"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("$ pip install dsacp dsacp-vllm", True),
        ("`pip install dsacp-vllm` next to", True),
        ("uv add 'dsacp-kernels[cuda]'", True),
        ("elsewhere `pip install -U torch dsacp`", True),
        ("install dsacp-kernels[cuda] or", True),
        ("pip install dist/dsacp*.whl", False),
        ("pip install ./packages/core -e packages/dsacp", False),
        ("`pip install torch` in a clone of dsacp", False),
        ("pip uninstall dsacp-vllm", False),
    ],
)
def test_installs_from_an_index_are_told_from_those_of_a_clone(line: str, expected: bool) -> None:
    assert from_index(line) is expected


def from_index(line: str) -> bool:
    """Whether a line installs a distribution of dsacp by its bare name."""
    name = r"(?<![\w./-])dsacp(?:-[a-z-]+)?(?![\w.*/:-])"
    command = r"(?:\bpip3? install|\buv add|\buvx)\b[^`&|;#]*?"
    return re.search(rf"{command}{name}|\binstall {name}", line) is not None


@pytest.mark.parametrize("package", PACKAGES, ids=NAMES)
def test_hints_name_the_folder_of_every_distribution(package: Path) -> None:
    """Messages said ``pip install dsacp-vllm``, a name on no index that anybody may take."""
    hint = install_hint(f"{project(package)['name']}[extra]", "torch>=2")
    command = f"pip install './packages/{package.name}[extra]' 'torch>=2'"
    assert hint == f"`{command}` in a clone of dsacp"


def _name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found, requirement
    return found[0]


def _reachable(names: set[str]) -> set[str]:
    """Add what the siblings among ``names`` require in turn."""
    known = {project(package)["name"]: project(package)["dependencies"] for package in PACKAGES}
    reached: set[str] = set()
    while names:
        reached |= names
        wanted = {_name(item) for name in names for item in known.get(name, [])}
        names = wanted - reached
    return reached


def _imports(source: Path) -> set[str]:
    modules: set[str] = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module)
    return modules
