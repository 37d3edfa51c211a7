"""The tree of commands: what is imported for which words, names, and lines of help."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from moldau.cli.main import COMMANDS, app

#: What no command needs to start, and which costs most.
HEAVY = (
    *("pydantic", "rich", "urllib.request", "cryptography", "pyarrow", "uvloop", "structlog"),
    *("moldau.raft", "moldau.broker", "moldau.storage", "moldau.metadata", "moldau.server"),
    *("moldau.client.producer", "moldau.client.consumer", "moldau.protocol.records.compression"),
)
LAZY_PACKAGES = (
    *("moldau.client", "moldau.client.sync", "moldau.config", "moldau.testing"),
    *("moldau.schema_registry", "moldau.spark_connector.pipelines"),
    "moldau.spark_connector.results",
)


def _ended(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """`python -m moldau`; its standard error ends with the names of the modules it has imported."""
    code = (
        "import runpy, sys\n"
        "try:\n    runpy.run_module('moldau', run_name='__main__', alter_sys=True)\n"
        "finally:\n    print('\\nMODULES', *sys.modules, file=sys.stderr)\n"
    )
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "COLUMNS": "80", **environ},
    )


def _modules(ended: subprocess.CompletedProcess[str]) -> set[str]:
    return set(ended.stderr.rpartition("MODULES")[2].split())


def _tree() -> Any:
    root: Any = typer.main.get_command(app)
    root.load_all()
    return root


def _all(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from _all(inner, f"{path} {name}")


@pytest.mark.real
@pytest.mark.parametrize(
    "words",
    [
        ("--help",),
        ("topics", "list", "--help"),
        ("topics", "list", "-b", "127.0.0.1:1", "--timeout-ms", "50"),
        ("topics", "create", "t", "-b", "127.0.0.1:1", "--timeout-ms", "50"),
        ("groups", "list", "-b", "127.0.0.1:1", "--timeout-ms", "50"),
        ("configs", "describe", "topic", "t", "-b", "127.0.0.1:1", "--timeout-ms", "50"),
        ("quorum", "status", "-b", "127.0.0.1:1", "--timeout-ms", "50"),
    ],
    ids=" ".join,
)
def test_a_command_imports_only_what_it_runs(words: tuple[str, ...]):
    ended = _ended(*words)
    assert ended.returncode == ("--help" not in words), ended.stderr
    modules = _modules(ended)
    assert "moldau.cli.main" in modules
    assert not modules & {*HEAVY}
    others = {f"moldau.cli.{module}" for name, (module, *_) in COMMANDS.items() if name != words[0]}
    assert not modules & others - {"moldau.cli.local_nodes"}


@pytest.mark.real
def test_help_and_version_import_no_command():
    for word in ("--help", "--version"):
        ended = _ended(word)
        assert ended.returncode == 0, ended.stderr
        modules = _modules(ended)
        assert not modules & {"asyncio", "moldau.client.cluster", "rich", "pydantic"}
        assert not any(f"moldau.cli.{module}" in modules for module, *_ in COMMANDS.values())


@pytest.mark.real
@pytest.mark.parametrize(("pure", "codec"), [("", r"(native|pure Python)"), ("1", "pure Python")])
def test_version_says_which_record_codec_is_in_use(pure: str, codec: str):
    ended = _ended("--version", MOLDAU_PURE_PYTHON=pure)
    assert re.fullmatch(rf"moldau \d+\.\d+\.\d+\S* \({codec} record codec\)\n", ended.stdout)
    assert ("WARNING" in ended.stderr) == ("native" not in ended.stdout)


def test_each_command_exists_and_has_help():
    paths = [path for path, _ in _all(_tree(), "moldau")]
    assert {f"moldau {name}" for name in COMMANDS} < {*paths}
    assert len(paths) > 70
    silent = [path for path, command in _all(_tree(), "moldau") if not command.help]
    assert silent == []


def _is_cut(line: str) -> bool:
    return line.endswith("...") and not line.startswith("Usage:")


def test_lines_of_help_fit_on_the_terminal():
    cut = []
    for path, command in _all(_tree(), "moldau"):
        if hasattr(command, "commands"):
            words = path.split()[1:]
            shown = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "80"}).output
            cut += [f"{path}: {line}" for line in shown.splitlines() if _is_cut(line)]
    assert cut == []


def test_each_option_says_what_it_is_for():
    silent = [
        f"{path} {param.opts[0]}"
        for path, command in _all(_tree(), "moldau")
        for param in command.params
        if not getattr(param, "help", None)
    ]
    assert silent == []


@pytest.mark.parametrize(
    ("words", "known_as"),
    [
        (("topic", "list"), "topics list"),
        (("group", "list"), "groups list"),
        (("broker", "describe"), "brokers describe"),
        (("config", "alter"), "configs alter"),
        (("transaction", "list"), "transactions list"),
        (("feature", "describe"), "features describe"),
        (("topics", "elect-leader"), "topics elect-leaders"),
        (("group", "reset-offset"), "groups reset-offsets"),
        (("pipelines", "run"), "pipeline run"),
    ],
)
def test_singular_and_plural_are_one_command(words: tuple[str, ...], known_as: str):
    result = CliRunner().invoke(app, [*words, "--help"])
    assert result.exit_code == 0, result.output
    assert f"Usage: moldau {known_as} " in result.output


def test_the_help_of_fields_breaks_no_word():
    shown = CliRunner().invoke(app, ["consume", "--help"], env={"COLUMNS": "80"}).output
    _, _, fields = shown.partition("--fields")
    assert {"topic,", "partition,", "offset,", "timestamp,", "headers,"} < {*fields.split()}


def test_other_names_are_not_listed():
    shown = CliRunner().invoke(app, ["--help"]).output
    listed = re.findall(r"^  ([a-z]+)  ", shown, re.MULTILINE)
    assert listed == [name for name in COMMANDS if " " not in name]


@pytest.mark.real
def test_a_name_that_is_none_is_refused_with_the_nearest():
    ended = _ended("topcis", "list")
    assert ended.returncode == 2
    assert "'topcis'" in ended.stderr
    assert "topics" in ended.stderr.splitlines()[0]


@pytest.mark.real
@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("topics", "list", "--timeout-ms", "soon"), "'soon' is not a valid int"),
        (("topics", "list", "--timeout-ms", "0"), "0 is not in the range x>=1"),
        (("bench", "latency", "t", "--rate", "200000"), "200000 is not in the range 1<=x<=100000"),
        (("bench", "latency", "t", "--seconds", "long"), "'long' is not a valid float"),
        (("topics", "elect-leaders", "t", "--election", "any"), "'any' is not one of"),
        (("configs", "describe", "any", "t"), "'any' is not one of topics, brokers"),
    ],
)
def test_values_that_are_none(words: tuple[str, ...], complaint: str):
    ended = _ended(*words)
    assert ended.returncode == 2
    first = ended.stderr.splitlines()[0]
    assert first.startswith("moldau: Invalid value")
    assert complaint in first


@pytest.mark.parametrize("package", LAZY_PACKAGES)
def test_packages_have_the_names_that_type_checkers_see(package: str):
    module = import_module(package)
    source = Path(str(module.__file__))
    stub = source.with_suffix(".pyi")
    tree = ast.parse((stub if stub.exists() else source).read_text(encoding="utf-8"))
    blocks = [tree] if stub.exists() else [each for each in tree.body if isinstance(each, ast.If)]
    seen = {
        alias.name: statement.module
        for block in blocks
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    assert seen.keys() == {*module.__all__}
    assert {*module.__all__} <= {*dir(module)}
    for name, where in seen.items():
        assert getattr(module, name) is getattr(import_module(str(where)), name), name
    with pytest.raises(AttributeError, match="no_such_name"):
        module.no_such_name  # noqa: B018


@pytest.mark.real
def test_importing_the_client_alone_is_cheap():
    code = "import sys, moldau.client, moldau.config, moldau.testing; print(*sys.modules)"
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()
    assert "moldau.first_use" in shown
    assert not {*shown} & {"asyncio", "ssl", "moldau.client.errors", "moldau.config.table"}
