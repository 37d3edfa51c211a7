"""One node and one way to run the command for all tests of the command line.

Owns nothing that lasts. Invariant: every command's stderr is looked at: at most one line, except
where a test asks for help or warnings.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, Final, TextIO, TypeVar

import pytest

from moldau.testing import Cluster
from tests.system.processes import Ended, run_cli

FAILED: Final = 1
WRONG_USAGE: Final = 2
MODULE: Final = (sys.executable, "-m", "moldau")

Result = TypeVar("Result")


class Cli:
    """Runs `moldau` against one cluster, found through the environment."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.environ = {"MOLDAU_BOOTSTRAP_SERVER": bootstrap, "COLUMNS": "40", "TERM": "xterm"}

    def end(
        self, *arguments: object, environ: Mapping[str, str] | None = None, **given: Any
    ) -> Ended:
        """Run a command, however it ends; `given` and streams are those of `run_here`."""
        ended = run_cli(*arguments, environ={**self.environ, **(environ or {})}, **given)
        assert "Traceback" not in ended.errors, ended.errors
        assert "\x1b" not in ended.output + ended.errors, "no terminal, no colours"
        return ended

    def ok(self, *arguments: object, **given: Any) -> str:
        """Run a command that succeeds silently; its output."""
        ended = self.end(*arguments, **given)
        assert (ended.status, ended.errors) == (0, "")
        return ended.output

    def json(self, *arguments: object, **given: Any) -> Any:
        """Run a reading command with `--json`; its document."""
        return json.loads(self.ok(*arguments, "--json", **given))

    def refused(self, *arguments: object, status: int = FAILED, **given: Any) -> str:
        """Run a command that fails; the one line that says why."""
        ended = self.end(*arguments, **given)
        assert ended.status == status, ended
        assert ended.output == ""
        lines = ended.errors.splitlines()
        assert len(lines) == 1, ended.errors
        assert lines[0].startswith("moldau: "), lines
        return lines[0]

    def start(self, *arguments: object, **streams: Any) -> subprocess.Popen[str]:
        """Start a command as a process, for signals; its standard streams are pipes."""
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        return subprocess.Popen(
            [*MODULE, *map(str, arguments)],
            text=True,
            env={**os.environ, **self.environ},
            **{**pipes, **streams},
        )


@contextmanager
def heard(
    listen: Callable[[TextIO], Result], ends: Callable[[], tuple[int, int]] = os.pipe
) -> Iterator[tuple[int, Future[Result]]]:
    """A descriptor for a command to write to, and what `listen` makes of the other end in a thread.

    Args:
        ends: makes both; a terminal's, if it is `pty.openpty`.
    """
    reader, writer = ends()
    with open(reader, newline="") as opened, ThreadPoolExecutor(1) as threads:
        future = threads.submit(listen, opened)
        try:
            yield writer, future
        finally:
            os.close(writer)


def all_of(opened: TextIO) -> str:
    """What is written until the end."""
    read: list[str] = []
    with suppress(OSError):  # how the end of a terminal looks
        read.extend(iter(lambda: opened.read(1), ""))
    return "".join(read)


def table(output: str) -> list[list[str]]:
    """The cells of a printed table, header first; rules and empty lines left out."""
    rows = [line.split() for line in output.splitlines() if line.strip(" ─")]
    return [row for row in rows if row]


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The node that all commands talk to."""
    with Cluster() as running:
        yield running


@pytest.fixture(scope="session")
def cli(cluster: Cluster) -> Cli:
    """The command, pointed at the node."""
    return Cli(cluster.bootstrap_server)
