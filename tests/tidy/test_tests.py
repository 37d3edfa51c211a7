"""The tests themselves: each can fail, and none waits by the clock."""

from __future__ import annotations

import ast
import re

from tests.tidy.findings import listed
from tests.tidy.sources import Function, functions_of, name_of, python_files, tree_of

#: An attacker in its own process, and what shows that a test that sleeps is found.
SLEEPERS = frozenset({"tests/system/http/greedy.py", "tests/unit/kit/test_guard.py"})

#: The one module of the tests that takes the public loops, which sleep: it adds patience to them.
PATIENT = "tests/kit/waiting.py"

_CHECKING_NAME = re.compile(r"^_?(assert|check|expect|verify|must|raises|fail|require)")


def _is_test(dotted: str) -> bool:
    return dotted.rpartition(".")[2].startswith("test_")


def test_every_test_can_fail():
    toothless = []
    for path in python_files("tests"):
        if not path.name.startswith("test_"):
            continue
        tree = tree_of(path)
        local = {dotted: function for dotted, function in functions_of(tree)}
        checking = _checking_functions(local)
        for dotted, function in local.items():
            if _is_test(dotted) and not _checks(function, checking):
                toothless.append(f"{name_of(path)}:{function.lineno} {dotted}")
    instead = "assert what is expected, or call a function that is named check_…"
    assert toothless == [], listed(toothless, instead)


def _checking_functions(functions: dict[str, Function]) -> set[str]:
    """Names of the module's helpers that check something, also through each other."""
    checking: set[str] = set()
    while True:
        found = {
            dotted.rpartition(".")[2]
            for dotted, function in functions.items()
            if not _is_test(dotted) and _checks(function, checking)
        }
        if found <= checking:
            return checking
        checking |= found


def _checks(function: Function, checking: set[str]) -> bool:
    for node in ast.walk(function):
        if isinstance(node, ast.Assert | ast.Raise):
            return True
        if isinstance(node, ast.Call):
            name = _called_name(node)
            if name in checking or _CHECKING_NAME.match(name):
                return True
    return False


def _called_name(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def test_no_test_sleeps():
    sleeping = []
    for path in python_files("tests"):
        if name_of(path) in SLEEPERS:
            continue
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Call) and _called_name(node) == "sleep" and not _is_yield(node):
                sleeping.append(f"{name_of(path)}:{node.lineno}")
    instead = f"wait for the condition: until_async of {PATIENT}"
    assert sleeping == [], listed(sleeping, instead)


def _is_yield(call: ast.Call) -> bool:
    """`asyncio.sleep(0)` lets others run; it waits for nothing."""
    return bool(call.args) and isinstance(call.args[0], ast.Constant) and call.args[0].value == 0


def test_tests_wait_with_patience():
    impatient = [
        f"{name_of(path)}:{node.lineno}"
        for path in python_files("tests")
        if name_of(path) != PATIENT
        for node in ast.walk(tree_of(path))
        if _takes_the_loops_for_users(node)
    ]
    instead = f"import until and until_async from {PATIENT}"
    assert impatient == [], listed(impatient, instead)


def _takes_the_loops_for_users(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        names = {alias.name for alias in node.names}
        return node.module == "moldau.testing.waiting" or (
            node.module == "moldau.testing"
            and bool(names & {"wait_until", "wait_until_async", "waiting"})
        )
    if isinstance(node, ast.Import):
        return any(alias.name == "moldau.testing.waiting" for alias in node.names)
    return (
        isinstance(node, ast.Attribute)
        and node.attr in ("wait_until", "wait_until_async")
        and ast.unparse(node.value) in ("moldau.testing", "testing", "waiting")
    )


def test_test_modules_have_their_own_names():
    names = [name_of(path) for path in python_files("tests") if path.name.startswith("test_")]
    packages = {name.rpartition("/")[0] for name in names}
    known = {name_of(path) for path in python_files("tests")}
    bare = [package for package in sorted(packages) if f"{package}/__init__.py" not in known]
    assert bare == [], listed(bare, "needs an __init__.py")
