"""Changes what the functions of a running process do: a change that is tried, or probes that tell
which statements are run.

Owns: the way from source text to functions that exist already. Must not: write a file, or import a
module again. Invariant: code that holds a function holds the same one afterwards, with other code.
"""

from __future__ import annotations

import ast
import builtins
import gc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from tests.mutation.changes import Mutant

_PROBE = "__moldau_probe__"


def import_all(paths: Iterable[str]) -> None:
    """Imports the modules in these files, named from the root of the tree: the product imports some
    of them only when a function runs, and until then the process has none of their functions.
    """
    for path in paths:
        import_module(path.removesuffix(".py").removesuffix("/__init__").replace("/", "."))


def functions_of(paths: Iterable[Path]) -> list[FunctionType]:
    """All functions of these files that this process has. The collector lists no frozen ones."""
    gc.unfreeze()
    names = {str(path) for path in paths}
    return [
        each
        for each in gc.get_objects()
        if isinstance(each, FunctionType) and each.__code__.co_filename in names
    ]


def make(mutant: Mutant, root: Path, functions: Iterable[FunctionType]) -> None:
    """Makes the change: those of `functions` that have the old code run the new.

    Raises:
        LookupError: none of them has.
    """
    path = root / mutant.path
    code = compile(mutant.applied(path.read_text()), str(path), "exec", dont_inherit=True)
    if not _replace(code, functions, mutant.function):
        raise LookupError(mutant.key)


def probe(
    path: Path, lines: dict[int, int], functions: Iterable[FunctionType], tell: Callable[[int], Any]
) -> None:
    """From now on `tell` is called before the statements are run that begin in one of `lines`, with
    the number that the line has there. All files of a process have to share one `tell`.
    """
    setattr(builtins, _PROBE, tell)
    tree = _Probes(lines).visit(ast.parse(path.read_text()))
    code = compile(ast.fix_missing_locations(tree), str(path), "exec", dont_inherit=True)
    _replace(code, functions)


class _Probes(ast.NodeTransformer):
    """Puts a call before each statement that begins in one of the lines."""

    def __init__(self, lines: dict[int, int]) -> None:
        self._lines = lines

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                setattr(node, name, list(self._probed(block)))
        return node

    def _probed(self, block: list[ast.stmt]) -> Iterator[ast.stmt]:
        for statement in block:
            if statement.lineno in self._lines:
                call = ast.parse(f"{_PROBE}({self._lines[statement.lineno]})").body[0]
                yield ast.copy_location(call, statement)
            yield statement


def _replace(module: CodeType, functions: Iterable[FunctionType], within: str = "") -> int:
    """Functions (only `within` one of that name) get the code that a module has for them."""
    codes = list(_codes(module))
    count = Counter(name for name, _code in codes)  # two lambdas of one line have one name
    wanted = {
        name: code
        for name, code in codes
        if count[name] == 1
        and (not within or name[0] == within or name[0].startswith(f"{within}.<locals>."))
    }
    replaced = 0
    for function in functions:
        old = function.__code__
        new = wanted.get((old.co_qualname, old.co_firstlineno))
        if new is not None and old.co_filename == module.co_filename:
            function.__code__ = new
            replaced += 1
    return replaced


def _codes(code: CodeType) -> Iterator[tuple[tuple[str, int], CodeType]]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield (each.co_qualname, each.co_firstlineno), each
            yield from _codes(each)
