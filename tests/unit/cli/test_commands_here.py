"""`tests.kit.commands` runs a command as a process would, and finds what it leaves behind."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable

import pytest

from tests.kit import commands
from tests.kit.commands import CLOSED, Ended, run_here


def ran(monkeypatch: pytest.MonkeyPatch, main: Callable[[], object], **given: object) -> Ended:
    return run_here("a", 1, program=lambda: (main(), sys.exit()), **given)  # type: ignore[arg-type]


def exits(code: object) -> Callable[[], object]:
    return lambda: (sys.stdout.write("out"), sys.exit(code))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("code", "status", "errors"),
    [(0, 0, ""), (None, 0, ""), (3, 3, ""), (-1, 255, ""), ("no", 1, "no\n")],
)
def test_exit_codes_are_those_of_a_process(
    monkeypatch: pytest.MonkeyPatch, code: object, status: int, errors: str
) -> None:
    assert ran(monkeypatch, exits(code)) == Ended(status, "out", errors)


def test_what_a_command_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    def main() -> None:
        assert sys.argv == ["moldau", "a", "1"]
        assert os.environ["GIVEN"] == "x"
        os.environ["LEFT"] = "y"
        sys.stdout.buffer.write(sys.stdin.buffer.read())
        logging.getLogger("moldau.client").warning("as the last resort")
        logging.getLogger("moldau.client").addHandler(logging.NullHandler())

    ended = ran(monkeypatch, main, given=b"\xff\n", environ={"GIVEN": "x"})
    assert (ended.output_bytes, ended.errors) == (b"\xff\n", "as the last resort\n")
    assert not {"GIVEN", "LEFT"} & os.environ.keys()
    assert logging.getLogger("moldau.client").handlers == []
    assert logging.getLogger("moldau").propagate


def test_closed_streams_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def main() -> None:
        assert sys.stdin is sys.stdout is sys.__stdout__ is None

    assert ran(monkeypatch, main, stdin=CLOSED, stdout=CLOSED) == Ended(0, "", "")


def test_what_would_be_a_traceback_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError):
        ran(monkeypatch, lambda: 1 / 0)
    assert sys.argv[0] != "moldau"


@pytest.mark.real
def test_a_program_that_takes_the_process_over_is_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import sys; print(sys.stdin.read()); print('e', file=sys.stderr); sys.exit(7)"

    def main() -> None:
        sys.stdout.write("before ")
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, "-c", code])

    assert ran(monkeypatch, main, given=b"in") == Ended(7, "before in\n", "e\n")


def test_what_is_left_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(AssertionError, match="the command has left"):
        ran(monkeypatch, lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN))
    signal.signal(signal.SIGTERM, before)
    monkeypatch.setattr(commands, "END_S", 0)
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    with pytest.raises(AssertionError, match="the command has left"):
        ran(monkeypatch, thread.start)
    over.set()
    thread.join()
