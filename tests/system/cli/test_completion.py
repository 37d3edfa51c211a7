"""Completion: commands and options, and what only the cluster knows; once in a real shell."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from moldau.cli import completion
from moldau.client import NewTopic
from moldau.client.sync import Admin
from tests.system.cli.conftest import Cli


@pytest.fixture
def tab(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """A busy machine may take longer than a user at the keyboard should wait."""
    monkeypatch.setattr(completion, "QUESTION_MS", 50_000)
    monkeypatch.setenv("MOLDAU_CONFIG_HOME", str(tmp_path))
    return cli


def completed(tab: Cli, *words: str) -> list[str]:
    """What Tab offers behind these words of a bash, the last of which is not complete."""
    asked = {"_MOLDAU_COMPLETE": "complete_bash", "COMP_CWORD": str(len(words))}
    environ = {**asked, "COMP_WORDS": "\n".join(["moldau", *words])}
    return tab.ok(environ=environ).split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_in_a_shell(cli: Cli, tmp_path: Path) -> None:
    """A process: the shell's own script calls the command."""
    command = tmp_path / "moldau"
    main = 'import sys; sys.argv[0] = "moldau"; import moldau.__main__ as m; m.main()'
    command.write_text(f"#!/bin/sh\nexec {shlex.quote(sys.executable)} -c '{main}' \"$@\"\n")
    command.chmod(0o755)
    script = (
        'eval "$(moldau --show-completion)"\n'
        "COMP_WORDS=(moldau top); COMP_CWORD=1\n"
        "_moldau_completion moldau\n"
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SHELL": "/bin/bash"}
    done = subprocess.run(
        ["bash", "-c", script],
        env={**os.environ, **cli.environ, **path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("topics\n", "")


def test_commands_and_options(tab: Cli) -> None:
    assert completed(tab, "top") == ["topics"]
    assert {"describe", "delete"} <= set(completed(tab, "topics", "de"))
    assert "--value-format" in completed(tab, "consume", "--value")


def test_what_only_the_cluster_knows(tab: Cli) -> None:
    names = [f"completed-{index}" for index in range(3)]
    with Admin(tab.bootstrap) as admin:
        admin.create_topics([NewTopic(each) for each in names])
    group = ("groups", "reset-offsets", "completed-group", "--topic", names[0])
    tab.ok(*group, "--to-offset", 0, "--execute")
    for words in (
        ("topics", "describe"),
        ("topics", "delete", names[0]),
        ("consume", "-b", tab.bootstrap),
        ("produce",),
    ):
        assert completed(tab, *words, "completed-") == names, words
    assert completed(tab, "groups", "describe", "completed-g") == ["completed-group"]
    assert completed(tab, "consume", "--group", "completed-") == ["completed-group"]
    assert completed(tab, "brokers", "describe", "") == ["1"]
    assert "__consumer_offsets" in completed(tab, "topics", "describe", "__")


def test_profiles(tab: Cli) -> None:
    for name in ("production", "play"):
        tab.ok("profile", "create", name)
    assert completed(tab, "profile", "use", "pr") == ["production"]
    assert completed(tab, "topics", "list", "--profile", "p") == ["play", "production"]


def test_nothing_is_said_where_there_is_nothing(tab: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion, "QUESTION_MS", 300)
    for words in (
        ("topics", "describe", "-b", "127.0.0.1:1"),
        ("topics", "describe", "-b", "no-such-host.invalid:1"),
        ("topics", "describe", "--profile", "nothing"),
        ("topics", "describe", "--command-config", "/no/such"),
        ("consume", "--property", "no.such.key=1"),
    ):
        assert completed(tab, *words, "completed-") == [], words
