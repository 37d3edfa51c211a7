"""A terminal at which a reader types: bash on a pseudo terminal of 80 columns.

Owns one shell. Must not change what is typed. Invariant: what was typed has ended when `type`
returns; what goes on (`start`) ends by Ctrl-C, and with the terminal at the latest.
"""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import signal
import subprocess
import termios
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.kit.waiting import patience

DEADLINE_S: Final = 300.0
CLOSE_S: Final = 10.0
SHELL: Final = ("bash", "--noprofile", "--norc", "--noediting", "-i")
#: Every command that fails says so; in a pipe each one counts.
PREPARE: Final = (
    r"set -o pipefail; trap 'printf "
    '"\\n<failed with %d: %s>\\n" "$?" "$BASH_COMMAND"'
    r"' ERR"
)
_ENDED: Final = re.compile(r"\n?<ended (\d+)>\n")
_FAILED: Final = re.compile(r"^<failed with .*>$", re.MULTILINE)
_CONTROL: Final = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[=>]")


class Stuck(Exception):
    """What was typed did not do in time what it must; the text has what the terminal shows."""


class Failed(Exception):
    """A command ended with another status than 0; the text has what the terminal shows."""


class TypingTerminal:
    """Use `close` at the end.

    Args:
        home: the working directory.
        environ: all that the shell gets.
    """

    def __init__(self, home: Path, environ: Mapping[str, str]) -> None:
        self.is_busy = False
        self._shown = ""
        self._numbers = 0
        self._terminal, inside = pty.openpty()
        termios.tcsetwinsize(self._terminal, (24, 80))
        settings = termios.tcgetattr(self._terminal)
        settings[3] &= ~termios.ECHO
        termios.tcsetattr(self._terminal, termios.TCSANOW, settings)
        self._shell = subprocess.Popen(
            ["setsid", "--ctty", *SHELL],
            stdin=inside,
            stdout=inside,
            stderr=inside,
            cwd=home,
            env={**environ, "PS1": "", "PS2": ""},
        )
        os.close(inside)
        self.type(PREPARE)

    def type(self, text: str) -> str:
        """Type some lines; what they wrote, once they have ended. Raises: Failed, Stuck."""
        self._write(text)
        return self._end()

    def start(self, text: str, shows: str) -> str:
        """Type some lines, of which the last goes on; what they wrote, once lines of it match the
        pattern. Raises: Failed, Stuck
        """
        self._write(text)
        self.is_busy = True
        return self._read_until(re.compile(shows, re.MULTILINE))

    def interrupt(self) -> str:
        """Ctrl-C, until what goes on has ended; what it wrote since. Raises: Failed, Stuck."""
        # Neither does a shell that is just starting a command pass it on, nor does it read what is
        # typed before it has noticed.
        self._wait_for(CLOSE_S, shell=False)
        os.write(self._terminal, b"\x03")
        self._wait_for(DEADLINE_S * patience(), shell=True)
        self.is_busy = False
        return self._end()

    def close(self) -> None:
        """End the shell and what was started in it; no more than a moment for either."""
        with contextlib.suppress(OSError, Failed):  # the shell has ended
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
                group = os.tcgetpgrp(self._terminal)
                if group in (0, self._shell.pid):  # 0: no terminal of a shell any more
                    break
                os.killpg(group, number)
                self._wait_for(CLOSE_S, shell=True)
        self._shell.kill()
        self._shell.wait()
        os.close(self._terminal)

    def _wait_for(self, seconds: float, *, shell: bool) -> None:
        """Wait until the shell, or what goes on, has the terminal, or until the time is over."""
        until = time.monotonic() + seconds
        while (os.tcgetpgrp(self._terminal) == self._shell.pid) != shell:
            if time.monotonic() > until:
                return
            self._read(0.1)

    def _write(self, text: str) -> None:
        self._shown = ""
        for line in text.rstrip("\n").split("\n"):
            os.write(self._terminal, line.encode() + b"\n")

    def _end(self) -> str:
        self._numbers += 1
        os.write(self._terminal, f"printf '\\n<ended {self._numbers}>\\n'\n".encode())
        shown = self._read_until(re.compile(rf"\n?<ended {self._numbers}>\n"))
        return _ENDED.sub("", shown)

    def _read_until(self, pattern: re.Pattern[str]) -> str:
        until = time.monotonic() + DEADLINE_S * patience()
        while True:
            shown = _plain(self._shown)
            if found := _FAILED.search(shown):
                raise Failed(f"{found[0]}\n{shown}")
            if pattern.search(shown):
                return shown
            if time.monotonic() > until:
                raise Stuck(f"/{pattern.pattern}/ did not come:\n{shown}")
            self._read(0.5)

    def _read(self, seconds: float) -> None:
        ready, _, _ = select.select([self._terminal], [], [], seconds)
        if not ready:
            return
        try:
            self._shown += os.read(self._terminal, 65_536).decode(errors="replace")
        except OSError:
            raise Failed(f"the shell has ended:\n{_plain(self._shown)}") from None


def _plain(shown: str) -> str:
    """Without colours; of a line that was written over, what stands last."""
    text = _CONTROL.sub("", shown).replace("\r\n", "\n")
    return re.sub(r"^[^\n]*\r(?=[^\n])", "", text, flags=re.MULTILINE)
