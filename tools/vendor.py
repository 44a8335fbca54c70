"""Copy a package, with the packages it stands on, into the tree of a fork.

    python tools/vendor.py rope-proxy ../my-engine/third_party/dsacp

A bare copy of a folder does not resolve: its siblings are named as members of this workspace. The
copies name them by path instead, so that pip and uv install them from anywhere in the fork.
"""

import argparse
import re
import shutil
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("pyproject.toml", "README.md", "src", "tests")
LEFT_BEHIND = shutil.ignore_patterns("__pycache__", "*.egg-info", ".hypothesis", ".pytest_cache")


class VendorError(Exception):
    """A package is unknown, or the destination is taken."""


def distributions(root: Path = ROOT) -> dict[str, Path]:
    """Return the folder of every distribution of the workspace, by its name."""
    found = root.glob("packages/*/pyproject.toml")
    return {_load(path)["project"]["name"]: path.parent for path in sorted(found)}


def closure(package: str, root: Path = ROOT) -> list[Path]:
    """Return the folders of ``package`` and all that it stands on, lowest first.

    Args:
        package: a folder name ("rope-proxy") or a distribution name ("dsacp-rope-proxy").
        root: the workspace.

    Raises:
        VendorError: there is no such package.
    """
    known = distributions(root)
    names = {folder.name: name for name, folder in known.items()}
    # the command's folder and distribution are both called "dsacp"
    start = names.get(package, package)
    if start not in known:
        raise VendorError(f"expected a package of {sorted(names)}, found {package!r}")
    ordered: list[str] = []
    _visit(start, known, ordered)
    return [known[name] for name in ordered]


def vendor(
    package: str, destination: Path, *, replace: bool = False, root: Path = ROOT
) -> list[Path]:
    """Copy ``package`` and what it stands on below ``destination``; return the copies.

    Raises:
        VendorError: the package is unknown, or a folder exists and ``replace`` is not set. Nothing
            is copied then.
    """
    folders = closure(package, root)
    targets = [destination / folder.name for folder in folders]
    taken = [str(target) for target in targets if target.exists()]
    if taken and not replace:
        raise VendorError(f"expected free folders, found {taken}: use --replace to renew them")
    for folder, target in zip(folders, targets, strict=True):
        shutil.rmtree(target, ignore_errors=True)
        _copy(folder, target, root)
    return targets


def rewrite_sources(text: str, folders: Iterable[str]) -> str:
    """Return a pyproject whose workspace sources are paths to sibling folders.

    Args:
        text: the pyproject.
        folders: folders beside it; ``dsacp-core`` lies in ``core``.

    Raises:
        VendorError: a workspace source has no folder among ``folders``.
    """
    for folder in folders:
        name = re.escape(folder if folder == "dsacp" else f"dsacp-{folder}")
        path = f'\\g<1>{{ path = "../{folder}", editable = true }}'
        text = re.sub(rf"(?m)^({name} = )\{{ workspace = true \}}$", path, text)
    sources = tomllib.loads(text).get("tool", {}).get("uv", {}).get("sources", {})
    if left := [name for name, source in sources.items() if "workspace" in source]:
        raise VendorError(f"expected every workspace source among the copies, found {left} without")
    return text


def _visit(name: str, known: dict[str, Path], ordered: list[str]) -> None:
    if name in ordered:
        return
    project = _load(known[name] / "pyproject.toml")["project"]
    extras = project.get("optional-dependencies", {}).values()
    wanted = [*project.get("dependencies", []), *(item for extra in extras for item in extra)]
    for requirement in wanted:
        found = re.match(r"[A-Za-z0-9._-]+", requirement)
        if found and found[0] in known:
            _visit(found[0], known, ordered)
    ordered.append(name)


def _copy(folder: Path, target: Path, root: Path) -> None:
    target.mkdir(parents=True)
    for part in PARTS:
        source = folder / part
        if source.is_dir():
            shutil.copytree(source, target / part, ignore=LEFT_BEHIND)
        elif source.exists():
            shutil.copy2(source, target / part)
    shutil.copy2(root / "LICENSE", target / "LICENSE")
    pyproject = target / "pyproject.toml"
    siblings = [path.name for path in distributions(root).values()]
    pyproject.write_text(rewrite_sources(pyproject.read_text(), siblings))


def _load(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text())


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("package", help="folder or distribution name, such as rope-proxy")
    parser.add_argument("destination", type=Path, help="folder of the fork that gets the copies")
    parser.add_argument("--replace", action="store_true", help="renew copies that are there")
    options = parser.parse_args(arguments)
    try:
        copies = vendor(options.package, options.destination, replace=options.replace)
    except VendorError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"pip install {' '.join(f'-e {copy}' for copy in copies)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
