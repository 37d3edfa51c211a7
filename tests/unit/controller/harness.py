"""A controller behind its listener, on loopback; its log is a list that commits by itself."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from typing import Any

from moldau.controller.apis import ControllerApis, LongWork
from moldau.controller.controller import Controller, SnapshotPolicy
from moldau.controller.core.controller_core import ControllerCore
from moldau.controller.core.state import ControllerSettings
from moldau.controller.descriptions import ClusterDescriptions
from moldau.controller.mutation_quotas import ControllerMutationQuotas
from moldau.metadata.features import feature_records, initial_feature_levels
from moldau.metadata.log import CommittedBatch, MetadataLogListener
from moldau.node.quorum_node import CLOSE_GRACE_MS
from moldau.protocol.access_control import Operation, ResourceType
from moldau.protocol.error_responses import error_response
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p63_broker_heartbeat import BrokerHeartbeatRequest
from moldau.protocol.schema import Message
from moldau.runtime.connection import Connection
from moldau.runtime.ports import Ports
from moldau.runtime.telemetry.metrics import Registry
from moldau.server.authorizer import Authorizer
from moldau.server.change_log import ChangeLog
from moldau.server.request_router import RequestRouter
from moldau.server.server import ListenerSpec, Server
from tests.unit.metadata.builders import CLUSTER_ID, node_config, registration

LISTENER = "CONTROLLER"
OTHER_NODE = 2


class ListLog:
    """A metadata log in memory; `commits` False holds commits back."""

    def __init__(self) -> None:
        self.leader_epoch = 1
        self.log_end_offset = 0
        self.voter_ids: list[int] = []
        self.commits = True
        self.listeners: list[MetadataLogListener] = []
        self._uncommitted: list[CommittedBatch] = []

    def step_down(self) -> None:
        raise AssertionError("this log takes everything")

    def add_listener(self, listener: MetadataLogListener) -> None:
        self.listeners.append(listener)

    def append(
        self,
        records: Sequence[tuple[Message, int]],
        *,
        leader_epoch: int,
        values: Sequence[bytes] | None = None,
    ) -> tuple[ErrorCode, int]:
        if leader_epoch != self.leader_epoch:
            return ErrorCode.NOT_CONTROLLER, -1
        first = self.log_end_offset
        self.log_end_offset += len(records)
        messages = tuple(record for record, _version in records)
        self._uncommitted.append(
            CommittedBatch(first, self.log_end_offset - 1, leader_epoch, 5, 100, messages)
        )
        asyncio.get_running_loop().call_soon(self.commit)
        return ErrorCode.NONE, self.log_end_offset - 1

    def commit(self) -> None:
        while self.commits and self._uncommitted:
            batch = self._uncommitted.pop(0)
            for listener in self.listeners:
                listener.handle_commit(batch)

    def lead(self, node_id: int, leader_epoch: int) -> None:
        self.leader_epoch = leader_epoch
        for listener in self.listeners:
            listener.handle_leader_change(node_id, leader_epoch)

    async def write_snapshot(
        self,
        *,
        end_offset: int,
        leader_epoch: int,
        last_contained_log_time_ms: int,
        records: Iterator[tuple[Message, int]],
    ) -> None:
        raise AssertionError("these logs are short")


class RecordingQuorum:
    """Stands for the quorum's request handler: notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Message, int, str]] = []
        self.release = asyncio.Event()
        self.release.set()

    async def handle(self, request: Message, api_version: int, client_host: str) -> Message:
        self.asked.append((request, api_version, client_host))
        await self.release.wait()
        response: Message = error_response(
            request, ErrorCode.UNKNOWN_LEADER_EPOCH, "as scripted", api_version=api_version
        )
        return response


def answers_of(asked: Sequence[asyncio.Future[Message]]) -> list[Any]:
    """The responses that have come, and the errors of requests that failed."""
    done = [future for future in asked if future.done()]
    failures = [future.exception() for future in done]
    return [
        future.result() if failure is None else failure.error
        for future, failure in zip(done, failures, strict=True)
    ]


class Deny(Authorizer):
    """Refuses the (operation, resource type) pairs it is given, to one principal if named."""

    def __init__(
        self, *pairs: tuple[Operation, ResourceType], principal: str | None = None
    ) -> None:
        self._pairs = set(pairs)
        self._principal = principal

    def authorize(
        self, principal: str, client_host: str, operation: Operation, kind: ResourceType, name: str
    ) -> bool:
        if self._principal not in (None, principal):
            return True
        return (operation, kind) not in self._pairs


class ControllerBench:
    """One controller, its listener, and connections to it. Use `await ControllerBench.start()`."""

    def __init__(self, authorizer: Authorizer | None) -> None:
        self.config = node_config()
        self.ports = Ports.of_machine()
        self.clock = self.ports.clock
        self.log = ListLog()
        self.quorum = RecordingQuorum()
        self.faults: list[BaseException] = []
        self.kraft_version = 1
        self.kraft_upgrade_outcome = ErrorCode.NONE
        self.registry = Registry(self.clock.monotonic_ms)
        self.core = ControllerCore(ControllerSettings(self.config, CLUSTER_ID), random.Random(3))
        self.controller = Controller(
            self.core,
            self.log,
            self.clock,
            node_id=1,
            bootstrap_records=feature_records(initial_feature_levels()),
            snapshot_policy=SnapshotPolicy(max_bytes=10**9, interval_ms=0),
        )
        self.apis = ControllerApis(
            self.controller,
            self.quorum,
            ClusterDescriptions(
                self.config,
                CLUSTER_ID,
                image=lambda: self.controller.committed_image,
                leader_id=lambda: self.controller.leader_id,
                kraft_version=lambda: self.kraft_version,
            ),
            kraft_upgrade=self.upgrade_kraft_version,
            work=LongWork(self.clock, asyncio.to_thread),
            changes=ChangeLog(self.clock),
            mutations=ControllerMutationQuotas(
                lambda: self.controller.committed_image,
                self.clock,
                self.registry,
                sample_count=11,
                window_ms=1000.0,
            ),
        )
        self.server = Server(
            clock=self.clock, network=self.ports.network, offload=asyncio.to_thread
        )
        self.router = RequestRouter(
            self.apis.routes(),
            clock=self.clock,
            authorizer=authorizer or Authorizer(),
            on_fault=self.faults.append,
        )
        self._connections: list[Connection] = []

    @classmethod
    async def start(
        cls, *, authorizer: Authorizer | None = None, leads: bool = True
    ) -> ControllerBench:
        bench = cls(authorizer)
        bench.controller.start()
        await bench.server.start([ListenerSpec(LISTENER, "127.0.0.1", 0)])
        bench.server.open(bench.router)
        bench.log.lead(1 if leads else OTHER_NODE, 1)
        return bench

    async def upgrade_kraft_version(self, level: int, *, timeout_ms: int) -> tuple[ErrorCode, str]:
        outcome = self.kraft_upgrade_outcome
        if outcome is ErrorCode.NONE:
            self.kraft_version = level
        return outcome, "as scripted"

    @property
    def port(self) -> int:
        return self.server.port(LISTENER)

    async def connect(self) -> Connection:
        connection = await Connection.connect(
            self.ports.network, "127.0.0.1", self.port, client_id="tests", clock=self.clock
        )
        self._connections.append(connection)
        return connection

    async def join(self, connection: Connection, broker_id: int = 1) -> int:
        """Register a broker and let it in; its epoch."""
        response = await connection.send(registration(broker_id))
        assert response.error_code == ErrorCode.NONE
        beat = BrokerHeartbeatRequest(
            broker_id=broker_id,
            broker_epoch=response.broker_epoch,
            current_metadata_offset=response.broker_epoch,
        )
        answer: Any = await connection.send(beat)
        assert not answer.is_fenced
        return int(response.broker_epoch)

    async def close_listener(self) -> None:
        await self.router.close(cancels=True)
        await self.server.close(CLOSE_GRACE_MS)

    async def close(self) -> None:
        for connection in self._connections:
            connection.close()
        await self.close_listener()
        await self.controller.close()
        assert self.faults == []
