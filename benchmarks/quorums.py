"""Clusters of three controllers and one broker, as processes: Moldau and Apache Kafka.

Owns how each is configured, formatted, started and killed. Invariant: both get the same keys and
values, the quorum's timeouts among them (Kafka's defaults); leaving the context ends every process.
"""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from benchmarks.machine import ROOT
from benchmarks.nodes import HOST, free_ports, kafka_jars
from benchmarks.wire import RETRY_PAUSE_S, Wire
from moldau.protocol.messages.p55_describe_quorum import (
    DescribeQuorumRequest,
    PartitionData,
    TopicData,
)
from moldau.protocol.types import uuid_to_base64

CONTROLLER_IDS: Final = (101, 102, 103)
BROKER_ID: Final = 1
READY_DEADLINE_S: Final = 120.0
STOP_DEADLINE_S: Final = 30.0
DESCRIBE_QUORUM_VERSION: Final = 1
METADATA_TOPIC: Final = "__cluster_metadata"

#: Kafka's defaults, written out.
QUORUM_TIMEOUTS: Final = {
    "controller.quorum.election.timeout.ms": "1000",
    "controller.quorum.fetch.timeout.ms": "2000",
    "controller.quorum.election.backoff.max.ms": "1000",
    "controller.quorum.request.timeout.ms": "2000",
    "controller.quorum.retry.backoff.ms": "20",
}
COMMON_SETTINGS: Final = {
    "controller.listener.names": "CONTROLLER",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    **QUORUM_TIMEOUTS,
}


class QuorumProcesses:
    """Three controllers and a broker. Use as a context."""

    name = ""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        *ports, self.broker_port = free_ports(len(CONTROLLER_IDS) + 1)
        self._controller_ports = dict(zip(CONTROLLER_IDS, ports, strict=True))
        self._directory_ids = {node_id: uuid_to_base64(uuid.uuid4()) for node_id in CONTROLLER_IDS}
        self._cluster_id = uuid_to_base64(uuid.uuid4())
        for node_id in (*CONTROLLER_IDS, BROKER_ID):
            self._write_config(node_id)

    def storage_command(self) -> Sequence[str]:
        """What formats storage."""
        raise NotImplementedError

    def node_command(self) -> Sequence[str]:
        """What runs a node, before the name of its configuration."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        try:
            for node_id in (*CONTROLLER_IDS, BROKER_ID):
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
            process.wait(STOP_DEADLINE_S)

    def launch(self, node_id: int) -> None:
        """Start a node that is down."""
        with (self._home(node_id) / "node.log").open("ab") as log:
            self._processes[node_id] = subprocess.Popen(
                [*self.node_command(), str(self._config(node_id))],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self, node_id: int) -> None:
        """`kill -9`, and wait until it is gone."""
        self._processes[node_id].kill()
        self._processes[node_id].wait(STOP_DEADLINE_S)

    def connect(self) -> Wire:
        """A connection to the broker."""
        return Wire(HOST, self.broker_port)

    def wait_until_serving(self) -> None:
        """Return when the broker answers with a quorum in which every controller has caught up."""
        self._wait(lambda: self._lags() == [0] * len(CONTROLLER_IDS), "all controllers caught up")

    def active_controller(self) -> int:
        """Who leads the quorum, as the broker is told."""
        leader_id, _ = self._describe()
        assert leader_id in CONTROLLER_IDS, f"{leader_id} leads"
        return leader_id

    def _lags(self) -> list[int]:
        leader_id, ends = self._describe()
        if leader_id < 0 or len(ends) < len(CONTROLLER_IDS):
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

    def _wait(self, condition: object, what: str) -> None:
        assert callable(condition), "asked again and again"
        deadline = time.monotonic() + READY_DEADLINE_S
        while time.monotonic() < deadline:
            try:
                if condition():
                    return
            except OSError:
                for node_id, process in self._processes.items():
                    if process.poll() is not None:
                        log = (self._home(node_id) / "node.log").read_text(errors="replace")
                        raise RuntimeError(f"node {node_id} ended:\n{log[-3000:]}") from None
            time.sleep(RETRY_PAUSE_S * 10)
        raise TimeoutError(f"{self.name}: not {what} in {READY_DEADLINE_S:.0f} s")

    def _home(self, node_id: int) -> Path:
        return self._directory / f"node-{node_id}"

    def _config(self, node_id: int) -> Path:
        return self._home(node_id) / "server.properties"

    def _write_config(self, node_id: int) -> None:
        is_controller = node_id in self._controller_ports
        port = self._controller_ports.get(node_id, self.broker_port)
        listener = "CONTROLLER" if is_controller else "PLAINTEXT"
        servers = ",".join(f"{HOST}:{each}" for each in self._controller_ports.values())
        values = {
            **COMMON_SETTINGS,
            "process.roles": "controller" if is_controller else "broker",
            "node.id": str(node_id),
            "listeners": f"{listener}://{HOST}:{port}",
            "advertised.listeners": f"{listener}://{HOST}:{port}",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "controller.quorum.bootstrap.servers": servers,
            "log.dirs": str(self._home(node_id) / "data"),
        }
        self._home(node_id).mkdir()
        self._config(node_id).write_text("".join(f"{k}={v}\n" for k, v in values.items()))

    def _format(self, node_id: int) -> None:
        voters = ",".join(
            f"{each}@{HOST}:{port}:{self._directory_ids[each]}"
            for each, port in self._controller_ports.items()
        )
        role = [f"--initial-controllers={voters}"] if node_id in self._controller_ports else []
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


class MoldauQuorum(QuorumProcesses):
    """Our own nodes."""

    name = "Moldau"

    def storage_command(self) -> Sequence[str]:
        return [sys.executable, "-m", "moldau.cli.main", "storage"]

    def node_command(self) -> Sequence[str]:
        return [sys.executable, "-m", "moldau.broker"]


class KafkaQuorum(QuorumProcesses):
    """Apache Kafka's; a smaller heap than its script's, so that four JVMs fit beside everything."""

    name = "Apache Kafka"

    def storage_command(self) -> Sequence[str]:
        return ["java", "-cp", f"{kafka_jars()}/*", "kafka.tools.StorageTool"]

    def node_command(self) -> Sequence[str]:
        return ["java", "-Xmx512m", "-Xms256m", "-cp", f"{kafka_jars()}/*", "kafka.Kafka"]
