"""The standard streams of the command, so that what is wrong with one of them has its own error.

Invariant: none of the three is None, and no socket or file gets the number of one that is closed.
"""

from __future__ import annotations

import os
import select
import sys
from errno import EBADF
from io import BufferedReader, BufferedWriter, FileIO, TextIOWrapper
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from typing import BinaryIO

    from _typeshed import ReadableBuffer, WriteableBuffer

CLOSED: Final = "it is closed"


class StandardOutputError(Exception):
    """The standard output takes no more. It is no `OSError`, so that what handles those of other
    files lets it pass.
    """


class ReaderHasGoneError(Exception):
    """The reader of the standard output has closed it, as `head` does: no reason to complain."""


class StandardInputError(OSError):
    """The standard input is closed."""


class _Output(FileIO):
    def write(self, data: ReadableBuffer, /) -> int | None:  # type: ignore[override]
        try:
            return super().write(data)
        except BrokenPipeError:
            raise ReaderHasGoneError from None
        except OSError as error:
            what = CLOSED if error.errno == EBADF else error.strerror or error
            raise StandardOutputError(f"standard output: {what}") from None


class _ClosedInput(FileIO):
    def readinto(self, buffer: WriteableBuffer, /) -> int:
        raise StandardInputError(EBADF, CLOSED)


def open_standard_streams() -> None:
    """Replace those that the interpreter has made, or has found closed."""
    if sys.stdin is None:
        held = _ClosedInput(_null(os.O_RDONLY))
        sys.stdin = TextIOWrapper(BufferedReader(held))
    if sys.stdout is None:
        # What is only open for reading refuses to be written to, as what is closed does.
        sys.stdout = _text(_Output(_null(os.O_RDONLY), "w"))
    elif (before := sys.__stdout__) is sys.stdout and isinstance(before, TextIOWrapper):
        sys.stdout = _text(_Output(before.fileno(), "w", closefd=False), before)
    if sys.stderr is None:
        sys.stderr = TextIOWrapper(FileIO(_null(os.O_WRONLY), "w"))


def check_reader() -> None:
    """Notice without writing that the reader of the standard output has gone: for commands that
    wait for something to write. Raises: ReaderHasGoneError.
    """
    poll = select.poll()
    try:
        poll.register(sys.stdout.fileno(), 0)
    except OSError:  # a stream of a test, without a descriptor
        return
    if any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0)):
        raise ReaderHasGoneError


def discard_output() -> None:
    """What is still to be written to the standard output, at the exit too, goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _null(flags: int) -> int:
    """A descriptor that nodes inherit: uvloop aborts the process that closes one of the first three
    as its own.
    """
    descriptor = os.open(os.devnull, flags)
    os.set_inheritable(descriptor, True)
    return descriptor


def _text(raw: FileIO, before: TextIOWrapper | None = None) -> TextIOWrapper:
    """As the interpreter makes it, also where it shall not buffer."""
    if before is None:
        return TextIOWrapper(BufferedWriter(raw), newline="\n")
    buffer: BinaryIO = raw if before.write_through else BufferedWriter(raw)
    return TextIOWrapper(
        buffer,
        before.encoding,
        before.errors,
        newline="\n",
        line_buffering=before.line_buffering,
        write_through=before.write_through,
    )
