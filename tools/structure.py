"""Measures the tree itself: files, faces, circles, rooms, and the hops of the hot path.

    python tools/structure.py [CHECKOUT] [--trace]

The figures say where a reader gets lost. None is a goal in itself, and nothing here fails a build.
"""

import argparse
import ast
import importlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

HERE = Path(__file__).resolve().parents[1]
NAMESPACE = "dsacp"
SMALL, LARGE = 60, 400
"""Lines below which a file needs a reason, and above which one asks oneself."""
WARM_BUILDS = 3


@dataclass(frozen=True)
class Import:
    """One imported module.

    Attributes:
        name: dotted, what is taken from the module included.
        target: the module's own name.
        typing: whether only type checkers see the import.
        taken: whether it was taken from its package (``from a import b``). The name may then be
            that of a function as well as a submodule's, and the face decides.
    """

    name: str
    target: str
    typing: bool
    taken: bool


@dataclass(frozen=True)
class Module:
    """One source file.

    Attributes:
        name: dotted.
        lines: in the file.
        public: entries of its ``__all__``.
        imports: modules of this workspace that it imports, at any depth of its code.
    """

    name: str
    lines: int
    public: tuple[str, ...]
    imports: frozenset[Import]

    @property
    def package(self) -> str:
        """The distribution's import name, ``dsacp.core``."""
        return ".".join(self.name.split(".")[:2])


@dataclass(frozen=True)
class Trace:
    """Python frames of one warm ``build_all`` on the CPU.

    Attributes:
        frames: functions entered.
        files: files they lie in.
        hops: calls from one file into another.
    """

    frames: int
    files: int
    hops: int


@dataclass(frozen=True)
class Structure:
    """What ``measure`` found.

    Attributes:
        files: Python files under packages/*/src.
        lines: in them.
        public_names: ``__all__`` entries of the packages' top ``__init__``.
        past_faces: (importing module, name taken from a submodule of another package).
        circles: modules of one package that import each other in a circle.
        typing_circles: circles that only imports for type checkers close.
        small: files under 60 lines.
        large: files over 400 lines.
        rooms: modules and subpackages at the top of every package.
    """

    files: int
    lines: int
    public_names: int
    past_faces: tuple[tuple[str, str], ...]
    circles: tuple[tuple[str, ...], ...]
    typing_circles: tuple[tuple[str, ...], ...]
    small: tuple[str, ...]
    large: tuple[str, ...]
    rooms: dict[str, int]


def sources(root: Path) -> list[Path]:
    """Return the source folders of a checkout.

    Raises:
        FileNotFoundError: there are none, so this is no checkout.
    """
    found = sorted(path for path in root.glob("packages/*/src") if path.is_dir())
    if not found:
        raise FileNotFoundError(
            f"expected packages/*/src in {root}, found none: name the root of a checkout"
        )
    return found


def measure(root: Path) -> Structure:
    """Measure a checkout without importing anything of it."""
    modules = read_modules(sources(root))
    hard = {name: _targets(module, typing=False) for name, module in modules.items()}
    soft = {name: _targets(module, typing=True) for name, module in modules.items()}
    circles = circles_within(modules, hard)
    faces = [module for name, module in modules.items() if name == module.package]
    return Structure(
        files=len(modules),
        lines=sum(module.lines for module in modules.values()),
        public_names=sum(len(module.public) for module in faces),
        past_faces=tuple(past_faces(modules)),
        circles=circles,
        typing_circles=tuple(set(circles_within(modules, soft)) - set(circles)),
        small=tuple(name for name, module in modules.items() if module.lines < SMALL),
        large=tuple(name for name, module in modules.items() if module.lines > LARGE),
        rooms=count_rooms(modules),
    )


def read_modules(folders: Iterable[Path]) -> dict[str, Module]:
    """Parse every file of the folders; returns the modules by name."""
    paths = {_dotted(folder, path): path for folder in folders for path in folder.rglob("*.py")}
    return {name: _read(name, path, paths) for name, path in sorted(paths.items())}


def _dotted(folder: Path, path: Path) -> str:
    parts = path.relative_to(folder).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _read(module: str, path: Path, known: Mapping[str, Path]) -> Module:
    text = path.read_text()
    tree = ast.parse(text, str(path))
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found = frozenset(
        Import(name, _known(name, known), typing, isinstance(node, ast.ImportFrom))
        for node, typing in _statements(tree)
        for name in _imported(node, package)
        if name.split(".")[0] == NAMESPACE
    )
    return Module(module, len(text.splitlines()), _public(tree), found)


def _statements(node: ast.AST, typing: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """Yield every node, and whether only type checkers get there."""
    yield node, typing
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
        for inside, only in ((node.body, True), (node.orelse, typing)):
            for statement in inside:
                yield from _statements(statement, only)
        return
    for child in ast.iter_child_nodes(node):
        yield from _statements(child, typing)


def _imported(node: ast.AST, package: str) -> Iterator[str]:
    """Yield what an import names, names that are taken from a module among them."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        origin = node.module or ""
        if node.level:
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            origin = ".".join([*above, *filter(None, [origin])])
        yield from (f"{origin}.{alias.name}" for alias in node.names)


def _known(target: str, known: Mapping[str, Path]) -> str:
    """Return the module that a dotted name leads to: the longest prefix that is a file."""
    while target not in known and "." in target:
        target = target.rpartition(".")[0]
    return target


def _public(tree: ast.Module) -> tuple[str, ...]:
    for assigned in (node for node in tree.body if isinstance(node, ast.Assign)):
        if any(isinstance(name, ast.Name) and name.id == "__all__" for name in assigned.targets):
            return tuple(ast.literal_eval(assigned.value))
    return ()


def _targets(module: Module, *, typing: bool) -> set[str]:
    """Return what a module imports; ``typing`` adds what only type checkers see."""
    return {found.target for found in module.imports if typing or not found.typing}


def past_faces(modules: Mapping[str, Module]) -> Iterator[tuple[str, str]]:
    """Yield every name from another package's submodule that its face does not promise."""
    for name, module in modules.items():
        past = {found.name for found in module.imports if not _at_face(found, module, modules)}
        yield from ((name, taken) for taken in sorted(past))


def _at_face(found: Import, module: Module, modules: Mapping[str, Module]) -> bool:
    owner = ".".join(found.target.split(".")[:2])
    if owner in (found.target, module.package) or found.target == NAMESPACE:
        return True
    face = modules.get(owner)
    promised = () if face is None else face.public
    return found.taken and found.name in {f"{owner}.{entry}" for entry in promised}


def circles_within(
    modules: Mapping[str, Module], imports: Mapping[str, set[str]]
) -> tuple[tuple[str, ...], ...]:
    """Return the strongly connected components of every package that hold several modules."""
    edges = {
        name: {
            target
            for target in imports[name]
            if target in modules and modules[target].package == module.package and target != name
        }
        for name, module in modules.items()
    }
    return tuple(sorted(group for group in components(edges) if len(group) > 1))


def components(edges: Mapping[str, set[str]]) -> list[tuple[str, ...]]:
    """Return the strongly connected components of a graph: nodes that reach each other."""
    reached = {node: _reach(node, edges) for node in edges}
    groups = {
        tuple(sorted(other for other in reached[node] if node in reached[other])) for node in edges
    }
    return sorted(groups)


def _reach(start: str, edges: Mapping[str, set[str]]) -> set[str]:
    seen, todo = {start}, [start]
    while todo:
        new = edges[todo.pop()] - seen
        seen |= new
        todo += new
    return seen


def count_rooms(modules: Mapping[str, Module]) -> dict[str, int]:
    """Return how many modules and subpackages lie at the top of every package."""
    rooms = {
        (module.package, name.split(".")[2])
        for name, module in modules.items()
        if name != module.package and len(name.split(".")) > 2
    }
    return dict(Counter(package for package, _ in sorted(rooms)))


def trace(root: Path) -> Trace:
    """Trace a warm ``build_all`` of a checkout, in a process that has its packages."""
    path = os.pathsep.join(map(str, sources(root)))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, str(root), "--traced"]
    answer = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    return Trace(**json.loads(answer.stdout))


def profile(call: Callable[[], Any]) -> Trace:
    """Count the Python frames of a call, its own among them."""
    files: set[str] = set()
    frames = hops = 0

    def entered(frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal frames, hops
        if event != "call":
            return
        frames += 1
        here, caller = frame.f_code.co_filename, frame.f_back
        files.add(here)
        # the first frame's caller is this function, which is no part of what is measured
        hops += frames > 1 and caller is not None and caller.f_code.co_filename != here

    sys.setprofile(entered)
    try:
        call()
    finally:
        sys.setprofile(None)
    return Trace(frames, len(files), hops)


def warm_build(requests: int = 16, drafts: int = 3, tp_size: int = 4) -> Callable[[], Any]:
    """Return a warm ``build_all`` of a captured batch, of one group without plans."""
    torch = importlib.import_module("torch")
    core, cache, rope = (
        importlib.import_module(f"{NAMESPACE}.{name}")
        for name in ("core", "drafting_cache", "rope_proxy")
    )
    torch.set_num_threads(1)
    tokens = requests * (drafts + 1)
    capacity = core.DraftCapacity.from_config(
        requests, tokens, drafts, tp_size, (tokens,), layout="requests"
    )
    registry = rope.RopeRegistry()
    registry.register("mtp", rope.RopeConfig(64, 4096, 10000.0))
    builder = cache.DraftMetadataBuilder(
        capacity,
        [cache.GroupSpec("draft", 128)],
        registry,
        core.TokenShard(0, tp_size, 0),
        torch.device("cpu"),
        max_model_len=4096,
    )
    rows = max(capacity.max_reqs, capacity.max_rows)
    builder.bind({"draft": torch.zeros(rows, 33, dtype=torch.int32)})
    starts = torch.arange(requests + 1, dtype=torch.int32) * (drafts + 1)
    lengths = torch.full((requests,), 300, dtype=torch.int32)
    rejected = torch.zeros(requests, dtype=torch.int32)
    batch = cache.DraftBatch(requests, tokens, starts, lengths, rejected, bucket=tokens)
    for _ in range(WARM_BUILDS):
        builder.build_all(batch)
    return lambda: builder.build_all(batch)


def report(found: Structure, traced: Trace | None = None) -> Iterator[str]:
    """Yield the lines that a person reads."""
    yield f"{found.files} files, {found.lines:,} lines"
    yield f"{found.public_names} public names"
    yield f"{len(found.past_faces)} imports past a face"
    yield from (f"  {name} -> {target}" for name, target in found.past_faces)
    yield f"{len(found.circles)} circles ({len(found.typing_circles)} more for type checkers)"
    yield from (f"  {' <-> '.join(circle)}" for circle in found.circles)
    yield f"{len(found.small)} files under {SMALL} lines, {len(found.large)} over {LARGE}"
    yield from (f"  {name}" for name in found.large)
    yield "rooms: " + ", ".join(f"{name} {count}" for name, count in found.rooms.items())
    if traced is not None:
        yield (
            f"one warm build_all: {traced.frames} frames in {traced.files} files, "
            f"{traced.hops} hops"
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkout", nargs="?", type=Path, default=HERE, help="its root")
    parser.add_argument("--trace", action="store_true", help="also trace a warm build_all")
    parser.add_argument("--traced", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.traced:
        call = warm_build()
        print(json.dumps(asdict(profile(call))))
        return
    try:
        found = measure(given.checkout)
    except FileNotFoundError as error:
        parser.error(str(error))
    print("\n".join(report(found, trace(given.checkout) if given.trace else None)))


if __name__ == "__main__":
    main()
