"""Nodes, loads, and what runs beside them, as processes: on which core, begun, ended, collected.

Owns how a module of `benchmarks` gets an order (`python -m benchmarks.MODULE ORDER…`, a dataclass
as JSON) and how what it measured comes back (its last line, JSON), for both of the processes.
Invariant: leaving a context ends its process.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar, get_args, get_type_hints

from benchmarks.machine import ROOT

STOP_DEADLINE_S: Final = 30.0

Order = TypeVar("Order")
Outcome = TypeVar("Outcome")
Place = Callable[[], None]
"""What a process does before it runs: where, and with which priority."""


# -- on which core ------------------------------------------------------------------------------


def pin_server() -> None:
    """Run on the first core: where two processes land decides more than what they do."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[:1])


def pin_load() -> None:
    """Run on any core but the servers', when there is another."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[1:] or cores)


@contextlib.contextmanager
def on_load_core() -> Iterator[None]:
    """The measuring client runs where loads do, and what it starts."""
    cores = os.sched_getaffinity(0)
    pin_load()
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


@contextlib.contextmanager
def first_on_load_core() -> Iterator[None]:
    """The measuring client has the loads' core as soon as it has work, where that is allowed: what
    is measured is the server, not the wait for a core.
    """
    with on_load_core(), contextlib.ExitStack() as stack:
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
            stack.callback(os.sched_setscheduler, 0, os.SCHED_OTHER, os.sched_param(0))
        yield


def give_way() -> None:
    """Run on the loads' core while nothing else has work for it."""
    pin_load()
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


# -- nodes --------------------------------------------------------------------------------------


def start_node(
    command: Sequence[str], log_path: Path, place: Place | None = None
) -> subprocess.Popen[bytes]:
    """A node that is no process of this terminal's; what it prints goes to its log."""
    with log_path.open("ab") as log:
        return subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=place,
        )


def kill(process: subprocess.Popen[bytes]) -> None:
    """`kill -9`, and wait until it is gone."""
    process.kill()
    process.wait(STOP_DEADLINE_S)


# -- loads, from where they are ordered ---------------------------------------------------------


class Running(NamedTuple):
    """A process that has begun, and the line by which it said so."""

    process: subprocess.Popen[bytes]
    begun: str


def start_load(
    module: str, *arguments: Any, place: Place | None = pin_load
) -> subprocess.Popen[bytes]:
    """Start `benchmarks.MODULE` with these orders, names and numbers."""
    return subprocess.Popen(
        [sys.executable, "-m", f"benchmarks.{module}", *map(_text, arguments)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        preexec_fn=place,
    )


def _text(argument: Any) -> str:
    if isinstance(argument, str | int):
        return str(argument)
    return json.dumps(asdict(argument))


def outcome_of(process: subprocess.Popen[bytes], deadline_s: float | None = None) -> Any:
    """Wait for a load and return what it measured."""
    output, _ = process.communicate(timeout=deadline_s)
    assert process.returncode == 0, "the load failed, see above"
    return json.loads(output.splitlines()[-1])


def run_load(
    module: str,
    order: Any,
    kind: Callable[..., Outcome],
    *,
    place: Place | None = pin_load,
    deadline_s: float | None = None,
) -> Outcome:
    """One load from its start to its end; what it measured."""
    with start_load(module, order, place=place) as process:
        try:
            return kind(**outcome_of(process, deadline_s))
        finally:
            process.kill()


@contextlib.contextmanager
def running(module: str, *arguments: Any, place: Place | None = pin_load) -> Iterator[Running]:
    """A process that has said that it has begun, and goes on beside the measurement."""
    with start_load(module, *arguments, place=place) as process:
        assert process.stdout is not None, "a pipe"
        try:
            begun = process.stdout.readline().decode()
            assert begun, f"{module} did not begin"
            yield Running(process, begun)
            assert process.poll() in (None, 0), f"{module} failed"
        finally:
            process.kill()


@contextlib.contextmanager
def awake(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """One that is stopped outside of its turns."""
    process.send_signal(signal.SIGCONT)
    yield
    assert process.poll() is None, "it ended"
    process.send_signal(signal.SIGSTOP)


# -- loads, in their own process ----------------------------------------------------------------


def given(kind: type[Order], number: int = 1) -> Order:
    """The order that is this argument of the process."""
    return _read(kind, json.loads(sys.argv[number]))


def _read(kind: type[Order], values: Mapping[str, Any]) -> Order:
    """What `asdict` has made of an order, which may have sequences of others."""
    read = dict(values)
    for name, hint in get_type_hints(kind).items():
        inner = next(iter(get_args(hint)), None)
        if isinstance(inner, type) and is_dataclass(inner):
            read[name] = [_read(inner, each) for each in values[name]]
    return kind(**read)


def carry_out(kind: type[Order], run: Callable[[Order], Any]) -> None:
    """Run the order that is the only argument, and print what was measured."""
    print(json.dumps(asdict(run(given(kind)))))
