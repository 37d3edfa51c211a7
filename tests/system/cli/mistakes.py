"""What a mistake at the command is, and how its answer is judged.

Invariant: a mistake is answered by one line on the standard error, which names what was wrong, and
by an exit status; never by a traceback.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tests.system.cli.conftest import Cli

REPORT: Final = "MOLDAU_MISTAKES"
"""The file that gets a line per mistake: its name, status, seconds, command and answer."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """One wrong command line.

    Attributes:
        command: without `moldau`; names in braces are those of the world that it is made in.
        status: the exit status to expect.
        words: what the one line must say, in any case of letters.
        typed: the standard input.
    """

    name: str
    command: str
    status: int
    words: tuple[str, ...]
    typed: str = ""


def play(cli: Cli, names: Mapping[str, str], mistake: Mistake) -> None:
    """Make the mistake, and judge the answer."""
    words = [word.format(**names) for word in shlex.split(mistake.command)]
    began = time.monotonic()
    ended = cli.end(*words, given=mistake.typed.encode())
    took_s = time.monotonic() - began
    lines = ended.errors.splitlines()
    longest = max(lines, key=len, default="")
    if REPORT in os.environ:
        shown = (mistake.name, ended.status, f"{took_s:.2f}", shlex.join(words), longest)
        with open(os.environ[REPORT], "a") as report:
            print(*shown, sep="\t", file=report)
    assert ended.status == mistake.status, ended
    # On a slow machine the client's warning comes too, and the error says the same and more.
    assert [each for each in lines if each.removeprefix("moldau: ") not in longest] == []
    assert longest.startswith("moldau: "), ended
    for word in mistake.words:
        assert word.format(**names).lower() in longest.lower()
