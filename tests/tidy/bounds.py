"""What of the product a peer may cause: assertions, tasks, and containers that grow.

Finds them in the source by its syntax; `bounds.toml` says of each what bounds it.
"""

from __future__ import annotations

import ast
import functools
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tests.tidy.sources import ROOT

PRODUCT: Final = ROOT / "moldau"

SERVING: Final = (
    "server",
    "broker",
    "controller",
    "raft",
    "node",
    "console",
    "metadata",
    "storage",
    "sasl",
    "runtime",
    "protocol",
)
"""The rooms of what a node runs."""

KEEPING: Final = ("server", "broker", "controller", "raft", "node", "console")
"""The rooms whose containers requests can fill."""

TASK_STARTS: Final = frozenset({"create_task", "ensure_future", "start_work", "go_on"})
STARTERS: Final = frozenset(
    {"background", "_background", "services", "_services", "_ports", "manager", "connection"}
)
"""Whose `start` runs a coroutine."""

EMPTY: Final = frozenset(
    {"dict", "list", "set", "deque", "defaultdict", "OrderedDict", "Counter", "FairLine"}
)

LOOKED_FOR: Final = (ast.Assert, ast.Raise, ast.Call, ast.ClassDef, ast.AsyncFunctionDef)

_LIMITS: Final = re.compile(r"[A-Z][A-Z_]{5,}|moldau\.[a-z.]+|[a-z]+(?:\.[a-z]+){2,}")

Found = dict[str, Counter[str]]
"""How often something was found, by file of the product and by name within it."""


@functools.cache
def reviewed() -> dict[str, Any]:
    return tomllib.loads((ROOT / "tests/tidy/bounds.toml").read_text())


def limits_of(row: str) -> list[str]:
    """Constants and keys that a container's row of the kind `limit` names."""
    kind, _, rest = row.partition(":")
    return _LIMITS.findall(rest) if kind == "limit" else []


def files(rooms: tuple[str, ...]) -> Iterator[tuple[str, ast.Module]]:
    for room in rooms:
        for path in sorted((PRODUCT / room).rglob("*.py")):
            yield str(path.relative_to(PRODUCT)), _tree(path)


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def named(tree: ast.Module) -> tuple[tuple[str, ast.AST], ...]:
    """What is looked for, with the name of the class and function that it lies in."""
    stack: list[tuple[str, ast.AST]] = [("", tree)]
    found: list[tuple[str, ast.AST]] = []
    while stack:
        name, node = stack.pop()
        for child in ast.iter_child_nodes(node):
            inner = name
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = f"{name}.{child.name}" if name else child.name
            if isinstance(child, LOOKED_FOR):
                found.append((inner, child))
            stack.append((inner, child))
    return tuple(found)


@functools.cache
def assertions() -> Found:
    """`assert`, and `raise AssertionError`."""
    found: Found = {}
    for file, tree in files(SERVING):
        for name, node in named(tree):
            raised = node.exc if isinstance(node, ast.Raise) else None
            if isinstance(node, ast.Assert) or (
                raised is not None and "AssertionError" in ast.dump(raised)
            ):
                found.setdefault(file, Counter())[name or "<module>"] += 1
    return found


@functools.cache
def task_starts() -> Found:
    """Calls that make a task of the loop, or hand a coroutine to what does."""
    found: Found = {}
    for file, tree in files(SERVING):
        coroutines = {
            each.name for _, each in named(tree) if isinstance(each, ast.AsyncFunctionDef)
        }
        for name, node in named(tree):
            if isinstance(node, ast.Call) and _starts_task(node, coroutines):
                found.setdefault(file, Counter())[name] += 1
    return found


def _starts_task(call: ast.Call, coroutines: set[str]) -> bool:
    function = call.func
    if isinstance(function, ast.Name):
        return function.id in TASK_STARTS
    if not isinstance(function, ast.Attribute):
        return False
    owner = function.value
    owner_name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
    if function.attr == "_start" and call.args and isinstance(call.args[0], ast.Call):
        begun = call.args[0].func
        return isinstance(begun, ast.Attribute) and begun.attr in coroutines
    return function.attr in TASK_STARTS or (function.attr == "start" and owner_name in STARTERS)


@functools.cache
def containers() -> Found:
    """Attributes and names of modules that begin as an empty container."""
    found: Found = {}
    for file, tree in files(KEEPING):
        names = Counter(f"<module>.{each}" for node in tree.body for each in _empty_names(node))
        for class_name, node in named(tree):
            if not isinstance(node, ast.ClassDef):
                continue
            own = {each for field in node.body for each in _empty_names(field)}
            for inner in ast.walk(node):
                own |= {each for each in _empty_names(inner, of="self")}
            names.update(f"{class_name}.{each}" for each in own)
        if names:
            found[file] = Counter(dict.fromkeys(names, 1))
    return found


def _empty_names(node: ast.AST, of: str = "") -> Iterator[str]:
    """What an assignment gives an empty container: names, or attributes of `of`."""
    if not isinstance(node, ast.Assign | ast.AnnAssign) or not _is_empty(node.value):
        return
    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
        if of and isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
            if target.value.id == of:
                yield target.attr
        elif not of and isinstance(target, ast.Name):
            yield target.id


def _is_empty(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Dict):
        return not value.keys
    if isinstance(value, ast.List):
        return not value.elts
    if not isinstance(value, ast.Call):
        return False
    function = value.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if name == "field":
        return any(
            each.arg == "default_factory" and getattr(each.value, "id", "") in EMPTY
            for each in value.keywords
        )
    return name in EMPTY
