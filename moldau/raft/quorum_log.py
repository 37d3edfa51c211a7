"""The metadata log of a quorum, as the controller and its listeners see it.

Owns: the public face of one replica. Must not: carry out effects (the driver does), or know what
records mean. Invariant: a batch is delivered only when the quorum has committed it; an append is
taken only while this replica leads the epoch it is for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple
from uuid import UUID

from moldau.metadata.log import MetadataLogListener
from moldau.protocol.errors import ErrorCode
from moldau.protocol.schema import Message
from moldau.raft.core import QuorumCore, Role
from moldau.raft.core.effects import Complete, Effect
from moldau.raft.core.messages import PeerRequest, PeerResponse
from moldau.raft.core.values import Leadership, ReplicaKey, ReplicaProgress, SnapshotId
from moldau.raft.core.voters import VoterDescription, VoterSet
from moldau.raft.delivery import Subscription
from moldau.raft.log_files import LogFiles, open_log_files
from moldau.raft.peers import PeerNetwork
from moldau.raft.quorum_driver import QuorumDriver
from moldau.raft.values import MetadataLogSettings, QuorumStopped
from moldau.runtime.clock import Clock
from moldau.runtime.filesystem import Filesystem
from moldau.storage.faults import LogOffline

logger = logging.getLogger(__name__)


class QuorumStatus(NamedTuple):
    """The quorum as this replica knows it; only the leader knows the others' progress.

    Times in `voters` and `observers` are those of the clock's monotonic milliseconds.
    """

    role: Role
    leadership: Leadership
    high_watermark: int
    log_end_offset: int
    voter_set: VoterSet
    voters: tuple[ReplicaProgress, ...] = ()
    observers: tuple[ReplicaProgress, ...] = ()

    @property
    def is_leader(self) -> bool:
        return self.role is Role.LEADER


class QuorumLog:
    """States: opened by `open` -> a replica of the quorum -> failed or closed. Others read `files`
    and `state`, and change nothing in them.
    """

    def __init__(
        self, files: LogFiles, settings: MetadataLogSettings, driver: QuorumDriver
    ) -> None:
        """Use `open`."""
        self.files = files
        self.state = driver.core.state
        self._log = files.log
        self._settings = settings
        self._driver = driver
        self._delivery = driver.delivery
        self._closing: asyncio.Task[None] | None = None
        self._stepping_down: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        filesystem: Filesystem,
        clock: Clock,
        settings: MetadataLogSettings,
        on_fatal: Callable[[str], None],
        *,
        peers: PeerNetwork,
        dice: random.Random | None = None,
        inspect: Callable[[Iterator[Message], int], None] | None = None,
    ) -> QuorumLog:
        """Open the log and take part in the quorum; a quorum of one leads on return.

        Args:
            on_fatal: called once, with one line, when the node must not go on.
            peers: how to reach other replicas.
            dice: for election timeouts; seeded from the system's randomness when None.
            inspect: shown, before this replica takes part, all records that are on disk, committed
                or not, and where the log ends; called beside the loop.

        Raises:
            MetadataLogError: damage or contradictions; nothing was overwritten.
            OSError: the disk refuses.
        """
        files = await filesystem.offload(
            open_log_files,
            filesystem,
            clock,
            settings.metadata_directory,
            settings.log_config(),
            settings.static_voters,
        )
        if inspect is not None:
            records = files.records()
            await filesystem.offload(inspect, records, files.log_end_offset)
        driver = QuorumDriver(
            files,
            clock,
            settings,
            on_fatal,
            peers,
            dice if dice is not None else random.Random(secrets.randbits(128)),
        )
        await driver.start()
        return cls(files, settings, driver)

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record will get."""
        return self._log.log_end_offset

    @property
    def high_watermark(self) -> int:
        """Everything below is committed, and with its listeners or on its way to them."""
        return self._delivery.high_watermark

    @property
    def node_id(self) -> int:
        return self._settings.local.node_id

    @property
    def directory_id(self) -> UUID:
        return self._settings.local.directory_id

    @property
    def voters(self) -> VoterSet:
        """The quorum's latest voters, committed or not."""
        return self.state.voters.latest

    @property
    def voter_ids(self) -> Sequence[int]:
        return tuple(voter.voter_id for voter in self.state.voters.latest.voters)

    @property
    def leadership(self) -> Leadership:
        """The leader as this replica knows it; listeners hear it later, in log order."""
        return self._delivery.leadership

    @property
    def is_leader(self) -> bool:
        """Whether this replica leads and takes appends."""
        return self._may_append(self.state.leader_epoch)

    def status(self) -> QuorumStatus:
        state = self.state
        voters, observers = self._driver.core.progress()
        return QuorumStatus(
            role=state.role,
            leadership=state.leadership,
            high_watermark=state.high_watermark,
            log_end_offset=self._log.log_end_offset,
            voter_set=state.voters.latest,
            voters=tuple(voters),
            observers=tuple(observers),
        )

    def on_leadership_change(self, watcher: Callable[[Leadership], object]) -> None:
        """Call `watcher` whenever this replica learns of another leader, or of the loss of one."""
        self._driver.leadership_watchers.append(watcher)

    def append(
        self,
        records: Sequence[tuple[Message, int]],
        *,
        leader_epoch: int,
        values: Sequence[bytes] | None = None,
    ) -> tuple[ErrorCode, int]:
        """Append one batch as the leader of `leader_epoch`; see MetadataLog.append."""
        assert records, "a batch has records"
        if not self._may_append(leader_epoch):
            return ErrorCode.NOT_CONTROLLER, -1
        driver = self._driver
        result = driver.store.append_data(records, leader_epoch, values)
        if driver.store.found_no_room(result):
            driver.on_no_room(result.error_message or "")
            leads_on = self._may_append(leader_epoch)
            return result.error if leads_on else ErrorCode.NOT_CONTROLLER, -1
        if result.error is not ErrorCode.NONE:
            logger.error("metadata append refused: %s", result.error_message)
            if self._log.offline:
                driver.fail(self._log.offline_reason)
            return result.error, -1
        driver.on_appended(())
        return ErrorCode.NONE, result.last_offset

    def _may_append(self, leader_epoch: int) -> bool:
        return (
            self._driver.led_epoch == leader_epoch == self.state.leader_epoch
            and self.state.role is Role.LEADER
            and self._closing is None
            and self._driver.failure is None
        )

    def add_listener(self, listener: MetadataLogListener) -> Subscription:
        return self._delivery.add_listener(listener)

    async def write_snapshot(
        self,
        *,
        end_offset: int,
        leader_epoch: int,
        last_contained_log_time_ms: int,
        records: Iterator[tuple[Message, int]],
    ) -> None:
        """Write a snapshot of everything below `end_offset`, then trim log and older snapshots.

        Raises OSError: it could not be written; nothing changed.
        """
        assert end_offset <= self.high_watermark, "only what is committed"
        snapshot_id = SnapshotId(end_offset, leader_epoch)
        newest = self.files.snapshots[-1].end_offset if self.files.snapshots else -1
        if self._closing is not None or self._driver.failure is not None or end_offset <= newest:
            return
        # A majority may have committed what this leader has not flushed: the log must reach the
        # snapshot's end after a power loss too.
        if not await self._driver.is_flushed_to(end_offset):
            return
        await self._driver.snapshots.write(
            snapshot_id,
            self.files.voters.at(end_offset),
            last_contained_log_time_ms=last_contained_log_time_ms,
            records=records,
        )
        self._driver.events.post(lambda: self._register_snapshot(snapshot_id))
        await self._driver.events.is_idle()

    def _register_snapshot(self, snapshot_id: SnapshotId) -> Sequence[Effect]:
        try:
            counts = self._driver.snapshots.register(snapshot_id)
        except LogOffline as problem:
            self._driver.fail(str(problem))
            return ()
        self._driver.store.flush_soon()  # the segment that has just ended, with its indexes
        return self._driver.core.on_snapshot_written(self._driver.now_ms()) if counts else ()

    async def handle(self, request: PeerRequest) -> PeerResponse:
        """The answer to a peer; a fetch may wait for it as long as it asked for.

        Raises QuorumStopped: the replica is closed or has failed.
        """
        await self._driver.events.has_room()
        core = self._driver.core
        answer = await self._driver.ask(
            lambda token: core.on_request(request, token, self._driver.now_ms())
        )
        assert not isinstance(answer, Complete)
        return answer

    async def add_voter(
        self, voter: VoterDescription, *, timeout_ms: int, ack_when_committed: bool = True
    ) -> tuple[ErrorCode, str]:
        """Add a voter that has caught up (KIP-853); the error and what to say of it.

        Raises QuorumStopped.
        """
        options = {"ack_when_committed": ack_when_committed, "timeout_ms": timeout_ms}
        return await self._change(QuorumCore.add_voter, voter, **options)

    async def remove_voter(self, voter: ReplicaKey, *, timeout_ms: int) -> tuple[ErrorCode, str]:
        """Remove a voter, be it this leader (KIP-853). Raises QuorumStopped."""
        return await self._change(QuorumCore.remove_voter, voter, timeout_ms=timeout_ms)

    async def upgrade_kraft_version(self, level: int, *, timeout_ms: int) -> tuple[ErrorCode, str]:
        """Raise kraft.version: from then on the voters are in the log.

        A replica that has stopped answers NOT_LEADER_OR_FOLLOWER.
        """
        try:
            change = QuorumCore.upgrade_kraft_version
            return await self._change(change, level, timeout_ms=timeout_ms)
        except QuorumStopped as problem:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, str(problem)

    async def resign(self, preferred: ReplicaKey | None = None) -> tuple[ErrorCode, str]:
        """Stop leading, in favour of `preferred` if it can. Raises QuorumStopped."""
        return await self._change(QuorumCore.resign, preferred)

    def step_down(self) -> None:
        if self._stepping_down is None and self._may_append(self.state.leader_epoch):
            self._stepping_down = asyncio.get_running_loop().create_task(
                self._step_down(), name="metadata-step-down"
            )

    async def _step_down(self) -> None:
        try:
            with contextlib.suppress(QuorumStopped):
                await self.resign()
        finally:
            self._stepping_down = None

    async def _change(
        self, event: Callable[..., Sequence[Effect]], subject: object, **options: object
    ) -> tuple[ErrorCode, str]:
        driver = self._driver
        outcome = await driver.ask(
            lambda token: event(driver.core, token, subject, driver.now_ms(), **options)
        )
        assert isinstance(outcome, Complete)
        return outcome.error, outcome.message

    async def close(self) -> None:
        """Commit what can be committed, hand leadership on, close the files (idempotent)."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._driver.shut_down())
        await asyncio.wait([self._closing])
        self._closing.result()
