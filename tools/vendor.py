"""Copy a package, with the packages it stands on, into the tree of a fork.

    python tools/vendor.py rope-proxy ../my-engine/third_party/dsacp

A bare copy of a folder does not resolve: its siblings are named as members of this workspace. The
copies name them by path instead, so that pip and uv install them from anywhere in the fork. Each
copy carries a stamp with the digests of its files: only what still fits its stamp is ever replaced.
"""

import argparse
import fnmatch
import hashlib
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("pyproject.toml", "README.md", "src", "tests")
BY_PRODUCTS = ("__pycache__", "*.egg-info", ".hypothesis", ".pytest_cache")
"""What installing and testing leave in a folder; neither copied nor missed."""
STAMP = ".dsacp-vendored.json"
SHOWN = 5
"""Files that a message names before it only counts them."""


class VendorError(Exception):
    """A package is unknown, or the destination is not ours to write."""


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

    Copies are complete beside their places before the first of them moves in, and what they
    replace moves back if one of them cannot.

    Raises:
        VendorError: the package is unknown, a place overlaps the workspace, or is taken by
            something else than an unchanged copy that ``replace`` renews, or cannot be written.
            The destination is then as it was.
    """
    folders = closure(package, root)
    siblings = [path.name for path in distributions(root).values()]
    projects = {
        folder: rewrite_sources((folder / "pyproject.toml").read_text(), siblings)
        for folder in folders
    }
    targets = [destination / folder.name for folder in folders]
    try:
        _check_apart(targets, root)
        _check_places(destination, targets, replace=replace)
        destination.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            prefix=".dsacp-vendor-", dir=destination, ignore_cleanup_errors=True
        ) as name:
            fresh = Path(name) / "fresh"
            for folder in folders:
                _copy(folder, fresh / folder.name, root, projects[folder])
            _move_in(fresh, Path(name), targets)
    except (OSError, RuntimeError) as error:  # the latter for links in a circle
        raise VendorError(
            f"expected {destination} to take the copies, found: {error}: name a folder that can "
            "be written"
        ) from None
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


def _check_apart(targets: Iterable[Path], root: Path) -> None:
    """Refuse targets in the workspace, or around it: replacing them would delete the sources.

    Files are compared, not names, so that links and other spellings of a path are seen through.
    """
    workspace = root.resolve()
    for target in targets:
        place = target.resolve()
        if _holds(workspace, place) or _holds(place, workspace):
            raise VendorError(
                f"expected a destination apart from the workspace {workspace}, found {target}: "
                "name a folder of the fork"
            )


def _holds(outer: Path, inner: Path) -> bool:
    return outer.exists() and any(
        place.exists() and place.samefile(outer) for place in (inner, *inner.parents)
    )


def _check_places(destination: Path, targets: Iterable[Path], *, replace: bool) -> None:
    """Refuse a destination that is no folder, and targets that are not ours to replace."""
    for place in (destination, *destination.parents):
        if os.path.lexists(place) and not place.is_dir():
            raise VendorError(f"expected a folder {place}, found something else: name another")
    taken = [target for target in targets if os.path.lexists(target)]
    if taken and not replace:
        raise VendorError(
            f"expected free folders, found {_some(map(str, taken))}: use --replace to renew copies"
        )
    for target in taken:
        _check_ours(target)


def _check_ours(target: Path) -> None:
    """Refuse to replace what this tool did not write, or what was changed since."""
    if target.is_symlink() or not target.is_dir():
        raise VendorError(
            f"expected a copied folder {target}, found a link or a file: remove it yourself"
        )
    try:
        stamp = json.loads((target / STAMP).read_text())
        package, written = stamp["package"], dict(stamp["files"])
    except (OSError, ValueError, KeyError, TypeError):
        package, written = None, {}
    if package != target.name:
        raise VendorError(
            f"expected {target} with this tool's stamp {STAMP}, found none: it may hold work of "
            "yours, remove it yourself"
        )
    found = _digests(target)
    changed = sorted(name for name, digest in found.items() if written.get(name) != digest)
    if changed:
        raise VendorError(
            f"expected {target} as it was copied, found {len(changed)} new or changed files, "
            f"{_some(changed)}: keep them elsewhere, then remove the folder yourself"
        )


def _digests(folder: Path) -> Mapping[str, str]:
    return {
        path.relative_to(folder).as_posix(): _digest(path)
        for path in _files(folder)
        if path != folder / STAMP
    }


def _files(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if any(fnmatch.fnmatch(path.name, pattern) for pattern in BY_PRODUCTS):
            continue
        if path.is_dir() and not path.is_symlink():
            yield from _files(path)
        else:
            yield path


def _digest(path: Path) -> str:
    if path.is_symlink() or not path.is_file():
        return "no regular file"  # copies have none
    # a fork's checkout may turn line ends around
    return hashlib.sha256(path.read_bytes().replace(b"\r\n", b"\n")).hexdigest()


def _some(names: Iterable[str]) -> str:
    known = list(names)
    more = f" and {len(known) - SHOWN} more" if len(known) > SHOWN else ""
    return ", ".join(known[:SHOWN]) + more


def _copy(folder: Path, target: Path, root: Path, project: str) -> None:
    target.mkdir(parents=True)
    for part in PARTS:
        source = folder / part
        if source.is_dir():
            ignored = shutil.ignore_patterns(*BY_PRODUCTS)
            shutil.copytree(source, target / part, ignore=ignored)
        elif source.exists():
            shutil.copy2(source, target / part)
    shutil.copy2(root / "LICENSE", target / "LICENSE")
    (target / "pyproject.toml").write_text(project)
    stamp = {"package": target.name, "files": _digests(target)}
    (target / STAMP).write_text(json.dumps(stamp, indent=1) + "\n")


def _move_in(fresh: Path, aside: Path, targets: Iterable[Path]) -> None:
    """Put every fresh copy in its place, or all places back as they were."""
    moved: list[tuple[Path, Path]] = []
    try:
        for target in targets:
            for source, place in ((target, aside / target.name), (fresh / target.name, target)):
                if source.exists():
                    source.rename(place)
                    moved.append((source, place))
    except BaseException:
        for source, place in reversed(moved):
            place.rename(source)
        raise


def _load(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text())


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("package", help="folder or distribution name, such as rope-proxy")
    parser.add_argument("destination", type=Path, help="folder of the fork that gets the copies")
    parser.add_argument("--replace", action="store_true", help="renew copies that are unchanged")
    options = parser.parse_args(arguments)
    try:
        copies = vendor(options.package, options.destination, replace=options.replace)
    except VendorError as error:
        print(error, file=sys.stderr)
        return 1
    print(shlex.join(["pip", "install", *(part for copy in copies for part in ("-e", str(copy)))]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
