"""Completion in a real shell: commands and options, and what only the cluster knows."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from moldau.cli.completion import QUESTION_MS
from moldau.client import NewTopic
from moldau.client.sync import Admin, Consumer
from tests.system.cli.conftest import Cli

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")


class Shell:
    """A bash that has our completion.

    Args:
        question_ms: how long the cluster may take to answer, if not as long as usual.
    """

    def __init__(self, home: Path, environ: dict[str, str], question_ms: int = QUESTION_MS) -> None:
        command = home / "moldau"
        command.write_text(
            f"#!/bin/sh\nexec {shlex.quote(sys.executable)} -c "
            '\'import sys; sys.argv[0] = "moldau"; import moldau.cli.completion as c; '
            f"c.QUESTION_MS = {question_ms}; "
            'import moldau.__main__ as m; m.main()\' "$@"\n'
        )
        command.chmod(0o755)
        self._environ = {
            **os.environ,
            **environ,
            "PATH": f"{home}:{os.environ['PATH']}",
            "MOLDAU_CONFIG_HOME": str(home / "configuration"),
            "SHELL": "/bin/bash",
        }

    def run(self, script: str) -> str:
        done = subprocess.run(
            ["bash", "-c", script],
            env=self._environ,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.stderr == ""
        return done.stdout

    def completed(self, *words: str) -> list[str]:
        """What Tab offers behind these words, the last of which is not complete."""
        line = " ".join(f"{word!r}" for word in words)
        script = (
            'eval "$(moldau --show-completion)"\n'
            f"COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}\n"
            "_moldau_completion moldau\n"
            'printf "%s\\n" "${COMPREPLY[@]}"'
        )
        return self.run(script).split()


@pytest.fixture
def shell(cli: Cli, tmp_path: Path) -> Shell:
    return Shell(tmp_path, cli.environ)


@pytest.fixture
def patient(cli: Cli, tmp_path: Path) -> Shell:
    """A busy machine may take longer than a user at the keyboard should wait."""
    return Shell(tmp_path, cli.environ, question_ms=50_000)


def test_commands_and_options(shell: Shell) -> None:
    assert shell.completed("moldau", "top") == ["topics"]
    assert {"describe", "delete"} <= set(shell.completed("moldau", "topics", "de"))
    assert "--value-format" in shell.completed("moldau", "consume", "--value")


def test_what_only_the_cluster_knows(patient: Shell, cli: Cli) -> None:
    names = [f"completed-{index}" for index in range(3)]
    with Admin(cli.bootstrap) as admin:
        admin.create_topics([NewTopic(each) for each in names])
    with Consumer(cli.bootstrap, group_id="completed-group") as consumer:
        consumer.subscribe(names)
        consumer.getmany(timeout_ms=10_000, max_records=1)
        consumer.commit()
    for words in (
        ("topics", "describe"),
        ("topics", "delete", names[0]),
        ("consume", "-b", cli.bootstrap),
        ("produce",),
    ):
        assert patient.completed("moldau", *words, "completed-") == names, words
    assert patient.completed("moldau", "groups", "describe", "completed-g") == ["completed-group"]
    assert patient.completed("moldau", "consume", "--group", "completed-") == ["completed-group"]
    assert patient.completed("moldau", "brokers", "describe", "") == ["1"]
    assert "__consumer_offsets" in patient.completed("moldau", "topics", "describe", "__")


def test_profiles(shell: Shell) -> None:
    shell.run("moldau profile create production; moldau profile create play")
    assert shell.completed("moldau", "profile", "use", "pr") == ["production"]
    assert shell.completed("moldau", "topics", "list", "--profile", "p") == ["play", "production"]


def test_nothing_is_said_where_there_is_nothing(shell: Shell) -> None:
    for words in (
        ("topics", "describe", "-b", "127.0.0.1:1"),
        ("topics", "describe", "-b", "no-such-host.invalid:1"),
        ("topics", "describe", "--profile", "nothing"),
        ("topics", "describe", "--command-config", "/no/such"),
        ("consume", "--property", "no.such.key=1"),
    ):
        assert shell.completed("moldau", *words, "completed-") == [], words
