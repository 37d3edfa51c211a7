"""One node and one way to run the command for all tests of the command line.

Owns nothing that lasts. Invariant: every command's stderr is looked at: at most one line, except
where a test asks for help or warnings.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest

from moldau.testing import Cluster
from tests.system.processes import Ended, run_cli

FAILED: Final = 1
WRONG_USAGE: Final = 2


class Cli:
    """Runs `moldau` against one cluster, found through the environment."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.environ = {
            "MOLDAU_BOOTSTRAP_SERVER": bootstrap,
            "COLUMNS": "40",
            "PYTHONDONTWRITEBYTECODE": "",  # the same command runs dozens of times
        }

    def end(self, *arguments: object, environ: Mapping[str, str] | None = None) -> Ended:
        """Run a command, however it ends."""
        ended = run_cli(*arguments, environ={**self.environ, **(environ or {})})
        assert "Traceback" not in ended.errors, ended.errors
        assert "\x1b" not in ended.output + ended.errors, "no terminal, no colours"
        return ended

    def ok(self, *arguments: object, environ: Mapping[str, str] | None = None) -> str:
        """Run a command that succeeds silently; its output."""
        ended = self.end(*arguments, environ=environ)
        assert (ended.status, ended.errors) == (0, "")
        return ended.output

    def json(self, *arguments: object) -> Any:
        """Run a reading command with `--json`; its document."""
        return json.loads(self.ok(*arguments, "--json"))

    def refused(
        self, *arguments: object, status: int = FAILED, environ: Mapping[str, str] | None = None
    ) -> str:
        """Run a command that fails; the one line that says why."""
        ended = self.end(*arguments, environ=environ)
        assert ended.status == status, ended
        assert ended.output == ""
        lines = ended.errors.splitlines()
        assert len(lines) == 1, ended.errors
        assert lines[0].startswith("moldau: "), lines
        return lines[0]


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


@pytest.fixture
def environ_without_bootstrap() -> dict[str, str]:
    """As on a machine where nobody has set anything: the default address must be used."""
    assert "MOLDAU_BOOTSTRAP_SERVER" not in os.environ
    return {"MOLDAU_BOOTSTRAP_SERVER": ""}
