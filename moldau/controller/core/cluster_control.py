"""Broker registration, heartbeats, fencing, controlled shutdown, removal and blocks of producer ids
(KIP-631, KIP-730, KIP-858, KIP-966).

Owns: the life of a broker as the controller sees it, and the sessions of brokers
(`broker.session.timeout.ms`). Transitions of a registration:

    absent -> fenced            registration
    fenced -> unfenced          a heartbeat of a broker that has read the log up to its registration
    unfenced -> shutting down   a heartbeat that wants to shut down while the broker leads something
    unfenced, shutting down -> fenced    session over, wish to be fenced, or leave given to stop
    any -> fenced (new epoch)   registration of a new incarnation
    any -> same state           registration of the same incarnation: its directories may change
    any -> absent               UnregisterBroker

A broker may be in more partitions than fit one batch. Then its partitions change first, step by
step, and the record about the broker itself comes with the last of them, so that after every
single batch no broker leads that is fenced, shutting down, gone or replaced; until then the broker
is marked as leaving and gets nothing back. When the steps end early (a new leader), whatever made
the broker leave (its silence, its heartbeats, its registration) makes it leave again.

Must not: keep time. Invariants: a broker that is fenced, or shutting down, leads nothing; a
registered broker supports every finalized feature level, has its own directories, and belongs to
this cluster; no producer id is ever handed out twice, because a block's record is committed before
the broker hears of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final
from uuid import UUID

from moldau.constants import MAX_INT64
from moldau.controller.core.partition_changes import (
    Step,
    leaving_step,
    lost_directories_step,
    return_step,
    unregistered_directories_step,
)
from moldau.controller.core.result import Asked, ControllerResult, Refusal, VersionedRecord
from moldau.controller.core.state import ControllerState
from moldau.metadata.features import (
    CONTROLLER_REGISTRATION_LEVEL,
    DIRECTORY_ASSIGNMENT_LEVEL,
    broker_registration_change_record_version,
    metadata_release,
    register_broker_record_version,
)
from moldau.metadata.image import BrokerRegistration, MetadataImage
from moldau.protocol import metadata_records as kinds
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p62_broker_registration as p62
from moldau.protocol.messages import p63_broker_heartbeat as p63
from moldau.protocol.messages import p64_unregister_broker as p64
from moldau.protocol.messages import p67_allocate_producer_ids as p67
from moldau.protocol.messages import p70_controller_registration as p70
from moldau.protocol.types import RESERVED_TOPIC_IDS, ZERO_UUID

FENCE: Final = 1
UNFENCE: Final = -1
IN_CONTROLLED_SHUTDOWN: Final = 1

SESSION_OVER: Final = object()
"""Stands for the request that makes a silent broker leave."""

PRODUCER_ID_BLOCK_SIZE: Final = 1_000
_LAST_BLOCK_START: Final = MAX_INT64 - PRODUCER_ID_BLOCK_SIZE


@dataclass(slots=True)
class _Session:
    broker_epoch: int
    last_contact_ms: float
    metadata_offset: int = -1
    controlled_shutdown_offset: int = -1
    may_stop: bool = False


class BrokerHeartbeats:
    """Which brokers are alive: their last heartbeats, and how far each has read the metadata log.

    The sessions are not in the log: a new active controller starts with a fresh one for every
    broker. Times are monotonic milliseconds. Invariant: every registered broker that is not fenced
    has a session. No decision ends one, since the log may refuse it; that of a broker that is gone
    counts for nothing, and a new broker epoch begins another.
    """

    def __init__(self, session_timeout_ms: int) -> None:
        self._session_timeout_ms = session_timeout_ms
        self._sessions: dict[int, _Session] = {}

    def reset(self, image: MetadataImage, now_ms: float) -> None:
        """Start to lead: every broker that is not fenced gets a whole session to report in."""
        self._sessions = {
            broker_id: _Session(broker.broker_epoch, now_ms)
            for broker_id, broker in image.cluster.brokers.items()
            if not broker.fenced
        }

    def touch(
        self, broker_id: int, broker_epoch: int, now_ms: float, metadata_offset: int = -1
    ) -> None:
        session = self._sessions.get(broker_id)
        if session is None or session.broker_epoch != broker_epoch:
            session = self._sessions[broker_id] = _Session(broker_epoch, now_ms)
        session.last_contact_ms = now_ms
        session.may_stop = False
        session.metadata_offset = max(session.metadata_offset, metadata_offset)

    def let_go(self, broker_id: int) -> None:
        """The broker may stop; says nothing before the log has taken its fence."""
        self._sessions[broker_id].may_stop = True

    def was_let_go(self, broker_id: int) -> bool:
        session = self._sessions.get(broker_id)
        return session is not None and session.may_stop

    def has_valid_session(self, broker_id: int, now_ms: float) -> bool:
        session = self._sessions.get(broker_id)
        return session is not None and now_ms < session.last_contact_ms + self._session_timeout_ms

    def expired(self, image: MetadataImage, now_ms: float) -> list[int]:
        """Brokers to fence: not fenced yet and silent for longer than their session."""
        return [
            broker_id
            for broker_id, _session, _broker in sorted(self._unfenced(image))
            if not self.has_valid_session(broker_id, now_ms)
        ]

    def next_expiry_ms(self, image: MetadataImage) -> float | None:
        times = [
            session.last_contact_ms + self._session_timeout_ms
            for _broker_id, session, _broker in self._unfenced(image)
        ]
        return min(times, default=None)

    def begin_controlled_shutdown(self, broker_id: int, log_end_offset: int) -> None:
        """Remember by which offset the others must have heard that a broker leaves."""
        session = self._sessions.get(broker_id)
        if session is not None:
            session.controlled_shutdown_offset = log_end_offset

    def may_shut_down(self, broker_id: int, image: MetadataImage) -> bool:
        """Whether every live broker has read that this one leads nothing any more."""
        session = self._sessions.get(broker_id)
        if session is None:
            return True
        return all(
            other.metadata_offset >= session.controlled_shutdown_offset
            for _other_id, other, broker in self._unfenced(image)
            if not broker.in_controlled_shutdown
        )

    def _unfenced(self, image: MetadataImage) -> Iterator[tuple[int, _Session, BrokerRegistration]]:
        for broker_id, session in self._sessions.items():
            broker = image.cluster.brokers.get(broker_id)
            if broker is not None and not broker.fenced:
                yield broker_id, session, broker


def check_registration(state: ControllerState, request: p62.BrokerRegistrationRequest) -> None:
    """Check a broker's registration, apart from its session.

    Raises Refusal: INCONSISTENT_CLUSTER_ID, INVALID_REGISTRATION, UNSUPPORTED_VERSION.
    """
    if request.cluster_id != state.settings.cluster_id:
        raise Refusal(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"this is cluster {state.settings.cluster_id}, not {request.cluster_id}",
        )
    if request.broker_id < 0:
        raise _invalid("a broker id is not negative")
    if request.incarnation_id == ZERO_UUID:
        raise _invalid("an incarnation needs an id")
    if not request.listeners:
        raise _invalid("a broker needs a listener")
    names = [listener.name for listener in request.listeners]
    if len(set(names)) != len(names):
        raise _invalid("a listener is named twice")
    _check_directories(state, request)
    _check_features(state, request)


def _check_directories(state: ControllerState, request: p62.BrokerRegistrationRequest) -> None:
    directories = set(request.log_dirs)
    if len(directories) != len(request.log_dirs):
        raise _invalid("a log directory is named twice")
    if not directories.isdisjoint(RESERVED_TOPIC_IDS):
        raise _invalid("a log directory has a reserved id")
    if not directories and state.metadata_level >= DIRECTORY_ASSIGNMENT_LEVEL:
        raise _invalid("a broker needs a log directory")
    for broker_id, other in state.image.cluster.brokers.items():
        if broker_id != request.broker_id and not directories.isdisjoint(other.directories):
            raise _invalid(f"broker {broker_id} has the same log directory")


def _check_features(state: ControllerState, request: p62.BrokerRegistrationRequest) -> None:
    ranges = {
        feature.name: (feature.min_supported_version, feature.max_supported_version)
        for feature in request.features
    }
    for name, level in state.image.features.finalized_levels.items():
        lowest, highest = ranges.get(name, (0, 0))
        if not lowest <= level <= highest:
            raise Refusal(
                ErrorCode.UNSUPPORTED_VERSION,
                f"{name} is finalized at level {level}, the broker supports {lowest} to {highest}",
            )


def _invalid(message: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_REGISTRATION, message)


def registration_record(
    request: p62.BrokerRegistrationRequest,
    version: int,
    *,
    broker_epoch: int,
    keeps: BrokerRegistration | None,
) -> kinds.RegisterBrokerRecord:
    """The record of a registration; `keeps` is the incarnation's earlier one, whose state stays."""
    return kinds.RegisterBrokerRecord(
        broker_id=request.broker_id,
        is_migrating_zk_broker=version >= 2 and request.is_migrating_zk_broker,
        incarnation_id=request.incarnation_id,
        broker_epoch=broker_epoch,
        end_points=list(request.listeners),
        features=list(request.features),
        rack=request.rack,
        fenced=True if keeps is None else keeps.fenced,
        in_controlled_shutdown=keeps is not None and keeps.in_controlled_shutdown,
        log_dirs=list(request.log_dirs) if version >= 3 else [],
        cordoned_log_dirs=None
        if keeps is None or keeps.cordoned_directories is None or version < 4
        else list(keeps.cordoned_directories),
    )


def register_controller(
    state: ControllerState, request: p70.ControllerRegistrationRequest, _asked: Asked
) -> ControllerResult[p70.ControllerRegistrationResponse]:
    """ControllerRegistration: write down a controller's addresses and feature ranges (KIP-919)."""
    refused = partial(p70.ControllerRegistrationResponse, error_code=ErrorCode.UNSUPPORTED_VERSION)
    if state.metadata_level < CONTROLLER_REGISTRATION_LEVEL:
        release = metadata_release(state.metadata_level)
        return ControllerResult(refused(error_message=f"not at {release}"))
    ranges = {each.name: each for each in request.features}
    for name, level in state.image.features.finalized_levels.items():
        own = ranges.get(name)
        if own is None or not own.min_supported_version <= level <= own.max_supported_version:
            return ControllerResult(refused(error_message=f"{name} is finalized at level {level}"))
    record = kinds.RegisterControllerRecord(
        controller_id=request.controller_id,
        incarnation_id=request.incarnation_id,
        zk_migration_ready=request.zk_migration_ready,
        end_points=list(request.listeners),
        features=list(request.features),
    )
    return ControllerResult(p70.ControllerRegistrationResponse(error_message=None), [(record, 0)])


def allocate_producer_ids(
    state: ControllerState, request: p67.AllocateProducerIdsRequest, _asked: Asked
) -> ControllerResult[p67.AllocateProducerIdsResponse]:
    """AllocateProducerIds: the next block of 1,000 for a broker of this broker epoch (KIP-730)."""
    error = state.check_broker_epoch(request.broker_id, request.broker_epoch)
    first = max(state.image.producer_ids.next_producer_id, 0)
    if error is ErrorCode.NONE and first > _LAST_BLOCK_START:
        error = ErrorCode.UNKNOWN_SERVER_ERROR  # all ids of 63 bits are used up
    if error is not ErrorCode.NONE:
        return ControllerResult(p67.AllocateProducerIdsResponse(error_code=error))
    record = kinds.ProducerIdsRecord(
        broker_id=request.broker_id,
        broker_epoch=request.broker_epoch,
        next_producer_id=first + PRODUCER_ID_BLOCK_SIZE,
    )
    response = p67.AllocateProducerIdsResponse(
        producer_id_start=first, producer_id_len=PRODUCER_ID_BLOCK_SIZE
    )
    return ControllerResult(response, [(record, 0)])


class ClusterControl:
    """The brokers' registrations and sessions. `must_sweep` asks for all missing leaders."""

    def __init__(self, state: ControllerState) -> None:
        self._state = state
        self.heartbeats = BrokerHeartbeats(
            state.settings.node_config.get_int("broker.session.timeout.ms")
        )
        self.must_sweep = False

    def register_broker(
        self, request: p62.BrokerRegistrationRequest, asked: Asked
    ) -> ControllerResult[p62.BrokerRegistrationResponse]:
        """Register an incarnation; its broker epoch is the offset the next record will get."""
        state, broker_id = self._state, request.broker_id
        existing = state.broker(broker_id)
        is_new_incarnation = existing is None or existing.incarnation_id != request.incarnation_id
        try:
            check_registration(state, request)
            if existing is not None and is_new_incarnation:
                self._check_not_alive(existing, asked.now_ms)
        except Refusal as refusal:
            return ControllerResult(p62.BrokerRegistrationResponse(error_code=refusal.error))
        version = register_broker_record_version(state.metadata_level)
        keeps = None if is_new_incarnation else existing
        broker_epoch = asked.log_end_offset if keeps is None else keeps.broker_epoch
        record = registration_record(request, version, broker_epoch=broker_epoch, keeps=keeps)
        directories = frozenset(record.log_dirs)
        if keeps is None:
            is_clean = self._is_clean(existing, request, directories)
            step = leaving_step(state, broker_id, is_clean=is_clean, directories=directories)
        else:
            step = unregistered_directories_step(state, broker_id, directories)
        if not step.is_last:
            return ControllerResult(
                p62.BrokerRegistrationResponse(),
                step.records,
                resume=partial(self.register_broker, request),
                leaving=broker_id if keeps is None else None,
            )
        if (
            keeps is not None
            and state.is_active(broker_id)
            and not directories.issubset(keeps.directories)
        ):
            self.must_sweep = True  # what lies in a directory that is back may lead again
        step.records.append((record, version))
        self.heartbeats.touch(broker_id, broker_epoch, asked.now_ms)
        return ControllerResult(
            p62.BrokerRegistrationResponse(broker_epoch=broker_epoch), step.records
        )

    def _is_clean(
        self,
        existing: BrokerRegistration | None,
        request: p62.BrokerRegistrationRequest,
        directories: Collection[UUID],
    ) -> bool:
        """Whether the broker has all that it had when it stopped, as far as that can be known.

        Without KIP-966 nothing is known of how it stopped, and Kafka takes the stop for a clean
        one. What the broker says of its stop counts for the directories that it still has: one that
        is gone may have held replicas whose directory had not been reported to the controller yet.
        """
        if not self._state.eligible_leader_replicas_enabled:
            return True
        return (
            existing is not None
            and request.previous_broker_epoch == existing.broker_epoch
            and set(existing.directories).issubset(directories)
        )

    def _check_not_alive(self, existing: BrokerRegistration, now_ms: float) -> None:
        """A second process with a live broker's id is refused until the first one's session ends.

        The broker in the controller's own process is the exception: when that process asks to
        register a new incarnation, the old one is known to be dead.
        """
        broker_id = existing.broker_id
        if broker_id == self._state.settings.node_config.node_id:
            return
        has_left = existing.fenced and self.heartbeats.was_let_go(broker_id)
        alive = self.heartbeats.has_valid_session(broker_id, now_ms) and not has_left
        if alive and not existing.in_controlled_shutdown:
            raise Refusal(
                ErrorCode.DUPLICATE_BROKER_REGISTRATION,
                f"broker {broker_id} is alive under another incarnation",
            )

    def heartbeat(
        self, request: p63.BrokerHeartbeatRequest, asked: Asked
    ) -> ControllerResult[p63.BrokerHeartbeatResponse]:
        state = self._state
        error = state.check_broker_epoch(request.broker_id, request.broker_epoch)
        if error is not ErrorCode.NONE:
            return ControllerResult(p63.BrokerHeartbeatResponse(error_code=error))
        broker = state.broker(request.broker_id)
        assert broker is not None
        self.heartbeats.touch(
            broker.broker_id, broker.broker_epoch, asked.now_ms, request.current_metadata_offset
        )
        is_caught_up = request.current_metadata_offset >= broker.broker_epoch
        response = p63.BrokerHeartbeatResponse(is_caught_up=is_caught_up, is_fenced=broker.fenced)
        records = self._directory_records(broker, request)
        if records:
            # What the broker wants besides is decided once its directories are right.
            return ControllerResult(response, records, resume=partial(self.heartbeat, request))
        if broker.fenced:
            if request.want_shut_down:
                response.should_shut_down = True
                self.heartbeats.let_go(broker.broker_id)
            elif not request.want_fence and is_caught_up and not broker.in_controlled_shutdown:
                # An incarnation that began to shut down does not come back; the next one does.
                response.is_fenced = False
                return ControllerResult(response, self._unfence(broker))
            return ControllerResult(response)
        if broker.in_controlled_shutdown:
            if not request.want_shut_down and not request.want_fence:
                return ControllerResult(response)
            return self._advance_shutdown(broker, request, asked.log_end_offset)
        if request.want_fence:
            return self._leave(broker, request, shut_down=request.want_shut_down)
        if request.want_shut_down:
            return self._advance_shutdown(broker, request, asked.log_end_offset)
        return ControllerResult(response)

    def _advance_shutdown(
        self, broker: BrokerRegistration, request: p63.BrokerHeartbeatRequest, log_end_offset: int
    ) -> ControllerResult[p63.BrokerHeartbeatResponse]:
        """First move leadership away; once every live broker has read that, give leave to stop."""
        state, broker_id = self._state, broker.broker_id
        response = p63.BrokerHeartbeatResponse(
            is_caught_up=request.current_metadata_offset >= broker.broker_epoch, is_fenced=False
        )
        is_half_way = state.leaving.get(broker_id) is request
        if state.index.leads_anything(broker_id) or is_half_way:
            step = leaving_step(state, broker_id, is_clean=True)
            result = ControllerResult(response, step.records)
            if not step.is_last:
                result.resume = partial(self.heartbeat, request)
                result.leaving = broker_id
                return result
            if not broker.in_controlled_shutdown:
                result.records.append(self._change(broker, shutdown=True))
            last_offset = log_end_offset + len(result.records) - 1
            self.heartbeats.begin_controlled_shutdown(broker_id, last_offset)
            return result
        if broker.in_controlled_shutdown and not self.heartbeats.may_shut_down(
            broker_id, state.image
        ):
            return ControllerResult(response)
        return self._leave(broker, request, shut_down=True)

    def _leave(
        self, broker: BrokerRegistration, request: p63.BrokerHeartbeatRequest, *, shut_down: bool
    ) -> ControllerResult[p63.BrokerHeartbeatResponse]:
        """Fence a broker that asked for it. The next start of one that may stop need not wait for
        its session's end.
        """
        response = p63.BrokerHeartbeatResponse(
            is_caught_up=request.current_metadata_offset >= broker.broker_epoch,
            is_fenced=True,
            should_shut_down=shut_down,
        )
        step = self._fencing_step(broker)
        if step.is_last:
            if shut_down:
                self.heartbeats.let_go(broker.broker_id)
            return ControllerResult(response, step.records)
        again = partial(self.heartbeat, request)
        return ControllerResult(response, step.records, resume=again, leaving=broker.broker_id)

    def _fencing_step(self, broker: BrokerRegistration) -> Step:
        """Move what a broker leads; with the last of it, fence the broker."""
        step = leaving_step(self._state, broker.broker_id, is_clean=True)
        if step.is_last:
            step.records.append(self._change(broker, fenced=FENCE))
        return step

    def fence_expired(self, now_ms: float) -> list[VersionedRecord]:
        """Fence one broker whose session is over, or begin to; none when there is no such broker.

        One at a time, since moving one broker's leaders must not elect another dead one blindly:
        the next call sees the first one fenced, or on its way out.
        """
        expired = self.heartbeats.expired(self._state.image, now_ms)
        leaving = self._state.leaving
        for broker_id in [each for each, owner in leaving.items() if owner is SESSION_OVER]:
            if broker_id not in expired:
                self.stay(broker_id)  # it sent a heartbeat again, or is gone by now
        if not expired:
            return []
        broker_id = expired[0]
        broker = self._state.broker(broker_id)
        assert broker is not None
        step = self._fencing_step(broker)
        if step.is_last:
            leaving.pop(broker_id, None)
        else:
            leaving.setdefault(broker_id, SESSION_OVER)
        return step.records

    def stay(self, broker_id: int) -> None:
        """A broker that was on its way out stays: partitions it led may need it again."""
        self._state.leaving.pop(broker_id, None)
        self.must_sweep |= self._state.is_active(broker_id)

    def unregister_broker(
        self, request: p64.UnregisterBrokerRequest, asked: Asked
    ) -> ControllerResult[p64.UnregisterBrokerResponse]:
        """Remove a registration for good; its partitions' replicas stay assigned.

        The broker leaves the eligible leaders, too: what it has does not count any more.
        """
        broker = self._state.broker(request.broker_id)
        if broker is None:
            return ControllerResult(
                p64.UnregisterBrokerResponse(
                    error_code=ErrorCode.BROKER_ID_NOT_REGISTERED,
                    error_message=f"broker {request.broker_id} is not registered",
                )
            )
        response = p64.UnregisterBrokerResponse(error_message=None)
        step = leaving_step(self._state, broker.broker_id, is_clean=False)
        if not step.is_last:
            again = partial(self.unregister_broker, request)
            return ControllerResult(response, step.records, resume=again, leaving=broker.broker_id)
        record = kinds.UnregisterBrokerRecord(
            broker_id=broker.broker_id, broker_epoch=broker.broker_epoch
        )
        step.records.append((record, 0))
        return ControllerResult(response, step.records)

    def _unfence(self, broker: BrokerRegistration) -> list[VersionedRecord]:
        step = return_step(self._state, broker.broker_id)
        if not step.is_last:
            self.must_sweep = True  # the others get their leaders from the sweep
        return [self._change(broker, fenced=UNFENCE), *step.records]

    def _directory_records(
        self, broker: BrokerRegistration, request: p63.BrokerHeartbeatRequest
    ) -> list[VersionedRecord]:
        """What failed and cordoned directories in a heartbeat change; the next step, if more."""
        version = broker_registration_change_record_version(self._state.metadata_level)
        failed = set(request.offline_log_dirs).intersection(broker.directories)
        remaining = [each for each in broker.directories if each not in failed]
        if failed and remaining and version >= 2:
            step = lost_directories_step(self._state, broker.broker_id, failed)
            if step.is_last:
                record = self._blank_change(broker)
                record.log_dirs = remaining
                step.records.append((record, version))
            return step.records
        cordoned = request.cordoned_log_dirs
        if cordoned is not None and version >= 3:
            wanted = tuple(sorted(set(cordoned)))
            if wanted != broker.cordoned_directories:
                record = self._blank_change(broker)
                record.cordoned_log_dirs = list(wanted)
                return [(record, version)]
        return []

    def _change(
        self, broker: BrokerRegistration, *, fenced: int = 0, shutdown: bool = False
    ) -> VersionedRecord:
        record = self._blank_change(broker)
        record.fenced = fenced
        if shutdown:
            record.in_controlled_shutdown = IN_CONTROLLED_SHUTDOWN
        return record, 1 if shutdown else 0

    def _blank_change(self, broker: BrokerRegistration) -> kinds.BrokerRegistrationChangeRecord:
        return kinds.BrokerRegistrationChangeRecord(
            broker_id=broker.broker_id, broker_epoch=broker.broker_epoch
        )
