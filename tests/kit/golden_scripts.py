"""Golden interaction scripts: text files that say what state machines do, read and found right once
(etcd/raft's habit).

A script that is played has commands and, below each, the lines that it brings:

    # A member that joins for the first time is given an id.
    > join a
    a: MEMBER_ID_REQUIRED

A change of the product that changes a script must be read again by a person. With the environment
variable `MOLDAU_WRITE_SCRIPTS=1` the tests write the files instead; comments and commands stay.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

COMMAND: Final = "> "


def _compare(path: Path, lines: Iterable[str]) -> None:
    """Assert that the file has these lines, or write it."""
    text = "\n".join(lines).strip() + "\n"
    if os.environ.get("MOLDAU_WRITE_SCRIPTS"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), path.name


def check_script(path: Path, execute: Callable[[list[str]], Iterable[str]]) -> None:
    """Execute the file's commands, each given as its words, and compare what they bring."""
    lines: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            lines.append(line)
        elif line.startswith(COMMAND):
            lines.append(line)
            for brought in execute(line.removeprefix(COMMAND).split()):
                assert brought, "an empty line would not be part of the answer"
                assert not brought.startswith((COMMAND, "#")), brought
                lines.append(brought)
    _compare(path, lines)
