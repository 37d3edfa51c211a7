"""A command in a terminal, and the person who has typed the answers already."""

from __future__ import annotations

import os
import pty
from collections.abc import Mapping
from typing import Final

from tests.kit.commands import Ended, run_here

END: Final = b"\x1e"
"""No command writes it."""


def run_at_terminal(
    *arguments: object, typed: str, environ: Mapping[str, str] | None = None
) -> Ended:
    """Run a command whose standard input and error are a terminal's; the error has what it shows,
    the typed words among it.
    """
    person, terminal = pty.openpty()
    try:
        os.write(person, typed.encode())
        ended = run_here(*arguments, environ=environ, stdin=terminal, stderr=terminal)
        os.write(terminal, END)
        shown = b""
        while not shown.endswith(END):
            shown += os.read(person, 4096)
    finally:
        os.close(terminal)
        os.close(person)
    return ended._replace(errors=shown.removesuffix(END).decode().replace("\r\n", "\n"))
