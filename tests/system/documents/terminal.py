"""A reader's terminal: documented commands run in it as they are written.

Owns one working directory and what was started in it. Must not change a command, but for what each
test says: addresses, ports and ids of the text stand for those of this machine. Invariant: when the
context is left, nothing that was started in it runs any more.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from tests.kit.waiting import until
from tests.tidy.sources import ROOT

DEADLINE_S: Final = 240.0
END_S: Final = 60.0
SHELL: Final = ("bash", "-euo", "pipefail", "-c")


class Serving:
    """A command that goes on until it is asked to end."""

    def __init__(self, command: str, home: Path, environ: Mapping[str, str], log: Path) -> None:
        self.command = command
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [*SHELL, f"exec {command}"],
                cwd=home,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        """All that it wrote so far, to both outputs."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def wait_said(self, pattern: str) -> re.Match[str]:
        """Wait until it has written something that matches."""

        def found() -> re.Match[str] | None:
            match = re.search(pattern, self.said)
            assert match or self._process.poll() is None, f"{self.command} ended: {self.said}"
            return match

        until(found, what=f"{self.command} says {pattern}", deadline_s=DEADLINE_S)
        match = found()
        assert match is not None
        return match

    def interrupt(self, *, status: int = 0) -> str:
        """Ctrl-C, until it has ended, with that status; all that it wrote."""
        self._process.send_signal(signal.SIGINT)
        return self.wait_end(status=status)

    def wait_end(self, *, status: int = 0) -> str:
        """Wait until it has ended by itself, with that status; all that it wrote."""
        ended = self._process.wait(END_S)
        assert ended == status, f"{self.command} ended with {ended}: {self.said}"
        return self.said

    def kill(self) -> None:
        """End it whatever it does, with all that it started."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Terminal:
    """Use as a context.

    Args:
        home: the working directory.
        bootstrap: of the cluster that commands find by themselves.
        instead: what stands in the text, and what to put there.
    """

    def __init__(
        self, home: Path, bootstrap: str = "", instead: Mapping[str, str] | None = None
    ) -> None:
        self.home = home
        self.instead = dict(instead or {})
        self._serving: list[Serving] = []
        command = home / "bin" / "moldau"
        command.parent.mkdir(exist_ok=True)
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m moldau "$@"\n')
        command.chmod(0o755)
        self.environ = {
            **os.environ,
            "PATH": f"{command.parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": sys.executable,
            "MOLDAU_CONFIG_HOME": str(home / "configuration"),
        }
        if bootstrap:
            self.environ["MOLDAU_BOOTSTRAP_SERVER"] = bootstrap

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._serving:
            each.kill()

    def run(self, command: str, given: str = "", *, status: int = 0) -> str:
        """A command to its end, with that status; what it wrote to standard output."""
        return self.execute([*SHELL, self._here(command)], given, status=status)

    def program(self, code: str) -> str:
        """A Python program to its good end; what it wrote to standard output."""
        return self.execute([sys.executable, "-c", self._here(code)])

    def serve(self, command: str, *more: object) -> Serving:
        """Start a command that goes on, with more arguments than are written."""
        line = " ".join([self._here(command), *map(str, more)])
        log = self.home / f"serving-{len(self._serving)}.log"
        self._serving.append(Serving(line, self.home, self.environ, log))
        return self._serving[-1]

    def _here(self, text: str) -> str:
        for documented, real in self.instead.items():
            text = text.replace(documented, real)
        return text

    def execute(self, words: list[str], given: str = "", *, status: int = 0) -> str:
        """The same for words that are not from a document."""
        done = subprocess.run(
            words,
            cwd=self.home,
            env=self.environ,
            input=given,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == status, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout
