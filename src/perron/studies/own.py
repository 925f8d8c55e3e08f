"""Names in study files that stand for code and files of your own, beside the names that perron knows.

    "my_module:MyAlgorithm"        a class or function of a module in the study's folder, or of an installed package
    "file:networks/abilene.gml"    a file, relative to the study's folder: a network, or an option of a problem
    "their_algorithm"              an entry point of an installed package: perron.algorithms, .problems, .topologies, .samplers

What they contain is part of a run's key: the source of the module and of the modules in the folder that it imports, without
comments and docstrings, or the bytes of the file. A worker refuses a run if they have changed since the study was started.
"""

from __future__ import annotations

import ast
import hashlib
import sys
import traceback
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from perron._registry import unknown
from perron.errors import PerronError
from perron.networks.builder import Loaded, load_network
from perron.studies.provenance import bare

FILE = "file:"
GROUPS = {
    "algorithm": "perron.algorithms", "kind of problem": "perron.problems", "topology": "perron.topologies",
    "sampler": "perron.samplers",
}  # fmt: skip
T = TypeVar("T")


def find(name: str, among: Mapping[str, T], kind: str, folder: str) -> T | Any:
    """Return the object of a name: one that perron knows, one of your own, or one of an installed package."""
    if name in among:
        return among[name]
    if ":" in name:
        return _import(name, folder or str(Path.cwd()))
    points = {point.name: point for point in entry_points(group=GROUPS[kind])}
    if name in points:
        return points[name].load()
    raise unknown(name, [*among, *points], kind)


def is_file(name: object) -> bool:
    """Whether a name stands for a file."""
    return isinstance(name, str) and name.startswith(FILE)


def file_path(value: Any, folder: str) -> Any:
    """Return the path of a file; any other value as it is."""
    return str(_path(value, folder)) if is_file(value) else value


def network(name: str, folder: str, weights: str | None = None, seed: int | None = None, **options: Any) -> Loaded:
    """Read the network of a file; ``options`` are undirected and largest_component."""
    return load_network(str(_path(name, folder)), weights=weights, seed=None if weights == "file" else seed, **options)


def check(sources: Mapping[str, str], folder: str) -> None:
    """Refuse names whose content has changed since the study was started."""
    for name, expected in sources.items():
        if digest(name, folder) != expected:
            raise PerronError(f"{name} has changed since the study was started (in {folder}); start the study again.")


def digest(name: str, folder: str) -> str:
    """Return a hash of what a name stands for."""
    content = hashlib.sha256()
    if is_file(name):
        content.update(_read(_path(name, folder)))
        return content.hexdigest()[:16]
    module = name.partition(":")[0] if ":" in name else _module_of_entry_point(name)
    for path in sorted(_sources(module, Path(folder), set())):
        content.update(bare(_read(path).decode("utf-8", errors="replace")).encode())
    return content.hexdigest()[:16]


def _module_of_entry_point(name: str) -> str:
    return next(point.module for group in GROUPS.values() for point in entry_points(group=group) if point.name == name)


def _sources(module: str, folder: Path, seen: set[Path]) -> set[Path]:
    """The file of a module and of the modules of the same folder that it imports."""
    parts = folder.joinpath(*module.split("."))
    places = [parts.with_suffix(".py"), parts / "__init__.py"]
    path = next((place for place in places if place.is_file()), None)
    if path is None and not seen and (spec := find_spec(module)) and spec.origin and spec.origin.endswith(".py"):
        path = Path(spec.origin)  # of an installed package
    if path is None or path in seen:
        return seen
    seen.add(path)
    try:
        tree = ast.parse(_read(path))
    except (SyntaxError, ValueError):
        return seen
    for imported in _imports(tree):
        _sources(imported, folder, seen)
    return seen


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@lru_cache
def _import(name: str, folder: str) -> Any:
    module, _, attribute = name.partition(":")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        found: Any = import_module(module)
    except Exception as error:
        raise PerronError(f"{name} cannot be imported from {folder}: {describe(error, folder)}") from None
    local = Path(folder, *module.split(".")).with_suffix(".py")
    if local.is_file() and Path(getattr(found, "__file__", None) or "") != local:
        raise PerronError(f"{name}: another module {module!r} is loaded from {found.__file__}; rename {local.name}.")
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise PerronError(f"{name}: {getattr(found, '__name__', found)} has no {part!r}.")
        found = getattr(found, part)
    return found


def describe(error: Exception, folder: str) -> str:
    """Return what an error says, after the last line of the user's own code that led to it."""
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if folder and frame.filename.startswith(folder)]
    line = f"{own[-1].filename}:{own[-1].lineno}: " if own else ""
    if isinstance(error, SyntaxError):
        line = f"{error.filename}:{error.lineno}: "
    return f"{line}{type(error).__name__}: {error}"


def _path(name: str, folder: str) -> Path:
    return Path(folder) / name.removeprefix(FILE)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise PerronError(f"Cannot read {path}: {error.strerror or error}.") from None
