"""Each promise of docs/spark.md has a test that names it, and no test names another one.

A promise is marked behind its words, `<!-- promise: NAME -->`; a test names it by
`@pytest.mark.promise("NAME", …)`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.tidy.sources import ROOT, functions_of, name_of, python_files, tree_of

_MARK = re.compile(r" ?<!-- promise: ([a-z-]+) -->")

#: Where every item of a list and every row of a table is a promise.
SECTIONS = ("What a stream promises", "Data loss", "What it promises", "Refusals")


def _page() -> str:
    return (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")


def _named() -> dict[str, list[str]]:
    """The tests by the promise that they name."""
    found: dict[str, list[str]] = {}
    for path in python_files("tests"):
        for dotted, function in functions_of(tree_of(path)):
            for decorator in function.decorator_list:
                for name in _names(decorator):
                    assert function.name.startswith("test_"), f"{name_of(path)}: {dotted}"
                    found.setdefault(name, []).append(f"{name_of(path)}: {dotted}")
    return found


def _names(decorator: ast.expr) -> Iterator[str]:
    if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.promise":
        for argument in decorator.args:
            assert isinstance(argument, ast.Constant), "a promise is named by a literal"
            yield argument.value


def test_each_promise_has_a_test_that_names_it():
    promises = _MARK.findall(_page())
    assert len(promises) == len(set(promises))
    assert sorted(set(promises) - _named().keys()) == []


def test_tests_name_only_promises_of_the_page():
    promises = set(_MARK.findall(_page()))
    assert {name: tests for name, tests in _named().items() if name not in promises} == {}


def test_each_item_of_the_sections_of_promises_is_marked():
    unmarked, seen = [], 0
    for title in SECTIONS:
        section = _page().split(f"### {title}\n")[1].split("\n#")[0]
        for item in re.split(r"\n(?=- |\| |\n)", section):
            is_row = item.startswith("| ") and not item.startswith(("| what has", "| error |"))
            if is_row or item.startswith("- "):
                seen += 1
                unmarked += [] if _MARK.search(item) else [item[:60]]
    assert seen > 30
    assert unmarked == []
