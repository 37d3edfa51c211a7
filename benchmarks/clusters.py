"""Clusters of controllers and brokers, as processes: Moldau and Apache Kafka.

Owns how each is configured, formatted, started and killed. Invariant: both get the same keys and
values, Kafka's defaults for every timeout among them; leaving the context ends every process.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, Self

from benchmarks.figures import Effort
from benchmarks.machine import ROOT
from benchmarks.nodes import (
    HOST,
    free_ports,
    kafka_jars,
    kafka_server,
    storage_tool,
    temporary_directory,
)
from benchmarks.processes import STOP_DEADLINE_S, kill, start_node
from benchmarks.wire import RETRY_PAUSE_S, Wire
from moldau.protocol.messages.p03_metadata import MetadataRequest
from moldau.protocol.messages.p55_describe_quorum import (
    DescribeQuorumRequest,
    PartitionData,
    TopicData,
)
from moldau.protocol.types import uuid_to_base64

THREE_CONTROLLERS: Final = (101, 102, 103)
ONE_CONTROLLER: Final = (101,)
THREE_BROKERS: Final = (1, 2, 3)
ONE_BROKER: Final = (1,)
READY_DEADLINE_S: Final = 120.0
DESCRIBE_QUORUM_VERSION: Final = 1
METADATA_VERSION: Final = 8
METADATA_TOPIC: Final = "__cluster_metadata"

#: Kafka's defaults, written out.
QUORUM_TIMEOUTS: Final = {
    "controller.quorum.election.timeout.ms": "1000",
    "controller.quorum.fetch.timeout.ms": "2000",
    "controller.quorum.election.backoff.max.ms": "1000",
    "controller.quorum.request.timeout.ms": "2000",
    "controller.quorum.retry.backoff.ms": "20",
}
REPLICATION_TIMEOUTS: Final = {
    "broker.session.timeout.ms": "9000",
    "broker.heartbeat.interval.ms": "2000",
    "replica.lag.time.max.ms": "30000",
    "replica.fetch.wait.max.ms": "500",
    "replica.fetch.backoff.ms": "1000",
    "replica.socket.timeout.ms": "30000",
    "num.replica.fetchers": "1",
    "min.insync.replicas": "1",
}
COMMON_SETTINGS: Final = {
    "controller.listener.names": "CONTROLLER",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "log.segment.delete.delay.ms": "100",
    **QUORUM_TIMEOUTS,
    **REPLICATION_TIMEOUTS,
}


class ClusterProcesses:
    """Controllers and brokers in processes of their own. Use as a context."""

    name = ""
    own_settings: Mapping[str, str] = MappingProxyType({})

    def __init__(
        self,
        directory: Path,
        *,
        controller_ids: Sequence[int] = ONE_CONTROLLER,
        broker_ids: Sequence[int] = THREE_BROKERS,
    ) -> None:
        self.directory = directory
        self.controller_ids, self.broker_ids = tuple(controller_ids), tuple(broker_ids)
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        node_ids = (*self.controller_ids, *self.broker_ids)
        self._ports = dict(zip(node_ids, free_ports(len(node_ids)), strict=True))
        self._directory_ids = {each: uuid_to_base64(uuid.uuid4()) for each in self.controller_ids}
        self._cluster_id = uuid_to_base64(uuid.uuid4())
        for node_id in node_ids:
            self._write_config(node_id)

    @property
    def bootstrap(self) -> str:
        """Every broker, as a client's `bootstrap.servers`."""
        return ",".join(f"{HOST}:{self._ports[each]}" for each in self.broker_ids)

    def storage_command(self) -> Sequence[str]:
        """What formats storage."""
        raise NotImplementedError

    def node_command(self) -> Sequence[str]:
        """What runs a node, before the name of its configuration."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        try:
            for node_id in self._ports:
                self._format(node_id)
                self.launch(node_id)
            self.wait_until_serving()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process."""
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait(STOP_DEADLINE_S)

    def launch(self, node_id: int) -> None:
        """Start a node that is down."""
        command = [*self.node_command(), str(self._config(node_id))]
        self._processes[node_id] = start_node(command, self._home(node_id) / "node.log")

    def kill(self, node_id: int) -> None:
        """`kill -9`, and wait until it is gone."""
        kill(self._processes[node_id])

    def pid(self, node_id: int) -> int:
        """Of a running node."""
        return self._processes[node_id].pid

    def port(self, node_id: int) -> int:
        """Where a node listens."""
        return self._ports[node_id]

    def connect(self, broker_id: int | None = None) -> Wire:
        """A connection to a broker, the first by default. Raises OSError."""
        return Wire(HOST, self._ports[self.broker_ids[0] if broker_id is None else broker_id])

    def wait_until_serving(self) -> None:
        """Return when every controller has caught up, and every broker knows of all brokers."""
        self._wait(lambda: self._lags() == [0] * len(self.controller_ids), "controllers caught up")
        self._wait(self._brokers_know_each_other, "registered and unfenced brokers")

    def active_controller(self) -> int:
        """Who leads the quorum, as the broker knows it."""
        leader_id, _ = self._describe()
        assert leader_id in self.controller_ids, f"{leader_id} leads"
        return leader_id

    def wait_for_replicas(self, topic: str, count: int) -> None:
        """Return when every broker says that each partition has a leader and so many in sync."""

        def all_in_sync() -> bool:
            for broker_id in self.broker_ids:
                with self.connect(broker_id) as wire:
                    partitions = wire.partitions(topic)
                if not partitions or any(
                    partition.leader_id < 0 or len(partition.isr_nodes) < count
                    for partition in partitions
                ):
                    return False
            return True

        self._wait(all_in_sync, f"{count} replicas of {topic} in sync")

    def delete_topic(self, topic: str) -> None:
        """Delete a topic and wait until its files are gone from every broker."""
        with self.connect() as wire:
            wire.delete_topic(topic)
        homes = [self._data(broker_id) for broker_id in self.broker_ids]
        self._wait(lambda: not any(any(home.glob(f"{topic}-*")) for home in homes), "files gone")

    def _brokers_know_each_other(self) -> bool:
        for broker_id in self.broker_ids:
            with self.connect(broker_id) as wire:
                response = wire.ask(MetadataRequest(topics=[]), METADATA_VERSION)
            if {broker.node_id for broker in response.brokers} != set(self.broker_ids):
                return False
        return True

    def _lags(self) -> list[int]:
        leader_id, ends = self._describe()
        if leader_id < 0 or len(ends) < len(self.controller_ids):
            return []
        # Heartbeats of the brokers write nothing, so that an idle quorum's ends are equal.
        return [max(ends) - end for end in ends]

    def _describe(self) -> tuple[int, list[int]]:
        request = DescribeQuorumRequest(
            topics=[
                TopicData(topic_name=METADATA_TOPIC, partitions=[PartitionData(partition_index=0)])
            ]
        )
        with self.connect() as wire:
            response = wire.ask(request, DESCRIBE_QUORUM_VERSION)
        if response.error_code != 0 or response.topics[0].partitions[0].error_code != 0:
            return -1, []
        partition = response.topics[0].partitions[0]
        return partition.leader_id, [each.log_end_offset for each in partition.current_voters]

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + READY_DEADLINE_S
        while time.monotonic() < deadline:
            try:
                if condition():
                    return
            except OSError:
                for node_id, process in self._processes.items():
                    if process.poll() is not None:
                        raise RuntimeError(
                            f"{self.name}: node {node_id} ended:\n{self._log_tail(node_id)}"
                        ) from None
            time.sleep(RETRY_PAUSE_S * 10)
        raise TimeoutError(f"{self.name}: not {what} in {READY_DEADLINE_S:.0f} s")

    def _log_tail(self, node_id: int) -> str:
        return (self._home(node_id) / "node.log").read_text(errors="replace")[-3000:]

    def _home(self, node_id: int) -> Path:
        return self.directory / f"node-{node_id}"

    def _data(self, node_id: int) -> Path:
        return self._home(node_id) / "data"

    def _config(self, node_id: int) -> Path:
        return self._home(node_id) / "server.properties"

    def _write_config(self, node_id: int) -> None:
        is_controller = node_id in self.controller_ids
        port = self._ports[node_id]
        listener = "CONTROLLER" if is_controller else "PLAINTEXT"
        servers = ",".join(f"{HOST}:{self._ports[each]}" for each in self.controller_ids)
        values = {
            **COMMON_SETTINGS,
            "process.roles": "controller" if is_controller else "broker",
            "node.id": str(node_id),
            "listeners": f"{listener}://{HOST}:{port}",
            "advertised.listeners": f"{listener}://{HOST}:{port}",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "controller.quorum.bootstrap.servers": servers,
            "log.dirs": str(self._data(node_id)),
            **self.own_settings,
        }
        self._home(node_id).mkdir()
        self._config(node_id).write_text("".join(f"{k}={v}\n" for k, v in values.items()))

    def _format(self, node_id: int) -> None:
        voters = ",".join(
            f"{each}@{HOST}:{self._ports[each]}:{directory_id}"
            for each, directory_id in self._directory_ids.items()
        )
        role = [f"--initial-controllers={voters}"] if node_id in self.controller_ids else []
        done = subprocess.run(
            [
                *self.storage_command(),
                *("format", f"--cluster-id={self._cluster_id}"),  # it may begin with a dash
                *("--config", str(self._config(node_id))),
                *role,
            ],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{self.name}: formatting {node_id}: {done.stdout}{done.stderr}")


class MoldauCluster(ClusterProcesses):
    """Our own nodes."""

    name = "Moldau"

    def storage_command(self) -> Sequence[str]:
        return [sys.executable, "-m", "moldau.cli.main", "storage"]

    def node_command(self) -> Sequence[str]:
        return [sys.executable, "-m", "moldau.broker"]


class KafkaCluster(ClusterProcesses):
    """Apache Kafka's, each JVM with the options of its start script."""

    name = "Apache Kafka"
    #: Else nothing is deleted in its first 30 seconds.
    own_settings = MappingProxyType({"log.initial.task.delay.ms": "100"})

    def storage_command(self) -> Sequence[str]:
        return storage_tool()

    def node_command(self) -> Sequence[str]:
        return kafka_server()


@contextlib.contextmanager
def clusters(effort: Effort) -> Iterator[tuple[ClusterProcesses, ...]]:
    """A controller and three brokers of ours, and of Kafka's when it is installed, side by side.

    Both run throughout, as rounds take turns; an idle one costs the other little, and as much.
    """
    kinds: list[type[ClusterProcesses]] = [MoldauCluster]
    if effort.with_kafka and kafka_jars() is not None:
        kinds.append(KafkaCluster)
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(temporary_directory())
        found = []
        for kind in kinds:
            home = directory / kind.__name__
            home.mkdir()
            found.append(stack.enter_context(kind(home)))
        yield tuple(found)


def in_changing_order(sides: Sequence[ClusterProcesses], number: int) -> Sequence[ClusterProcesses]:
    """Who comes first changes from round to round."""
    return sides[::-1] if number % 2 else sides
