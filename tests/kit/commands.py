"""Runs the `moldau` command in the process of the test, as its own process would run it, and nodes
that refuse to start.

Owns the arguments, the environment, the standard streams (files of their own, which may be closed)
and the loggers while a command runs. Must not judge what a command says. Invariants: what the
process had before, it has behind a command: one that leaves threads, signal handlers, clients or
another directory behind fails the test; a command that becomes a node is a child process.
"""

from __future__ import annotations

import gc
import io
import logging
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import BinaryIO, Final, NamedTuple, NoReturn
from unittest.mock import patch

from moldau.cli.main import main
from moldau.client.sync import portal

CLOSED: Final = -1
"""Stands in place of a descriptor: the stream is closed."""

END_S: Final = 120
"""So long a node that a command became, or a thread, may take to end."""

SHARED_THREADS: Final = ("moldau-client-sync", "asyncio_")
"""Threads of the process that outlive what they were started for."""

_ALONE: Final = threading.Lock()

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)


class Ended(NamedTuple):
    """How a command ended. Bytes that are no text are surrogates."""

    status: int
    output: str
    errors: str

    @property
    def output_bytes(self) -> bytes:
        return self.output.encode(errors="surrogateescape")

    @property
    def complaint(self) -> str:
        """The one line that says what is wrong."""
        assert "Traceback" not in self.errors, self.errors
        lines = [line for line in self.errors.splitlines() if line.startswith("moldau: ")]
        assert len(lines) == 1, self.errors
        return lines[0]


def run_here(
    *arguments: object,
    given: bytes = b"",
    environ: Mapping[str, str] | None = None,
    stdin: int | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
    program: Callable[[], object] = main,
) -> Ended:
    """Run a command to its end. What it raises, which would be a traceback, is raised.

    Args:
        given: what is to read on the standard input.
        environ: beside the environment of this process.
        stdin, stdout, stderr: a descriptor to use as the stream, or `CLOSED`; else files are.
        program: what the process is for, and how it exits.
    """
    with ExitStack() as stack:
        stack.enter_context(_ALONE)
        files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
        files[0].write(given)
        files[0].seek(0)
        descriptors = [
            file.fileno() if asked is None else asked
            for file, asked in zip(files, (stdin, stdout, stderr), strict=True)
        ]
        stack.enter_context(_nothing_left())
        stack.enter_context(patch.dict(os.environ, environ or {}))
        stack.enter_context(patch.object(sys, "argv", ["moldau", *map(str, arguments)]))
        stack.enter_context(patch.object(sys.modules["__main__"], "__package__", None))
        stack.enter_context(patch.object(os, "execv", _become))
        stack.enter_context(patch("rich._console", None))  # it remembers what it was made on
        for name, descriptor in zip(("stdin", "stdout", "stderr"), descriptors, strict=True):
            opened = None if descriptor == CLOSED else _opened(name, descriptor)
            for attribute in (name, f"__{name}__"):
                stack.enter_context(patch.object(sys, attribute, opened))
        status = _status(program)
        return Ended(status, *map(_content, files[1:]))


def _status(program: Callable[[], object]) -> int:
    """The exit status of the command whose arguments, environment and streams are in place."""
    try:
        program()
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code & 0xFF if isinstance(end.code, int) else end.code is not None
    finally:
        for stream in (sys.stdin, sys.stdout, sys.stderr):
            if stream is not None:  # as the interpreter's end flushes them
                stream.close()


def _opened(name: str, descriptor: int) -> io.TextIOWrapper:
    """As the interpreter opens a standard stream."""
    if name == "stdin":
        read = io.BufferedReader(io.FileIO(descriptor, "r", closefd=False))
        return io.TextIOWrapper(read, "utf-8")
    return io.TextIOWrapper(
        io.BufferedWriter(io.FileIO(descriptor, "w", closefd=False)),
        "utf-8",
        "backslashreplace" if name == "stderr" else "strict",
        newline="\n",
        line_buffering=name == "stderr" or os.isatty(descriptor),
    )


def _content(file: BinaryIO) -> str:
    file.seek(0)
    return file.read().decode(errors="surrogateescape")


def _become(path: str, arguments: list[str]) -> NoReturn:
    """Stands in place of `os.execv`: another program takes the process over, streams and all."""
    streams = {
        name: subprocess.DEVNULL if stream is None else stream.fileno()
        for name, stream in (("stdin", sys.stdin), ("stdout", sys.stdout), ("stderr", sys.stderr))
    }
    done = subprocess.run(arguments, executable=path, timeout=END_S, check=False, **streams)
    raise SystemExit(done.returncode)


@contextmanager
def _nothing_left() -> Iterator[None]:
    """Our loggers, the filters of warnings, and what a node asks of its process (no collection of
    garbage, all descriptors) are put back; what else is left is a fault.
    """
    before = _process_state()
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)
    kept = {each: (each.level, each.propagate, [*each.handlers]) for each in _loggers()}
    last_resort = logging.lastResort
    assert last_resort is not None
    formatter = last_resort.formatter
    logging.getLogger("moldau").propagate = False  # pytest hears what propagates
    with warnings.catch_warnings():
        try:
            yield
        finally:
            gc.enable()
            resource.setrlimit(resource.RLIMIT_NOFILE, descriptors)
            for each in _loggers():
                level, each.propagate, each.handlers = kept.get(each, (logging.NOTSET, True, []))
                each.setLevel(level)
            last_resort.setFormatter(formatter)
    for each in _threads() - before:
        each.join(END_S)  # such as rich draws bars with end by themselves
    left = _process_state() - before
    assert not left, f"the command has left {left}"


def _loggers() -> list[logging.Logger]:
    """Ours."""
    logging.getLogger("moldau")
    found = [*logging.root.manager.loggerDict.items()]
    return [
        each
        for name, each in found
        if name.partition(".")[0] == "moldau" and isinstance(each, logging.Logger)
    ]


def _threads() -> set[threading.Thread]:
    """Those that are of one user."""
    return {each for each in threading.enumerate() if not each.name.startswith(SHARED_THREADS)}


def _process_state() -> set[object]:
    """What a command must not add to."""
    clients = portal._shared._clients if portal._shared is not None else ()
    handlers = {(each, signal.getsignal(each)) for each in SIGNALS}
    return {("directory", os.getcwd()), ("disabled", logging.root.manager.disable)}.union(
        _threads(), clients, handlers
    )
