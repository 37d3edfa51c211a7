"""Standard streams that are closed or full, and Ctrl-C before a command has begun."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.kit.commands import CLOSED
from tests.system.cli.conftest import FAILED, MODULE, WRONG_USAGE, Cli
from tests.system.processes import END_DEADLINE_S, Ended, without_slow_node

TOPIC: Final = "streams"
FULL: Final = "moldau: standard output: No space left on device\n"
NOT_OPEN: Final = "moldau: standard output: it is closed\n"
WRITING: Final = (
    "--help",
    "topics list",
    f"topics describe {TOPIC} --json",
    "groups list",
    "brokers list --json",
    "storage random-uuid",
    f"consume {TOPIC} --until-end --from-beginning",
)


def redirected(cli: Cli, redirection: str, command: str, **environ: str) -> Ended:
    """Run a command in a process, as a shell does with `redirection` behind it."""
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {redirection}', "sh", *MODULE, *command.split()],
        capture_output=True,
        text=True,
        timeout=END_DEADLINE_S,
        check=False,
        env={**os.environ, **cli.environ, **environ},
    )
    return Ended(done.returncode, done.stdout, without_slow_node(done.stderr))


@pytest.fixture
def full() -> Iterator[int]:
    """What is open for writing, and has no room."""
    with open("/dev/full", "wb", buffering=0) as opened:
        yield opened.fileno()


@pytest.fixture(scope="module", autouse=True)
def _topic(cli: Cli) -> None:
    cli.ok("topics", "create", TOPIC)
    cli.ok("produce", TOPIC, __file__)


@pytest.mark.parametrize("command", WRITING)
def test_a_full_disk_below_the_output_is_one_line_and_a_failure(cli: Cli, full: int, command: str):
    assert cli.end(*command.split(), stdout=full) == Ended(FAILED, "", FULL)


def test_output_that_is_not_buffered_fails_in_the_same_way(cli: Cli):
    """A process: the interpreter makes the stream."""
    ended = redirected(cli, ">/dev/full", "topics list", PYTHONUNBUFFERED="1")
    assert ended == Ended(FAILED, "", FULL)


def test_another_file_on_a_full_disk_is_not_taken_for_the_output(cli: Cli):
    ended = cli.end("consume", TOPIC, "--until-end", "--from-beginning", "-o", "/dev/full")
    assert ended == Ended(FAILED, "", "moldau: /dev/full: No space left on device\n")


@pytest.mark.parametrize("command", WRITING)
def test_a_closed_output_is_a_failure_of_what_writes_to_it(cli: Cli, command: str):
    assert cli.end(*command.split(), stdout=CLOSED) == Ended(FAILED, "", NOT_OPEN)


@pytest.mark.parametrize("brokers", [1, 2])
@pytest.mark.parametrize(("descriptor", "said"), [(None, FULL), (CLOSED, NOT_OPEN)])
def test_a_cluster_that_cannot_say_that_it_is_ready_ends(
    cli: Cli, full: int, descriptor: int | None, said: str, brokers: int
):
    output = full if descriptor is None else descriptor
    ended = cli.end("dev", "--port", 0, "--brokers", brokers, stdout=output)
    assert (ended.status, ended.complaint + "\n") == (FAILED, said)


def test_a_closed_input_is_a_failure_of_what_reads_it(cli: Cli):
    ended = cli.end("produce", TOPIC, stdin=CLOSED)
    assert ended.status == FAILED
    assert ended.errors == "moldau: standard input: it is closed (nothing is written)\n"
    assert cli.end("produce", TOPIC, __file__, stdin=CLOSED) == Ended(0, "", "")


def test_closed_errors_break_nothing(cli: Cli):
    assert TOPIC in cli.ok("topics", "list", stderr=CLOSED)
    assert cli.end("topics", "lst", stderr=CLOSED) == Ended(WRONG_USAGE, "", "")
    assert cli.end("topics", "list", stdout=CLOSED, stderr=CLOSED).status == FAILED


def test_closed_streams_of_a_process_break_nothing(cli: Cli):
    """A process: sockets could get the numbers of the streams."""
    consume = f"consume {TOPIC} --until-end --from-beginning"
    assert redirected(cli, ">&-", consume) == Ended(FAILED, "", NOT_OPEN)
    listed = redirected(cli, "2>&-", "topics list")
    assert (listed.status, TOPIC in listed.output) == (0, True)
    assert redirected(cli, "<&- >&- 2>&-", f"produce {TOPIC}").status == FAILED


def test_a_reader_that_has_gone_is_no_failure(cli: Cli):
    reader, writer = os.pipe()
    os.close(reader)
    assert cli.end("topics", "list", stdout=writer) == Ended(0, "", "")
    os.close(writer)


def test_ctrl_c_while_modules_are_imported_leaves_no_traceback(tmp_path: Path):
    """A process: what it is at the very beginning."""
    (tmp_path / "typer.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nraise AssertionError('alive')\n"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [*MODULE, "--help"],
        capture_output=True,
        text=True,
        timeout=END_DEADLINE_S,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
        # A job in the background is born deaf to Ctrl-C, and its children with it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")
