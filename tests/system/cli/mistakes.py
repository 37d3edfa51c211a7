"""A new user's mistakes, played against the command: `python -m tests.system.cli.mistakes`

Owns the table of mistakes, a node that `moldau dev` runs, and what the commands need around them
(files, ports, listeners that are no brokers). Invariant: each mistake is answered by one line on
the standard error, which names what was wrong, and by an exit status; never by a traceback.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from moldau.testing.layout import PortHolder
from tests.system.processes import properties

FAILED: Final = 1
WRONG_USAGE: Final = 2
INTERRUPTED: Final = 130
DEADLINE_S: Final = 60
AT_ONCE: Final = 2
"""How many are played at a time."""
HOST: Final = "127.0.0.1"
MODULE: Final = (sys.executable, "-m", "moldau.cli.main")


@dataclass(frozen=True, slots=True)
class Mistake:
    """One wrong command line.

    Attributes:
        command: without `moldau`; names in braces are the `World`'s.
        status: the exit status to expect.
        words: what the one line must say, in any case of letters.
        typed: the standard input.
        interrupted_at: Ctrl-C follows the first line of output, or the first connection.
    """

    name: str
    command: str
    status: int
    words: tuple[str, ...]
    typed: str = ""
    interrupted_at: Literal["output", "connection"] | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """How the command ended, after how long, and how long it had been silent before."""

    status: int
    errors: str
    seconds: float
    silent_seconds: float

    @property
    def line(self) -> str:
        return " | ".join(self.errors.splitlines()) or "(nothing)"


CLUSTER: Final = (
    Mistake("wrong port", "topics list -b {closed}", FAILED, ("{closed}",)),
    Mistake(
        *("wrong host", "topics list -b no-such-host.invalid:9092"),
        *(FAILED, ("no-such-host.invalid",)),
    ),
    Mistake("no port", "topics list -b {host}:ninety", WRONG_USAGE, ("ninety", "HOST:PORT")),
    Mistake("a port too high", "topics list -b {host}:99999", WRONG_USAGE, ("99999",)),
    Mistake("consume, wrong port", "consume taken -b {closed}", FAILED, ("{closed}",)),
    Mistake("produce, wrong port", "produce taken -b {closed}", FAILED, ("{closed}",), "a\n"),
    Mistake("groups, wrong port", "groups list -b {closed}", FAILED, ("{closed}",)),
    Mistake("the controller's port", "topics list -b {controller}", FAILED, ("{controller}",)),
    Mistake("a web server", "topics list -b {web}", FAILED, ("{web}",)),
    Mistake("no TLS there", "consume taken --property security.protocol=SSL", FAILED, ("TLS",)),
)
NAMES: Final = (
    Mistake("missing topic", "topics describe typo", FAILED, ("typo",)),
    Mistake("delete a missing topic", "topics delete typo", FAILED, ("typo",)),
    Mistake("consume a missing topic", "consume typo --until-end", FAILED, ("typo",)),
    Mistake("produce to a typo", "produce typo", FAILED, ("typo", "--create"), "a\n"),
    Mistake("create it twice", "topics create taken", FAILED, ("taken", "EXISTS")),
    Mistake("a name with a space", "topics create 'two words'", FAILED, ("two words",)),
    Mistake("missing group", "groups describe nothing", FAILED, ("nothing",)),
    Mistake("missing broker", "brokers describe 7", FAILED, ("7",)),
    Mistake("settings of a missing topic", "configs describe topics typo", FAILED, ("typo",)),
    Mistake(
        *("change a missing topic", "configs alter topics typo --set retention.ms=5"),
        *(FAILED, ("typo",)),
    ),
    Mistake("settings of a missing broker", "configs describe brokers 7", FAILED, ("no broker 7",)),
    Mistake(
        *("search a missing broker", "transactions find-hanging --broker-id 7"),
        *(FAILED, ("no broker 7",)),
    ),
    Mistake("unregister a broker that serves", "brokers unregister 1", WRONG_USAGE, ("--yes",)),
    Mistake("wrong command", "topics lst", WRONG_USAGE, ("lst",)),
    Mistake("no such command", "topicz list", WRONG_USAGE, ("topicz",)),
    Mistake("wrong option", "consume taken --ofset 3", WRONG_USAGE, ("--ofset",)),
    Mistake("no name given", "topics create", WRONG_USAGE, ("NAME",)),
)
COUNTS: Final = (
    Mistake("no partitions", "topics create new --partitions 0", FAILED, ("partitions",)),
    Mistake(
        "partitions in words", "topics create new --partitions two", WRONG_USAGE, ("--partitions",)
    ),
    Mistake(
        *("three replicas, one broker", "topics create new --replication-factor 3"),
        *(FAILED, ("replication",)),
    ),
    Mistake("fewer partitions", "topics alter taken --partitions 1", FAILED, ("partitions",)),
    Mistake("no such partition", "consume taken --partition 9", FAILED, ("9",)),
    Mistake("produce to no such partition", "produce taken --partition 9", FAILED, ("9",), "a\n"),
    Mistake("no brokers", "dev --brokers 0", WRONG_USAGE, ("--brokers",)),
    Mistake("no such port", "dev --port 70000", WRONG_USAGE, ("--port",)),
)
KEYS: Final = (
    Mistake("wrong key", "topics create new --config retention.m=1", FAILED, ("retention.m",)),
    Mistake("wrong value", "topics create new --config retention.ms=soon", FAILED, ("soon",)),
    Mistake("no value", "topics create new --config retention.ms", WRONG_USAGE, ("KEY=VALUE",)),
    Mistake("a node's wrong value", "server start {wrong_value}", WRONG_USAGE, ("many",)),
    Mistake(
        *("a key that needs a restart", "configs alter brokers 1 --set node.id=2"),
        *(FAILED, ("node.id",)),
    ),
    Mistake("no such profile", "topics list --profile typo", WRONG_USAGE, ("typo",)),
    Mistake("a profile's wrong key", "profile create p acsk=all", WRONG_USAGE, ("acks",)),
    Mistake("no such format", "consume taken --value-format avor", WRONG_USAGE, ("avro",)),
    Mistake(
        "no registry", "consume taken --value-format avro", WRONG_USAGE, ("--schema-registry",)
    ),
    Mistake("a client's wrong key", "consume taken --property retry=1", WRONG_USAGE, ("retry",)),
)
FILES: Final = (
    Mistake("no such configuration", "server start {no_file}", WRONG_USAGE, ("{no_file}",)),
    Mistake("no such records", "produce taken {no_file}", FAILED, ("{no_file}",)),
    Mistake(
        *("no such client properties", "topics list --command-config {no_file}"),
        *(WRONG_USAGE, ("{no_file}",)),
    ),
    Mistake("no such log", "log dump {no_file}", FAILED, ("{no_file}",)),
    Mistake("the third line is bad", "produce taken --format json {records}", FAILED, ("line 3",)),
    Mistake("no log at all", "log dump {records}", FAILED, ("error",)),
)
DIRECTORIES: Final = (
    Mistake("not formatted", "server start {unformatted}", FAILED, ("moldau storage format",)),
    Mistake("a directory in use", "dev --port 0 --data {data}", FAILED, ("in use",)),
    Mistake("a port in use", "dev --host {host} --port {port}", FAILED, ("{port}", "in use")),
    Mistake("a node twice", "server start {server_properties}", FAILED, ("in use",)),
    Mistake(
        "a file for a directory", "dev --port 0 --data {empty_file}", FAILED, ("{empty_file}",)
    ),
    Mistake("a path under a file", "dev --port 0 --data {empty_file}/x", FAILED, ("{empty_file}",)),
    Mistake("bootstrap over a node", "quorum bootstrap {data}", FAILED, ("{data}",)),
    Mistake("bootstrap over a file", "quorum bootstrap {empty_file}", FAILED, ("{empty_file}",)),
)
CTRL_C: Final = (
    Mistake(
        *("Ctrl-C while reading", "consume taken --from-beginning"),
        *(INTERRUPTED, ("interrupted",)),
        interrupted_at="output",
    ),
    Mistake(
        *("Ctrl-C while a broker is silent", "topics list -b {silent}"),
        *(INTERRUPTED, ("interrupted",)),
        interrupted_at="connection",
    ),
)
MISTAKES: Final = (*CLUSTER, *NAMES, *COUNTS, *KEYS, *FILES, *DIRECTORIES, *CTRL_C)


class World:
    """What the mistakes are made in. `names` is what stands for the braces of their commands."""

    def __init__(self, home: Path) -> None:
        self.names: dict[str, str] = {"host": HOST}
        self.connected = threading.Event()
        self._home = home
        self._stack = ExitStack()

    def __enter__(self) -> World:
        try:
            self._make_files()
            self._take_ports()
            self._start_node()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def environment(self) -> dict[str, str]:
        """Commands find the node by it, and start as quickly as an installed one."""
        changed = {
            "MOLDAU_BOOTSTRAP_SERVER": self.names.get("address", ""),
            "PYTHONDONTWRITEBYTECODE": "",
            "COLUMNS": "80",
        }
        return {**os.environ, **changed}

    def _make_files(self) -> None:
        for name in ("wrong", "unformatted"):
            (self._home / name).mkdir()
        empty, records = self._home / "empty", self._home / "records.jsonl"
        empty.touch()
        records.write_text('{"value": "a"}\n{"value": "b"}\n{"value": \n')
        self.names |= {
            "no_file": str(self._home / "no-such-file"),
            "empty_file": str(empty),
            "records": str(records),
            "wrong_value": str(properties(self._home / "wrong", num_partitions="many")),
            "unformatted": str(properties(self._home / "unformatted")),
            "data": str(self._home / "data"),
        }

    def _take_ports(self) -> None:
        ports = PortHolder(HOST)
        self._stack.callback(ports.close)
        closed, node = ports.take(2)
        web = self._stack.enter_context(listening(b"HTTP/1.1 400 Bad Request\r\n\r\n"))
        silent = self._stack.enter_context(listening(b"", self.connected))
        self.names |= {
            "closed": f"{HOST}:{closed}",
            "port": str(node),
            "web": f"{HOST}:{web}",
            "silent": f"{HOST}:{silent}",
        }

    def _start_node(self) -> None:
        """`moldau dev` with a topic that has a record."""
        options = ("--host", HOST, "--port", self.names["port"], "--data", self.names["data"])
        with (self._home / "node.log").open("wb") as log:
            node = subprocess.Popen(
                [*MODULE, "dev", *options, "--topic", "taken:2"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self.environment(),
            )
        self._stack.callback(end, node)
        assert node.stdout is not None
        ready = node.stdout.readline()
        assert ready.startswith("ready: "), (self._home / "node.log").read_text()
        self.names["address"] = ready.removeprefix("ready: ").strip()
        [config] = (self._home / "data").rglob("server.properties")
        self.names["server_properties"] = str(config)
        listeners = config.read_text().partition("CONTROLLER://")[2]
        self.names["controller"] = listeners.partition("\n")[0].partition(",")[0]
        command = [*MODULE, "produce", "taken"]
        subprocess.run(
            command, input=b"a\n", env=self.environment(), check=True, capture_output=True
        )


def end(process: subprocess.Popen[str]) -> None:
    """Ctrl-C, and what must follow after it."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(DEADLINE_S)
    finally:
        process.kill()
        process.communicate()


@contextmanager
def listening(answer: bytes, connected: threading.Event | None = None) -> Iterator[int]:
    """A listener that is no broker: it says `answer` to everything and hangs up, or says nothing;
    `connected` is set by the first connection.
    """
    held: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                accepted, _ = listener.accept()
            except OSError:
                return
            held.append(accepted)
            if connected is not None:
                connected.set()
            if answer:
                accepted.recv(4096)
                accepted.sendall(answer)
                accepted.close()

    with socket.create_server((HOST, 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield int(listener.getsockname()[1])
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for each in held:
                each.close()


def play(mistake: Mistake, world: World) -> Answer:
    """Make one mistake, and wait for what it comes to."""
    arguments = [word.format(**world.names) for word in shlex.split(mistake.command)]
    began = time.monotonic()
    heard_after: list[float] = []
    errors: list[str] = []
    with subprocess.Popen(
        [*MODULE, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=world.environment(),
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        killer = threading.Timer(DEADLINE_S, process.kill)
        killer.start()

        def listen(lines: Iterator[str], kept: list[str]) -> None:
            for line in lines:
                heard_after.append(time.monotonic() - began)
                kept.append(line)
                output_began.set()

        output_began = threading.Event()
        threads = [
            threading.Thread(target=listen, args=(process.stdout, [])),
            threading.Thread(target=listen, args=(process.stderr, errors)),
        ]
        for thread in threads:
            thread.start()
        try:
            process.stdin.write(mistake.typed)
            process.stdin.close()
        except BrokenPipeError:
            pass  # it had ended before it read anything
        if mistake.interrupted_at is not None:
            at = output_began if mistake.interrupted_at == "output" else world.connected
            at.wait(DEADLINE_S)
            process.send_signal(signal.SIGINT)
        status = process.wait()
        seconds = time.monotonic() - began
        killer.cancel()
        for thread in threads:
            thread.join()
    return Answer(status, "".join(errors), seconds, min(heard_after, default=seconds))


def problems_of(mistake: Mistake, answer: Answer, world: World) -> list[str]:
    """What is wrong with an answer; nothing when it is as it should be."""
    said = answer.errors
    lines = said.splitlines()
    longest = max(lines, key=len, default="")
    # On a slow machine the client's warning comes too, and the error says the same and more.
    extra = [each for each in lines if each.removeprefix("moldau: ") not in longest]
    words = [word.format(**world.names) for word in mistake.words]
    checks = {
        f"status {answer.status}, not {mistake.status}": answer.status != mistake.status,
        f"{len(lines)} lines, not one": bool(extra) or not said,
        "a traceback": "Traceback" in said,
        "it does not begin with moldau:": bool(said) and not said.startswith("moldau: "),
        **{f"no word of {word!r}": word.lower() not in said.lower() for word in words},
    }
    return [problem for problem, is_so in checks.items() if is_so]


def play_all(home: Path, mistakes: Sequence[Mistake] = MISTAKES) -> tuple[str, list[str]]:
    """Make all of them: the table of the answers, and what is wrong with them."""
    with World(home) as world, ThreadPoolExecutor(AT_ONCE) as threads:
        answers = list(threads.map(lambda mistake: play(mistake, world), mistakes))
        problems = [
            f"{mistake.name} (moldau {mistake.command}): {problem}: {answer.line}"
            for mistake, answer in zip(mistakes, answers, strict=True)
            for problem in problems_of(mistake, answer, world)
        ]
    rows = [("mistake", "exit", "silent s", "s", "what is said")]
    for mistake, answer in zip(mistakes, answers, strict=True):
        times = (f"{answer.silent_seconds:.2f}", f"{answer.seconds:.2f}")
        line = answer.line.replace(str(home), "…")
        rows.append((mistake.name, str(answer.status), *times, line))
    table = "\n".join(f"{a:<32} {b:>4} {c:>8} {d:>6}  {e}" for a, b, c, d, e in rows)
    return table, problems


def main() -> int:
    """Play them and print the table; 1 when an answer is not as it should be."""
    # A job in the background is born deaf to Ctrl-C, and its children with it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="moldau-mistakes-") as home:
        table, problems = play_all(Path(home))
    print(table)
    print(f"\n{len(MISTAKES)} mistakes; answers that are not as they should be: {len(problems)}")
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
