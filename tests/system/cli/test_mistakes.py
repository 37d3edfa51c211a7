"""A new user's mistakes, played against the command.

Owns the table of mistakes and what the commands need around them (files, ports, listeners that are
no brokers). Habits of other tools, wrong places and half-done steps are in `test_more_mistakes`.
"""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from moldau.local.layout import PortHolder
from moldau.testing import Cluster
from tests.system.cli.conftest import FAILED, WRONG_USAGE, Cli
from tests.system.cli.mistakes import Mistake, play
from tests.system.processes import properties, without_slow_node

INTERRUPTED: Final = 130
DEADLINE_S: Final = 60
HOST: Final = "127.0.0.1"


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
    Mistake("delete without --yes", "topics delete taken", WRONG_USAGE, ("1 record", "--yes")),
    Mistake(
        *("one wrong name of two", "topics delete taken tkaen --yes"),
        *(FAILED, ("nothing was changed", "did you mean taken?")),
    ),
    Mistake(
        *("delete the offsets of all groups", "topics delete __consumer_offsets --yes"),
        *(WRONG_USAGE, ("__consumer_offsets", "--internal")),
    ),
    Mistake("delete a missing group", "groups delete nothing --yes", FAILED, ("nothing",)),
    Mistake(
        *("delete offsets of a missing group", "groups delete-offsets nothing --topic taken --yes"),
        *(FAILED, ("nothing",)),
    ),
    Mistake("delete a missing user", "users delete nothing --yes", FAILED, ("nothing",)),
    Mistake("expire a missing token", "tokens expire nothing --yes", FAILED, ("token",)),
    Mistake(
        *("terminate what never was", "transactions force-terminate nothing --yes"),
        *(FAILED, ("no transactional id", "nothing")),
    ),
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
MISTAKES: Final = (*CLUSTER, *NAMES, *COUNTS, *KEYS, *FILES, *DIRECTORIES)


@dataclass(slots=True)
class World:
    """What the mistakes are made in: what stands for the braces of their commands."""

    names: dict[str, str]
    connected: threading.Event = field(default_factory=threading.Event)
    """Set by the first connection to what is silent."""


@pytest.fixture(scope="module")
def world(cli: Cli, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    cli.ok("topics", "create", "taken", "--partitions", 2)
    cli.ok("produce", "taken", given=b"a\n")
    data = cluster.data_directory().parent
    config = data / "server.properties"
    controller = config.read_text().partition("CONTROLLER://")[2].partition("\n")[0]
    port = cluster.bootstrap_server.rpartition(":")[2]
    made = World({"host": HOST, "port": port, "controller": controller.partition(",")[0]})
    made.names |= {"data": str(data), "server_properties": str(config)}
    made.names |= files_in(tmp_path_factory.mktemp("mistakes"))
    with (
        closing(PortHolder(HOST)) as ports,
        listening(b"HTTP/1.1 400 Bad Request\r\n\r\n") as web,
        listening(b"", made.connected) as silent,
    ):
        for name, number in (("closed", *ports.take()), ("web", web), ("silent", silent)):
            made.names[name] = f"{HOST}:{number}"
        yield made


def files_in(home: Path) -> dict[str, str]:
    for name in ("wrong", "unformatted"):
        (home / name).mkdir()
    empty, records = home / "empty", home / "records.jsonl"
    empty.touch()
    records.write_text('{"value": "a"}\n{"value": "b"}\n{"value": \n')
    return {
        "no_file": str(home / "no-such-file"),
        "empty_file": str(empty),
        "records": str(records),
        "wrong_value": str(properties(home / "wrong", num_partitions="many")),
        "unformatted": str(properties(home / "unformatted")),
    }


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


@pytest.mark.parametrize("mistake", [pytest.param(each, id=each.name) for each in MISTAKES])
def test_a_mistake_is_answered_by_one_line_that_names_it(cli: Cli, world: World, mistake: Mistake):
    assert play(cli, world.names, mistake) == []


@pytest.mark.parametrize("command", ["consume taken --from-beginning", "topics list -b {silent}"])
def test_ctrl_c_is_one_line(cli: Cli, world: World, command: str):
    """A process, for the signal: it comes behind the first output, or the first connection."""
    with cli.start(*command.format(**world.names).split()) as process:
        if command.startswith("consume"):
            assert process.stdout is not None
            assert process.stdout.readline() == "a\n"
        else:
            assert world.connected.wait(DEADLINE_S)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=DEADLINE_S)
    [line] = without_slow_node(errors).splitlines()
    assert process.returncode == INTERRUPTED
    assert line.startswith("moldau: interrupted")
