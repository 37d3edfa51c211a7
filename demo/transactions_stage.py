"""The processes of the transactional demo: applications that are restarted, and who is killed.

Owns the application's processes and the killing. Must not: know what comes out. Invariants: at most
one broker and one controller is down at a time, and the next broker is killed only when all
replicas are in sync; leaving the context ends every application.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.wire import Wire
from demo.enrichment import INPUT, OUTPUTS
from demo.transactions_app import GROUP
from moldau.protocol.messages.p10_find_coordinator import FindCoordinatorRequest
from moldau.testing import Cluster, wait_until

KINDS: Final = (
    "application",
    "transaction coordinator",
    "broker",
    "application",
    "group coordinator",
    "controller",
)
PARTITION_COUNT: Final = 4
REPLICAS: Final = 3
FIND_COORDINATOR_VERSION: Final = 4
ANSWER_S: Final = 5.0
CREATE_S: Final = 30.0
RESTART_S: Final = 60.0
SYNC_S: Final = 120.0
STOP_S: Final = 60.0
ROOT: Final = Path(__file__).resolve().parent.parent


class Killing(NamedTuple):
    """Who is killed once so many input records are consumed. `dice`: which one, from 0 to 1."""

    kind: str
    at_count: int
    dice: float


class RestartedApplication:
    """One application, started again whenever it has ended."""

    def __init__(self, command: list[str], say: Callable[[str], None]) -> None:
        self.committed_count = 0
        self.complaints: list[str] = []
        self._command = command
        self._say = say
        self._is_over = threading.Event()
        self._changed = threading.Lock()
        self._is_killed = False
        self._process = self._spawn()
        self._thread = threading.Thread(target=self._watch, name="application")
        self._thread.start()

    def kill(self) -> None:
        """`kill -9`."""
        with self._changed:
            self._is_killed = True
            self._process.kill()

    def stop(self) -> None:
        """SIGTERM; its end is waited for."""
        self._is_over.set()
        with self._changed:
            self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.complaints.append(f"{self._command[-1]} did not end within {STOP_S:.0f} s")
            self._process.kill()
        self._thread.join()

    def _spawn(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self._command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
        )

    def _watch(self) -> None:
        while True:
            process = self._process
            assert process.stdout is not None, "a pipe"
            with process.stdout:
                for line in process.stdout:
                    self.committed_count += line.startswith("committed")
            status = process.wait()
            with self._changed:
                if self._is_over.is_set():
                    return
                was_killed, self._is_killed = self._is_killed, False
                if not was_killed:
                    self._say(f"an application has ended with status {status}; it starts again")
                self._process = self._spawn()


class Stage:
    """Use as a context around the demo.

    Args:
        say: gets a line per event.
    """

    def __init__(
        self,
        cluster: Cluster,
        protocol: str,
        records_per_transaction: int,
        say: Callable[[str], None],
    ) -> None:
        self.complaints: list[str] = []
        self._cluster = cluster
        self._protocol = protocol
        self._records = records_per_transaction
        self._say = say
        self._applications: dict[str, RestartedApplication] = {}
        self._admin = AdminClient(self._config())
        self._asker: Consumer | None = None
        self._repairs: list[threading.Thread] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
        if self._asker is not None:
            self._asker.close()

    def _config(self) -> dict[str, Any]:
        return {
            "bootstrap.servers": self._cluster.bootstrap_server,
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
        }

    # -- data and applications -------------------------------------------------------------------

    def load(self, records: list[tuple[bytes, bytes]]) -> None:
        """Create the topics and fill the input."""
        new = [NewTopic(name, PARTITION_COUNT, REPLICAS) for name in (INPUT, *OUTPUTS)]
        for future in self._admin.create_topics(new, operation_timeout=CREATE_S).values():
            future.result(CREATE_S)
        producer = Producer(
            {**self._config(), "enable.idempotence": True, "compression.type": "lz4"}
        )
        refused: list[str] = []

        def on_delivery(error: Any, _message: Any) -> None:
            if error is not None:
                refused.append(str(error))

        for key, value in records:
            while True:
                try:
                    producer.produce(INPUT, value, key, on_delivery=on_delivery)
                    break
                except BufferError:
                    producer.poll(0.1)
            producer.poll(0)
        left_count = producer.flush(SYNC_S)
        assert not refused, refused[:3]
        assert left_count == 0, f"{left_count} records were not acknowledged"
        self._say(f"{len(records):,} flights in {INPUT}")

    def start(self, name: str) -> None:
        """Start an application."""
        command = [
            *(sys.executable, "-m", "demo.transactions_app", f"--protocol={self._protocol}"),
            *(f"--records={self._records}", self._cluster.bootstrap_server, name),
        ]
        self._applications[name] = RestartedApplication(command, self._say)

    def stop(self) -> list[str]:
        """End all applications; what went wrong until then. All killed processes are back."""
        for repair in self._repairs:
            repair.join()
        self._repairs.clear()
        for application in self._applications.values():
            application.stop()
        found = [text for each in self._applications.values() for text in each.complaints]
        return found

    @property
    def committed_count(self) -> int:
        """Transactions that an application has reported; one that is killed may not get to it."""
        return sum(each.committed_count for each in self._applications.values())

    def wait_consumed(self, count: int, deadline_s: float) -> None:
        """Return when the group's offsets cover so many input records. Raises: TimeoutError."""
        wait_until(
            lambda: self._consumed() >= count,
            what=f"{count:,} records consumed ({self._consumed():,} are)",
            deadline_s=deadline_s,
        )

    def _consumed(self) -> int:
        if self._asker is None:
            config = {**self._config(), "group.id": GROUP, "isolation.level": "read_committed"}
            self._asker = Consumer(config)
        partitions = [TopicPartition(INPUT, number) for number in range(PARTITION_COUNT)]
        try:
            found = self._asker.committed(partitions, timeout=ANSWER_S)
        except KafkaException:
            return 0  # a coordinator is on its way to another broker
        return sum(max(0, each.offset) for each in found if each.error is None)

    # -- killing ---------------------------------------------------------------------------------

    def kill(self, killing: Killing) -> None:
        """Kill a process, which starts again by and by."""
        if killing.kind == "application":
            names = sorted(self._applications)
            name = names[int(killing.dice * len(names))]
            self._say(f"kill -9 application {name}")
            self._applications[name].kill()
            return
        for repair in self._repairs:
            repair.join()
        self._wait_in_sync()
        node_id = self._node_of(killing)
        self._say(f"kill -9 {killing.kind} (node {node_id})")
        self._cluster.kill(node_id)
        repair = threading.Thread(target=self._restart, args=(node_id,), name="repair")
        repair.start()
        self._repairs = [repair]

    def _restart(self, node_id: int) -> None:
        try:
            self._cluster.restart(node_id)
        except RuntimeError as error:
            self.complaints.append(f"node {node_id} does not come back: {error}")

    def _node_of(self, killing: Killing) -> int:
        if killing.kind == "controller":
            return self._cluster.active_controller_id()
        brokers = self._cluster.broker_ids
        any_broker = brokers[int(killing.dice * len(brokers))]
        if killing.kind == "broker":
            return any_broker
        names = sorted(self._applications)
        key = f"{GROUP}-{names[int(killing.dice * len(names))]}"
        key_type = 1
        if killing.kind == "group coordinator":
            key_type, key = 0, GROUP
        return self._coordinator(key_type, key) or any_broker

    def _coordinator(self, key_type: int, key: str) -> int:
        request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
        for address in self._cluster.bootstrap_server.split(","):
            host, _, port = address.rpartition(":")
            try:
                with Wire(host, int(port)) as wire:
                    [found] = wire.ask(request, FIND_COORDINATOR_VERSION).coordinators
            except OSError:
                continue
            if found.error_code == 0:
                return int(found.node_id)
        return 0

    def _wait_in_sync(self) -> None:
        wait_until(self._is_in_sync, what="all replicas in sync", deadline_s=SYNC_S)

    def _is_in_sync(self) -> bool:
        try:
            topics = self._admin.list_topics(timeout=ANSWER_S).topics.values()
        except KafkaException:
            return False
        return all(
            partition.leader >= 0 and len(partition.isrs) == len(partition.replicas)
            for topic in topics
            for partition in topic.partitions.values()
        )
