"""The package's sources keep the house style that no linter knows."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from moldau.runtime.telemetry.logs import AUDIT
from tests.tidy.findings import listed
from tests.tidy.sources import (
    ROOT,
    Function,
    functions_of,
    is_public,
    name_of,
    python_files,
    repository_files,
    tree_of,
    trees_of,
)

CHECKED = ("moldau", "tests", "docs", "benchmarks", "examples", "tools", ".ci")
MAX_FILE_LINES = 800
MAX_FUNCTION_LINES = 70

#: Declarations, one row or field per line: their length says nothing.
TABLES = (
    "moldau/protocol/messages/",
    "moldau/protocol/metadata_records/",
    "moldau/protocol/coordinator_records/",
    "moldau/config/keys.py",
)

#: The packages that users import names from.
USERS_PACKAGES = ("moldau/client", "moldau/testing", "moldau/spark_connector")

#: Functions whose own name says which offset they take.
BARE_NAMES_ALLOWED = frozenset(
    {
        ("drop_snapshots_above", "offset"),
        ("epoch_for_offset", "offset"),
        ("lookup", "offset"),
        ("path_at", "offset"),
        ("position_reset", "offset"),
        ("remove_snapshot", "offset"),
        ("seek", "offset"),
        ("truncate_fully_and_start_at", "offset"),
        ("truncate_to", "offset"),
        ("update_high_watermark", "offset"),
    }
)
BARE_NAMES = frozenset({"epoch", "offset", "id"})

UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")

#: Registries are the installers' business; an absolute path exists on one machine only.
FOREIGN = re.compile(
    r"(?:pypi\.org|pythonhosted\.org|repo1?\.maven|repo\.maven\.apache\.org|registry\.npmjs"
    r"|proxy\.golang\.org|deb\.debian\.org|index\.crates\.io|artifactory"
    r"|(?<![\w.])/(?:root|work|home/\w+|Users/\w+)/)"
)
#: Files that carry such words as data, and why.
FOREIGN_ALLOWED = {
    "tests/tidy/test_source.py": "the patterns themselves",
}
BINARY_SUFFIXES = {
    ".bin",
    ".br",
    ".checkpoint",
    ".gz",
    ".index",
    ".log",
    ".png",
    ".snapshot",
    ".timeindex",
}


def _is_table(name: str) -> bool:
    return name.startswith(TABLES)


def test_files_are_short_enough_to_read():
    long = {
        name_of(path): lines
        for path in python_files(*CHECKED)
        if not _is_table(name_of(path))
        and (lines := len(path.read_text(encoding="utf-8").splitlines())) > MAX_FILE_LINES
    }
    instead = (
        f"at most {MAX_FILE_LINES} lines; what has a name by itself moves into a separate file"
    )
    assert long == {}, listed(long, instead)


def test_functions_are_short_enough_to_read():
    long = [
        f"{name_of(path)}:{function.lineno} {dotted}: {length} lines"
        for path in python_files(*CHECKED)
        for dotted, function in functions_of(tree_of(path))
        if (length := (function.end_lineno or 0) - function.lineno + 1) > MAX_FUNCTION_LINES
    ]
    instead = f"at most {MAX_FUNCTION_LINES} lines; a part with a name becomes a function"
    assert long == [], listed(long, instead)


def test_every_module_says_what_it_owns():
    silent = [
        name_of(path)
        for path in python_files(*CHECKED)
        if path.stat().st_size and not ast.get_docstring(tree_of(path))
    ]
    instead = "needs a docstring: what it owns, what it must not do, its invariant"
    assert silent == [], listed(silent, instead)


def test_public_classes_are_documented():
    silent = [
        f"{name_of(path)}:{node.lineno} {node.name}"
        for path in python_files("moldau")
        if not _is_table(name_of(path))
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        if not ast.get_docstring(node)
    ]
    instead = "needs a docstring: what it is, its legal transitions"
    assert silent == [], listed(silent, instead)


def test_what_users_call_is_documented():
    """Inside the rooms a docstring that only repeats the name goes; what users import has one."""
    exported = _exported_names()
    declared = _documented_protocol_methods()
    silent = [
        f"{name_of(path)}:{function.lineno} {dotted}"
        for path in python_files(*USERS_PACKAGES)
        for dotted, function in functions_of(tree_of(path))
        if dotted.partition(".")[0] in exported
        if is_public(dotted) and not ast.get_docstring(function)
        if not ("." in dotted and dotted.rpartition(".")[2] in declared)
        if not _may_be_silent(function)
    ]
    instead = "needs a docstring: what it does, units, what it raises, the KIP"
    assert silent == [], listed(silent, instead)


def _exported_names() -> set[str]:
    """What the packages for users list in `__all__`, or import as `X as X`."""
    names: set[str] = set()
    packages = [path for path in python_files(*USERS_PACKAGES) if path.name == "__init__.py"]
    for tree in [tree for path in packages for tree in trees_of(path)]:
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                names.update(ast.literal_eval(node.value))
            elif isinstance(node, ast.ImportFrom):
                names.update(each.name for each in node.names if each.asname == each.name)
    assert {"Producer", "Consumer", "Cluster", "settle_sink"} <= names
    return names


def _documented_protocol_methods() -> set[str]:
    return {
        method.name
        for path in python_files("moldau")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ClassDef) and any("Protocol" in ast.dump(b) for b in node.bases)
        for method in node.body
        if isinstance(method, Function) and ast.get_docstring(method)
    }


#: Methods whose meaning the standard library has fixed, by where they come from.
CALLBACKS = frozenset(
    {
        *("connection_made", "connection_lost", "pause_writing", "resume_writing"),  # asyncio
        *("get_buffer", "buffer_updated", "eof_received", "data_received"),  # asyncio
        *("format", "emit"),  # logging
    }
)


def _may_be_silent(function: Function) -> bool:
    """Overloads, property setters, overrides and callbacks say nothing of their own."""
    decorators = [
        decorator.func if isinstance(decorator, ast.Call) else decorator
        for decorator in function.decorator_list
    ]
    names = {
        decorator.attr if isinstance(decorator, ast.Attribute) else getattr(decorator, "id", "")
        for decorator in decorators
    }
    silent = {"overload", "override", "setter"}
    return function.name in CALLBACKS or bool(names & silent)


def test_bare_epoch_offset_or_id_never_crosses_a_function_boundary():
    bare = []
    for path in python_files("moldau"):
        name = name_of(path)
        for dotted, function in functions_of(tree_of(path)):
            arguments = function.args
            for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
                if (
                    argument.arg in BARE_NAMES
                    and is_public(dotted)
                    and (function.name, argument.arg) not in BARE_NAMES_ALLOWED
                ):
                    bare.append(f"{name}:{function.lineno} {dotted}({argument.arg})")
    instead = "name it whole, as leader_epoch, log_start_offset or broker_id"
    assert bare == [], listed(bare, instead)


#: What the network raises, often without a text.
WORDLESS = re.compile(r"TimeoutError|ConnectionError|LINK_ERRORS|PASSING_FAULTS")
OWN_WORDS = re.compile(r"\[?type\(\w+\)\.__name__\]?")
LOG_METHODS = frozenset({"debug", "info", "warning", "error", "exception", "critical", "log"})


def test_faults_of_the_network_are_never_logged_without_words():
    """`words_of` says what kind an exception is that has no text."""
    wordless = []
    for path in python_files("moldau"):
        if path.name == "fault_words.py":
            continue
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.BoolOp) and OWN_WORDS.fullmatch(ast.unparse(node.values[-1])):
                wordless.append(f"{name_of(path)}:{node.lineno}")
            elif (
                isinstance(node, ast.ExceptHandler)
                and node.name
                and node.type
                and WORDLESS.search(ast.unparse(node.type))
            ):
                wordless += [f"{name_of(path)}:{line}" for line in _raw_words(node, node.name)]
    instead = "take words_of of moldau/runtime/fault_words.py: it may have no text"
    assert wordless == [], listed(wordless, instead)


#: Where an application's own code is called, or an error goes on to another thread.
CATCHES_ALL = ("moldau/client/", "moldau/spark_connector/")


def test_no_room_of_a_node_catches_every_exception():
    """`node.faults` decides about those that no handler expects (CONTRIBUTING, Errors)."""
    catching = [
        f"{name_of(path)}:{node.lineno}"
        for path in python_files("moldau")
        if not name_of(path).startswith(CATCHES_ALL)
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or re.search(r"\bException\b", ast.unparse(node.type)))
    ]
    instead = "name what is expected; moldau/node/faults.py decides about the rest"
    assert catching == [], listed(catching, instead)


#: Ways of a command to a terminal that go past `moldau.cli.output`.
PRINTS = re.compile(
    r"print|typer\.(?:echo|secho|echo_via_pager|launch)|(?:sys\.)?__?std(?:out|err)__?.*"
    r"|sys\.(?:__)?std(?:out|err)(?:__)?\.(?:buffer|write|writelines)\b.*|os\.write"
)


def test_commands_print_through_one_module():
    """`moldau.cli.output` escapes what others have chosen: names, records, words of a broker."""
    past = []
    for path in python_files("moldau/cli"):
        if path.name == "output.py":
            continue
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Call):
                is_past = PRINTS.fullmatch(ast.unparse(node.func)) is not None
            elif isinstance(node, ast.Attribute):
                is_past = ast.unparse(node) in ("sys.stdout.buffer", "sys.stderr.buffer")
            elif isinstance(node, ast.ImportFrom | ast.Import):
                names = [getattr(node, "module", None) or "", *(each.name for each in node.names)]
                is_past = any(name.split(".")[0] == "rich" for name in names)
            else:
                continue
            if is_past:
                past.append(f"{name_of(path)}:{node.lineno}")
    instead = "print by moldau/cli/output.py: it escapes what others have chosen"
    assert past == [], listed(past, instead)


def _imported(path: Path) -> Iterator[str]:
    """The full names that a file imports from other packages."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module != "__future__":
            yield from (f"{node.module}.{each.name}" for each in node.names)


def test_nothing_private_of_another_package_is_imported():
    """Its next release may not have it."""
    found = {
        f"{name_of(path)}: {name}"
        for path in python_files("moldau", "pyspark_moldau")
        for name in _imported(path)
        if not name.startswith(("moldau.", "_typeshed."))
        and re.search(r"(?:^|\.)_(?!_)", name) is not None
    }
    instead = "a private name: take a public one"
    assert found == set(), listed(found, instead)


def _raw_words(handler: ast.ExceptHandler, name: str) -> Iterator[int]:
    """Lines of a handler in which its exception is turned into text as it is."""
    for node in ast.walk(handler):
        told: list[ast.expr] = []
        if isinstance(node, ast.FormattedValue) and node.conversion == -1:
            told = [node.value]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            told = node.args[1:] if node.func.attr in LOG_METHODS else []
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "str":
            told = node.args
        if any(isinstance(each, ast.Name) and each.id == name for each in told):
            yield node.lineno


def test_loggers_are_named_after_their_modules():
    """A line of the log shows its module, and the level of a package holds for all in it. The
    streams of the audit have names of their own; to set a level, a package that exists is named.
    """
    misnamed = []
    for path in python_files("moldau", "pyspark_moldau"):
        kept = {id(each.value) for each in tree_of(path).body if hasattr(each, "value")}
        for node in ast.walk(tree_of(path)):
            if not (isinstance(node, ast.Call) and ast.unparse(node.func).endswith("getLogger")):
                continue
            name = node.args[0]
            if isinstance(name, ast.Constant):
                is_good = name.value in AUDIT or (id(node) not in kept and _is_module(name.value))
            else:
                is_good = ast.unparse(name) == "__name__" or id(node) not in kept
            if not is_good:
                misnamed.append(f"{name_of(path)}:{node.lineno} {ast.unparse(name)}")
    instead = "logging.getLogger(__name__)"
    assert misnamed == [], listed(misnamed, instead)


def _is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").exists()


def test_nothing_is_left_unfinished():
    found = [
        f"{name_of(path)}:{number}"
        for path in repository_files()
        if path.suffix in (".py", ".pyx", ".md", ".toml", ".sh") or path.name in ("Makefile", "run")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if UNFINISHED.search(line)
    ]
    instead = "finish it, or take the mark away"
    assert found == [], listed(found, instead)


def test_no_registry_hosts_and_no_paths_of_one_machine():
    found = []
    for path in repository_files():
        name = name_of(path)
        if name in FOREIGN_ALLOWED or path.suffix in BINARY_SUFFIXES:
            continue
        text = path.read_bytes().decode("utf-8", "replace")
        for number, line in enumerate(text.splitlines(), start=1):
            if match := FOREIGN.search(line):
                found.append(f"{name}:{number}: {match[0]}")
    instead = "a host of a registry, or a path that only your machine has"
    assert found == [], listed(found, instead)
