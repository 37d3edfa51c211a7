"""What the tidy tests look at: every tracked (or about to be tracked) file of the repository.

Owns: the list of files and their parsed forms.
Must not: decide what is tidy.
"""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def repository_files() -> tuple[Path, ...]:
    """Every file that is committed or would be by `git add .`; all files outside a checkout."""
    if not (ROOT / ".git").exists():
        return tuple(sorted(p for p in ROOT.rglob("*") if p.is_file() and not _is_derived(p)))
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout.decode()
    paths = (ROOT / name for name in listed.split("\0") if name)
    return tuple(sorted(path for path in paths if path.is_file()))


def _is_derived(path: Path) -> bool:
    parts = path.relative_to(ROOT).parts
    return any(part.startswith(".") or part in ("build", "dist", "__pycache__") for part in parts)


def name_of(path: Path) -> str:
    """The path inside the repository, with slashes."""
    return path.relative_to(ROOT).as_posix()


def python_files(*tops: str) -> tuple[Path, ...]:
    """The Python files below the given directories."""
    below = tuple(f"{top}/" for top in tops)
    return tuple(
        path
        for path in repository_files()
        if path.suffix == ".py" and name_of(path).startswith(below)
    )


@cache
def tree_of(path: Path) -> ast.Module:
    """A file's syntax tree."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def trees_of(path: Path) -> list[ast.Module]:
    """A file's syntax tree, and that of the `.pyi` beside it, if there is one."""
    stub = path.with_suffix(".pyi")
    return [tree_of(path), *([tree_of(stub)] if stub.exists() else ())]


def functions_of(tree: ast.AST) -> Iterator[tuple[str, Function]]:
    """Every function with its dotted name inside the module, also nested ones."""
    yield from _functions(tree, "")


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, Function]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")
        elif isinstance(child, Function):
            yield prefix + child.name, child
            yield from _functions(child, f"{prefix}{child.name}.<locals>.")
        elif not isinstance(child, ast.expr):
            yield from _functions(child, prefix)


def is_public(dotted: str) -> bool:
    """Whether no part of a dotted name begins with an underscore or is local to a function."""
    return not any(part.startswith(("_", "<")) for part in dotted.split("."))
