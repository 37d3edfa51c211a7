"""The servers that benchmarks talk to, as processes: Moldau, Apache Kafka, the bare loops.

Owns how each is configured, found ready and stopped. Invariant: leaving a context ends the
process and removes its directory; both brokers get the same settings where they mean the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self

from benchmarks.bare import BareOrder
from benchmarks.machine import ROOT
from benchmarks.processes import (
    STOP_DEADLINE_S,
    kill,
    pin_load,
    pin_server,
    running,
    start_node,
)
from benchmarks.wire import Wire
from moldau.cli.bench.figures import process_cpu_seconds
from moldau.local.layout import PortHolder
from moldau.protocol.types import uuid_to_base64

HOST: Final = "127.0.0.1"
KAFKA_VERSION: Final = "4.3.0"
CONNECT_PAUSE_S: Final = 0.002
POLL_PAUSE_S: Final = 0.02
QUIET_CPU_SHARE: Final = 0.3
QUIET_LOOK_S: Final = 0.2
QUIET_DEADLINE_S: Final = 120.0
READY_DEADLINE_S: Final = 90.0
PIECE_BYTES: Final = 2**20

#: What Kafka's own start script gives the JVM.
JVM_OPTIONS: Final = (
    "-server",
    "-Xmx1G",
    "-Xms1G",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)

#: Valid for both: replicas that one node can give, and no waiting for deleted files.
COMMON_SETTINGS: Final = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "log.segment.delete.delay.ms": "100",
}


@contextlib.contextmanager
def temporary_directory() -> Iterator[Path]:
    """A directory on the file system of TMPDIR, gone afterwards."""
    path = Path(tempfile.mkdtemp(prefix="moldau-bench-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def warm_page_cache(directory: Path, size_bytes: int) -> None:
    """Write and delete a file, so that the next one goes into memory that was just in use.

    On a virtual machine the first write into long-free memory costs ten times as much as a later
    one, and would hit the node that comes first.
    """
    piece = memoryview(bytes(PIECE_BYTES))
    path = directory / "scratch"
    with path.open("wb", buffering=0) as file:
        for _ in range(-(-size_bytes // PIECE_BYTES)):
            file.write(piece)
    path.unlink()


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on right now, and that the kernel gives to no connection."""
    with contextlib.closing(PortHolder(HOST)) as ports:
        return ports.take(count)


def connect_when_open(port: int, process: subprocess.Popen[bytes]) -> Wire:
    """Knock until the port opens. Raises when the process ends or the deadline passes."""
    deadline = time.monotonic() + READY_DEADLINE_S
    while time.monotonic() < deadline:
        try:
            return Wire(HOST, port)
        except ConnectionRefusedError:
            if process.poll() is not None:
                raise RuntimeError(f"the node ended with status {process.returncode}") from None
            time.sleep(CONNECT_PAUSE_S)
    raise TimeoutError(f"nothing listens on port {port}")


class BrokerNode:
    """One combined node in its own directory. States: made → `launch` → running → `close`."""

    name = ""
    own_settings: Mapping[str, str] = MappingProxyType({})

    def __init__(
        self,
        directory: Path,
        settings: dict[str, str] | None = None,
        *,
        is_pinned: bool = False,
        has_tls: bool = False,
    ) -> None:
        """`is_pinned` keeps the node on the servers' core (see `pin_server`); `has_tls` adds a
        listener with TLS at `tls_port`, whose key store is among the settings.
        """
        self._is_pinned, self._has_tls = is_pinned, has_tls
        self.directory = directory
        self.port, controller_port, self.tls_port = free_ports(3)
        self.data = directory / "data"
        self.process: subprocess.Popen[bytes] | None = None
        self._config = directory / "server.properties"
        advertised = f"PLAINTEXT://{HOST}:{self.port}"
        if has_tls:
            advertised += f",SSL://{HOST}:{self.tls_port}"
        values = {
            **COMMON_SETTINGS,
            "listeners": f"{advertised},CONTROLLER://{HOST}:{controller_port}",
            "advertised.listeners": advertised,
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL,CONTROLLER:PLAINTEXT",
            "controller.quorum.voters": f"1@{HOST}:{controller_port}",
            "log.dirs": str(self.data),
            **self.own_settings,
            **(settings or {}),
        }
        self._config.write_text("".join(f"{key}={value}\n" for key, value in values.items()))

    @property
    def pid(self) -> int:
        """Of the running node."""
        assert self.process is not None, "launched"
        return self.process.pid

    @property
    def cores(self) -> set[int]:
        """Where it may run."""
        return os.sched_getaffinity(self.pid)

    def format(self) -> None:
        """Format the log directory, where that is a separate step."""

    def command(self) -> Sequence[str]:
        """What is run."""
        raise NotImplementedError

    def launch(self) -> None:
        """Spawn the process without waiting."""
        place = pin_server if self._is_pinned else None
        self.process = start_node(self.command(), self.directory / "node.log", place)

    def connect(self) -> Wire:
        """A connection as soon as the node listens, on its listener of TLS too if it has one."""
        assert self.process is not None, "launched"
        try:
            if self._has_tls:
                connect_when_open(self.tls_port, self.process).socket.close()
            return connect_when_open(self.port, self.process)
        except (RuntimeError, TimeoutError) as error:
            tail = (self.directory / "node.log").read_text(errors="replace")[-4000:]
            raise RuntimeError(f"{self.name}: {error}\n{tail}") from error

    def delete_topic(self, wire: Wire, topic: str) -> None:
        """Delete a topic and wait until its files are gone, and with them their memory."""
        wire.delete_topic(topic)
        deadline = time.monotonic() + READY_DEADLINE_S
        while any(self.data.glob(f"{topic}-*")):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.name}: the files of {topic} are still there")
            time.sleep(POLL_PAUSE_S)

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            kill(self.process)

    def stop(self) -> None:
        """An orderly stop: SIGTERM, then wait."""
        assert self.process is not None, "launched"
        self.process.terminate()
        self.process.wait(STOP_DEADLINE_S)

    def __enter__(self) -> Self:
        self.format()
        self.launch()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def wait_until_quiet(node: BrokerNode) -> None:
    """Return when the node does little: work that clients have left behind ends after them."""
    deadline = time.monotonic() + QUIET_DEADLINE_S
    before = sum(process_cpu_seconds(node.pid))
    while time.monotonic() < deadline:
        time.sleep(QUIET_LOOK_S)
        now = sum(process_cpu_seconds(node.pid))
        if now - before < QUIET_CPU_SHARE * QUIET_LOOK_S:
            return
        before = now
    raise TimeoutError(f"{node.name} is still busy")


class MoldauNode(BrokerNode):
    """`python -m moldau.broker`, which formats what is empty as it starts."""

    name = "Moldau"

    def command(self) -> Sequence[str]:
        return [sys.executable, "-m", "moldau.broker", str(self._config), "--format-if-needed"]


class KafkaNode(BrokerNode):
    """Apache Kafka in KRaft mode, with the JVM options of its start script."""

    name = "Apache Kafka"
    #: Else nothing is deleted in its first 30 seconds.
    own_settings = MappingProxyType({"log.initial.task.delay.ms": "100"})

    def format(self) -> None:
        subprocess.run(
            [
                *(*storage_tool(), "format"),
                f"--cluster-id={uuid_to_base64(uuid.uuid4())}",  # it may begin with a dash
                *("-c", str(self._config)),
            ],
            check=True,
            capture_output=True,
        )

    def command(self) -> Sequence[str]:
        return [*kafka_server(), str(self._config)]


def kafka_jars() -> Path | None:
    """Where Apache Kafka's jars are, or None: `make setup-all` fetches them with Maven."""
    places = [ROOT / ".cache" / f"kafka-{KAFKA_VERSION}"]
    given = os.environ.get("MOLDAU_KAFKA_JARS")
    if given:
        places.insert(0, Path(given))
    for place in places:
        if any(place.glob("kafka_2.13-*.jar")) and shutil.which("java"):
            return place
    return None


def storage_tool() -> Sequence[str]:
    """What formats Kafka's storage."""
    return ("java", "-cp", _class_path(), "kafka.tools.StorageTool")


def kafka_server() -> Sequence[str]:
    """What runs a node of Kafka's, before the name of its configuration."""
    return ("java", *JVM_OPTIONS, "-cp", _class_path(), "kafka.Kafka")


def _class_path() -> str:
    jars = kafka_jars()
    assert jars is not None, "checked before"
    return f"{jars}/*"


class BareLoop(NamedTuple):
    """A process of `benchmarks.bare`."""

    pid: int
    ports: tuple[int, ...]


@contextlib.contextmanager
def bare_loop(mode: str, order: BareOrder) -> Iterator[BareLoop]:
    """A bare loop on the servers' core, until the context ends."""
    with running("bare", mode, order, place=pin_server) as loop:
        ready, *ports = loop.begun.split()
        assert ready == "ready:", f"the bare loop said {loop.begun}"
        yield BareLoop(loop.process.pid, tuple(map(int, ports)))


def run_bench(node: BrokerNode, command: str, options: Sequence[str]) -> dict[str, Any]:
    """`moldau bench` with this command against the node; what it measured."""
    output = subprocess.run(
        [
            *(sys.executable, "-m", "moldau.cli.main", "bench", command, "--json"),
            *(f"--bootstrap-server={HOST}:{node.port}", "--replication-factor=1", *options),
        ],
        cwd=ROOT,
        check=True,
        capture_output=True,
        preexec_fn=pin_load,
    ).stdout
    document: dict[str, Any] = json.loads(output)
    return document
