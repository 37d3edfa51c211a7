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


def play(cli: Cli, names: Mapping[str, str], mistake: Mistake) -> list[str]:
    """Make the mistake; what is wrong with the answer."""
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
    found = [] if ended.status == mistake.status else [f"status {ended.status}: {ended}"]
    # On a slow machine the client's warning comes too, and the error says the same and more.
    found += [each for each in lines if each.removeprefix("moldau: ") not in longest]
    if not longest.startswith("moldau: "):
        found.append(f"no line of the command's own: {ended}")
    wanted = [word.format(**names) for word in mistake.words]
    return found + [
        f"{word!r} is not in {longest!r}" for word in wanted if word.lower() not in longest.lower()
    ]
