"""Controllers and brokers as real processes, each on its own host.

Owns their directories, configurations and processes. Must not: reach into a node: what is known of
it comes over Kafka's protocol, HTTP, or from its files when it is down. Invariant: leaving the
context ends every process.
"""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from benchmarks.wire import Wire
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p55_describe_quorum import (
    DescribeQuorumRequest,
    PartitionData,
    PartitionDataResponse,
    TopicData,
)
from moldau.protocol.types import uuid_to_base64
from tests.kit.repeated_lines import START
from tests.kit.waiting import until
from tests.system.processes import format_apart
from tests.system.quorum.hosts import Hosts

CONTROLLER_PORT: Final = 9093
BROKER_PORT: Final = 9092
HTTP_PORT: Final = 8080
SESSION_TIMEOUT_MS: Final = 2_000
READY_DEADLINE_S: Final = 60.0
#: Longer than a controlled shutdown that waits for controllers which suffer themselves.
STOP_DEADLINE_S: Final = 120.0
METADATA_TOPIC: Final = "__cluster_metadata"


def host_name(node_id: int) -> str:
    """The host a node lives on."""
    return f"n{node_id}"


class SpreadCluster:
    """Use as a context, inside one of Hosts that has a host for every node."""

    def __init__(
        self,
        hosts: Hosts,
        directory: Path,
        controller_ids: Sequence[int],
        broker_ids: Sequence[int],
        config: Mapping[str, str] | None = None,
    ) -> None:
        self.hosts = hosts
        self.controller_ids = list(controller_ids)
        self.broker_ids = list(broker_ids)
        self._directory = directory
        self._extra = dict(config or {})
        self._cluster_id = uuid_to_base64(uuid.uuid4())
        self._directory_ids = {each: uuid_to_base64(uuid.uuid4()) for each in controller_ids}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        try:
            for node_id in (*self.controller_ids, *self.broker_ids):
                self._prepare(node_id)
                self.launch(node_id)
            for node_id in self.broker_ids:
                self.wait_ready(node_id)
        except BaseException:
            self._kill_all()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._kill_all()

    # -- processes -------------------------------------------------------------------------------

    def launch(self, node_id: int) -> None:
        """Start a node without waiting for it."""
        home = self.home(node_id)
        with (home / "node.log").open("ab") as log:
            log.write(f"{START}\n".encode())
            log.flush()
            self._processes[node_id] = subprocess.Popen(
                self.hosts.command(host_name(node_id), self.command(node_id)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def command(self, node_id: int) -> list[str]:
        """What a node is started with."""
        return [
            sys.executable,
            "-m",
            "moldau.broker",
            str(self.home(node_id) / "server.properties"),
        ]

    def own_config(self, node_id: int) -> dict[str, str]:
        """Keys that only this node gets."""
        return {}

    def kill(self, node_id: int) -> None:
        """`kill -9`."""
        self._processes[node_id].kill()
        self._processes[node_id].wait(STOP_DEADLINE_S)

    def stop(self, node_id: int) -> int:
        """SIGTERM, and its exit status."""
        self._processes[node_id].terminate()
        return self._processes[node_id].wait(STOP_DEADLINE_S)

    def pause(self, node_id: int) -> None:
        """SIGSTOP."""
        self._processes[node_id].send_signal(signal.SIGSTOP)

    def resume(self, node_id: int) -> None:
        """SIGCONT."""
        self._processes[node_id].send_signal(signal.SIGCONT)

    def is_running(self, node_id: int) -> bool:
        """Whether the process exists."""
        return self._processes[node_id].poll() is None

    def wait_ready(self, node_id: int) -> None:
        """Return when a broker says that it serves."""

        def ready() -> bool:
            assert self.is_running(node_id), self.log_tail(node_id)
            return self._http(node_id, "/readyz")[0] == 200

        until(ready, what=f"broker {node_id} serves", deadline_s=READY_DEADLINE_S)

    def home(self, node_id: int) -> Path:
        """The node's directory."""
        return self._directory / f"node-{node_id}"

    def log_tail(self, node_id: int) -> str:
        """The end of what the node logged."""
        return (self.home(node_id) / "node.log").read_text(errors="replace")[-3000:]

    # -- questions -------------------------------------------------------------------------------

    def wire(self, node_id: int) -> Wire:
        """A connection to a broker's listener, or to a controller's."""
        port = CONTROLLER_PORT if node_id in self.controller_ids else BROKER_PORT
        address = self.hosts.address(host_name(node_id))
        return self.hosts.from_hub(Wire, address, port)

    def metadata(self, broker_id: int) -> dict[str, Any]:
        """Offset and digest of a broker's metadata; nothing when it does not answer now."""
        status, body = self._http(broker_id, "/api/v1/metadata")
        document: dict[str, Any] = json.loads(body) if status == 200 else {}
        return document

    def active_controller(self, asked_node_id: int) -> tuple[int, int]:
        """Leader id and epoch, as a node says; -1 when it knows none or does not answer. A
        controller that does not lead itself only points to who does.
        """
        described = self._describe_quorum(asked_node_id)
        if described is None or described.error_code not in (
            ErrorCode.NONE,
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ):
            return -1, -1
        return described.leader_id, described.leader_epoch

    def wait_voters_have(self, offset: int) -> None:
        """Return when every voter's log goes beyond `offset`."""

        def have_it() -> bool:
            described = self._describe_quorum(self.broker_ids[0])
            return described is not None and all(
                voter.log_end_offset > offset for voter in described.current_voters
            )

        until(have_it, what="all voters caught up", deadline_s=READY_DEADLINE_S)

    def _describe_quorum(self, asked_node_id: int) -> PartitionDataResponse | None:
        request = DescribeQuorumRequest(
            topics=[
                TopicData(topic_name=METADATA_TOPIC, partitions=[PartitionData(partition_index=0)])
            ]
        )
        try:
            with self.wire(asked_node_id) as wire:
                wire.socket.settimeout(5)
                found: PartitionDataResponse = wire.ask(request, 1).topics[0].partitions[0]
        except (OSError, IndexError):
            return None
        return found

    def _http(self, node_id: int, path: str) -> tuple[int, bytes]:
        address = self.hosts.address(host_name(node_id))
        connection = http.client.HTTPConnection(address, HTTP_PORT, timeout=5)
        try:
            self.hosts.from_hub(connection.connect)
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except OSError:
            return 0, b""
        finally:
            connection.close()

    # -- setting up ------------------------------------------------------------------------------

    def _prepare(self, node_id: int) -> None:
        home = self.home(node_id)
        home.mkdir(parents=True, exist_ok=True)
        is_controller = node_id in self.controller_ids
        address = self.hosts.address(host_name(node_id))
        listener = (
            f"CONTROLLER://{address}:{CONTROLLER_PORT}"
            if is_controller
            else f"PLAINTEXT://{address}:{BROKER_PORT}"
        )
        controllers = {
            each: f"{self.hosts.address(host_name(each))}:{CONTROLLER_PORT}"
            for each in self.controller_ids
        }
        values = {
            "process.roles": "controller" if is_controller else "broker",
            "node.id": str(node_id),
            "listeners": listener,
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.bootstrap.servers": ",".join(controllers.values()),
            "broker.session.timeout.ms": str(SESSION_TIMEOUT_MS),
            "broker.heartbeat.interval.ms": "500",
            "log.dirs": str(home / "data"),
            **({} if is_controller else {"moldau.http.listener": f"{address}:{HTTP_PORT}"}),
            **self._extra,
            **self.own_config(node_id),
        }
        text = "".join(f"{key}={value}\n" for key, value in values.items())
        (home / "server.properties").write_text(text)
        voters = ",".join(
            f"{each}@{server}:{self._directory_ids[each]}" for each, server in controllers.items()
        )
        options = [f"--cluster-id={self._cluster_id}"]
        options += [f"--initial-controllers={voters}"] if is_controller else []
        format_apart(home / "server.properties", *options)

    def _kill_all(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait(STOP_DEADLINE_S)
