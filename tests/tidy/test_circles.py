"""No circle ties files of the product together: of two files, one at most knows the other.

Imports in functions, under `TYPE_CHECKING` and in `.pyi` files count: a file that names a type
cannot be understood without the file that declares it. import-linter's contracts are about rooms,
this one is about files. An import of a package counts as one of its `__init__`, not of the modules
below it.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Set
from pathlib import Path

from tests.tidy.sources import name_of, python_files, trees_of

Graph = Mapping[str, Set[str]]
"""The modules that each module imports."""


def module_name(path: Path) -> str:
    return name_of(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imported(tree: ast.AST, modules: Set[str]) -> set[str]:
    """The modules that are imported anywhere in a file, of those that are named."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports of the product are absolute"
            for each in node.names:
                inner = f"{node.module}.{each.name}"
                found.add(inner if inner in modules else f"{node.module}")
    return found & modules


def product() -> Graph:
    paths = {module_name(path): path for path in python_files("moldau")}
    found: dict[str, set[str]] = {name: set() for name in paths}
    for name, path in paths.items():
        for tree in trees_of(path):
            found[name] |= imported(tree, paths.keys()) - {name}
    return found


def circle_in(graph: Graph) -> list[str]:
    """A circle's modules, the first one again at the end; empty when there is none."""
    finished: set[str] = set()

    def search(module: str, way: list[str]) -> list[str]:
        if module in way:
            return [*way[way.index(module) :], module]
        if module in finished:
            return []
        for each in sorted(graph[module]):
            if found := search(each, [*way, module]):
                return found
        finished.add(module)
        return []

    for module in sorted(graph):
        if found := search(module, []):
            return found
    return []


def test_files_import_each_other_in_no_circle():
    assert " -> ".join(circle_in(product())) == ""


def test_an_injected_circle_is_found():
    """One import more, in a function of the lowest of three files, ties the three together."""
    low, middle, high = (
        f"moldau.storage.{each}" for each in ("log_table", "log_jobs", "log_manager")
    )
    graph = dict(product())
    assert low in graph[middle]
    assert middle in graph[high]
    injected = ast.parse("def later():\n    from moldau.storage.log_manager import LogManager")
    graph[low] = graph[low] | imported(injected, graph.keys())
    found = circle_in(graph)
    assert found[0] == found[-1]
    assert {low, high} <= {*found}


def test_imports_of_all_kinds_count():
    source = """
import moldau.text
from moldau import constants
from moldau.storage import log, log_table as table
if TYPE_CHECKING:
    from moldau.addresses import network_of

class Kind:
    def method(self):
        from moldau.first_use import at_first_use
"""
    names = ["moldau", "moldau.storage", "moldau.storage.log", "moldau.storage.log_table"]
    names += [f"moldau.{each}" for each in ("addresses", "constants", "first_use", "other", "text")]
    wanted = {*names} - {"moldau", "moldau.storage", "moldau.other"}
    assert imported(ast.parse(source), {*names}) == wanted
