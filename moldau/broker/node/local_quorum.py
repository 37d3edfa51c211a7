"""The quorum side of a combined node: metadata log and controller on a thread and loop of their
own.

Owns the thread, and every crossing between its loop and the data loop. Must not decide anything.
Invariants: neither loop ever waits for the other while holding something; what the log commits
reaches the broker's loader in log order, and before the response of the request that caused it.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Final, TypeVar
from uuid import UUID

from moldau.broker.controller_channel import DEFAULT_TIMEOUT_MS, ControllerUnavailable
from moldau.broker.metadata_loader import MetadataLoader
from moldau.broker.node.formatting import FEATURE_RECORD_VERSION, default_feature_levels
from moldau.broker.producer_ids import ProducerIdBlock, ProducerIdsUnavailable
from moldau.config import NodeConfig
from moldau.metadata.controller.controller import Controller, RequestFailed
from moldau.metadata.controller.core.controller_core import ControllerCore
from moldau.metadata.controller.core.settings import ControllerSettings
from moldau.metadata.controller.snapshot_policy import SnapshotPolicy
from moldau.metadata.features import KRAFT_VERSION
from moldau.metadata.image import Provenance
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p67_allocate_producer_ids import AllocateProducerIdsRequest
from moldau.protocol.metadata_records import FeatureLevelRecord
from moldau.protocol.schema import Message
from moldau.raft import (
    CommittedBatch,
    LoadedSnapshot,
    MetadataLogError,
    MetadataLogSettings,
    SingleVoterLog,
    VoterEndpoint,
    read_bootstrap,
)
from moldau.runtime.clock import SystemClock
from moldau.runtime.filesystem import OsFilesystem

logger = logging.getLogger("moldau.node.quorum")

START_TIMEOUT_S: Final = 120.0
MAX_REQUESTS_ON_THE_WAY: Final = 1_000
INTERNAL_PRINCIPAL: Final = "User:ANONYMOUS"

Result = TypeVar("Result")


class QuorumStartError(Exception):
    """The metadata log or the controller cannot start; one line that says why."""


class _LoaderBridge:
    """The broker's listener in the log: hands everything over to the data loop, in order."""

    def __init__(self, loader: MetadataLoader, data_loop: asyncio.AbstractEventLoop) -> None:
        self._loader = loader
        self._data_loop = data_loop

    def handle_snapshot(self, snapshot: LoadedSnapshot) -> None:
        provenance = Provenance(
            snapshot.end_offset - 1, snapshot.leader_epoch, snapshot.last_contained_log_time_ms
        )
        self._call(self._loader.handle_snapshot, snapshot.records, provenance)

    def handle_commit(self, batch: CommittedBatch) -> None:
        provenance = Provenance(batch.last_offset, batch.leader_epoch, batch.append_timestamp_ms)
        self._call(self._loader.handle_commit, batch.records, provenance)

    def handle_leader_change(self, leader_id: int, leader_epoch: int) -> None:
        """The broker needs no word of it: its requests say whether the controller is active."""

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        if not self._data_loop.is_closed():
            self._data_loop.call_soon_threadsafe(function, *arguments)


class InProcessControllerChannel:
    """`ControllerChannel` to the controller of this very process."""

    def __init__(self, quorum: LocalQuorum) -> None:
        self._quorum = quorum
        self._on_the_way_count = 0

    async def send(
        self, request: Message, principal: str, *, timeout_ms: int = DEFAULT_TIMEOUT_MS
    ) -> Any:
        """As the port says."""
        if self._on_the_way_count >= MAX_REQUESTS_ON_THE_WAY:
            raise ControllerUnavailable(f"{MAX_REQUESTS_ON_THE_WAY} requests are on their way")
        self._on_the_way_count += 1
        try:
            return await self._quorum.ask(request, timeout_ms)
        except RequestFailed as failure:
            raise ControllerUnavailable(failure.message) from failure
        finally:
            self._on_the_way_count -= 1


class LocalQuorum:
    """States: made → `start` → serving → `stop`. Its methods belong to the data loop.

    Args:
        config: the node's.
        cluster_id: of the node's log directories.
        directory_id: of the directory that holds the metadata log.
        loader: the broker's copy of the metadata, fed on the data loop.
        on_fault: told of an exception nobody expected on the quorum's loop.
        on_fatal: told, from any thread, when the node must not go on.
    """

    def __init__(
        self,
        config: NodeConfig,
        *,
        cluster_id: str,
        directory_id: UUID,
        loader: MetadataLoader,
        on_fault: Callable[[BaseException], None],
        on_fatal: Callable[[str], None],
    ) -> None:
        self._config = config
        self._cluster_id = cluster_id
        self._directory_id = directory_id
        self._loader = loader
        self._on_fault = on_fault
        self._on_fatal = on_fatal
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_event: asyncio.Event | None = None
        self._controller: Controller | None = None
        self.channel = InProcessControllerChannel(self)

    async def start(self) -> None:
        """Lead, become active, and bring the loader up to date.

        Raises:
            QuorumStartError: the metadata log is damaged, unreadable or somebody else's.
        """
        data_loop = asyncio.get_running_loop()
        started: Future[int] = Future()
        bridge = _LoaderBridge(self._loader, data_loop)
        self._thread = threading.Thread(
            target=self._run, args=(bridge, started), name="moldau-quorum"
        )
        self._thread.start()
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                last_offset = await asyncio.wrap_future(started)
                await self._loader.wait_until(
                    lambda image: image.provenance.last_contained_offset >= last_offset
                )
        except TimeoutError:
            raise QuorumStartError(
                f"the controller was not active within {START_TIMEOUT_S:.0f} s"
            ) from None

    async def stop(self) -> None:
        """Commit what was appended, close the log, end the thread (idempotent)."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        if self._loop is not None and self._stop_event is not None:
            self._loop.call_soon_threadsafe(self._stop_event.set)
        await asyncio.get_running_loop().run_in_executor(None, thread.join)

    async def ask(self, request: Message, timeout_ms: int) -> Any:
        """The controller's response.

        Raises:
            RequestFailed: it gave none.
        """
        controller = self._controller
        if controller is None or self._thread is None:
            raise RequestFailed(ErrorCode.NOT_CONTROLLER, "the controller is not running")
        return await self._on_quorum_loop(controller.handle(request, timeout_ms=timeout_ms))

    def producer_id_allocator(self, broker_epoch: Callable[[], int]) -> ProducerIdBlocks:
        """Gets blocks of producer ids for this broker; its epoch is asked for when needed."""
        return ProducerIdBlocks(self.channel, self._config.node_id, broker_epoch)

    async def _on_quorum_loop(self, work: Coroutine[Any, Any, Result]) -> Result:
        assert self._loop is not None, "started"
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    # -- on the quorum's own thread --------------------------------------------------------------

    def _run(self, bridge: _LoaderBridge, started: Future[int]) -> None:
        try:
            asyncio.run(self._serve(bridge, started))
        except (MetadataLogError, OSError) as error:
            if started.done():
                raise
            started.set_exception(QuorumStartError(str(error)))

    async def _serve(self, bridge: _LoaderBridge, started: Future[int]) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._loop_exception)
        self._loop = loop
        self._stop_event = asyncio.Event()
        filesystem, clock = OsFilesystem(), SystemClock()
        try:
            log = await SingleVoterLog.open(filesystem, clock, self._log_settings(), self._on_fatal)
            try:
                records = await filesystem.offload(self._bootstrap_records, filesystem)
                controller = self._make_controller(log, clock, records)
                controller.start()
                log.add_listener(bridge)
                await controller.active_since.wait()
                log.release_cached_snapshot()
                self._controller = controller
                started.set_result(log.log_end_offset - 1)
                await self._stop_event.wait()
                await controller.close()
            finally:
                await log.close()
        finally:
            filesystem.close()

    def _log_settings(self) -> MetadataLogSettings:
        config = self._config
        return MetadataLogSettings(
            metadata_directory=config.metadata_log_directory,
            node_id=config.node_id,
            directory_id=self._directory_id,
            endpoints=tuple(
                VoterEndpoint(each.listener_name, each.host or "localhost", each.port)
                for each in config.controller_listeners
            ),
            segment_bytes=config.get_int("metadata.log.segment.bytes"),
            segment_ms=config.get_int("metadata.log.segment.ms"),
            retention_bytes=config.get_int("metadata.max.retention.bytes"),
            retention_ms=config.get_int("metadata.max.retention.ms"),
        )

    def _make_controller(
        self, log: SingleVoterLog, clock: SystemClock, records: list[tuple[Message, int]]
    ) -> Controller:
        settings = ControllerSettings.from_node_config(self._config, self._cluster_id)
        return Controller(
            ControllerCore(settings, random.Random(secrets.randbits(128))),
            log,
            clock,
            node_id=self._config.node_id,
            bootstrap_records=records,
            snapshot_policy=SnapshotPolicy(
                max_bytes=self._config.get_int("metadata.log.max.record.bytes.between.snapshots"),
                interval_ms=self._config.get_int("metadata.log.max.snapshot.interval.ms"),
            ),
        )

    def _bootstrap_records(self, filesystem: OsFilesystem) -> list[tuple[Message, int]]:
        """What the directory was formatted with; the defaults where the file is missing."""
        records = read_bootstrap(filesystem, self._config.metadata_log_directory)
        if not records:
            records = [
                FeatureLevelRecord(name=name, feature_level=level)
                for name, level in default_feature_levels().items()
                if level > 0 and name != KRAFT_VERSION
            ]
        return [(record, FEATURE_RECORD_VERSION) for record in records]

    def _loop_exception(self, _loop: object, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, BaseException):
            self._on_fault(error)
        else:
            logger.error("quorum loop: %s", context.get("message"))


class ProducerIdBlocks:
    """Implements the broker's `ProducerIdAllocator` (KIP-730)."""

    def __init__(
        self,
        channel: InProcessControllerChannel,
        broker_id: int,
        broker_epoch: Callable[[], int],
    ) -> None:
        self._channel = channel
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch

    async def allocate_block(self) -> ProducerIdBlock:
        """As the port says."""
        request = AllocateProducerIdsRequest(
            broker_id=self._broker_id, broker_epoch=self._broker_epoch()
        )
        try:
            response = await self._channel.send(request, INTERNAL_PRINCIPAL)
        except ControllerUnavailable as problem:
            raise ProducerIdsUnavailable(str(problem)) from problem
        if response.error_code != ErrorCode.NONE:
            raise ProducerIdsUnavailable(ErrorCode.of(response.error_code).name)
        return ProducerIdBlock(response.producer_id_start, response.producer_id_len)
