"""Broker registration, heartbeats, fencing, controlled shutdown and removal (KIP-631, KIP-858,
KIP-966).

Owns: the life of a broker as the controller sees it. Transitions of a registration:

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

Must not: keep time. Invariant: a broker that is fenced, or shutting down, leads nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final
from uuid import UUID

from moldau.controller.core.broker_changes import (
    Step,
    leaving_step,
    lost_directories_step,
    return_step,
    unregistered_directories_step,
)
from moldau.controller.core.heartbeats import BrokerHeartbeats
from moldau.controller.core.producer_id_control import check_broker_epoch
from moldau.controller.core.registration_checks import (
    check_registration,
    registration_record,
)
from moldau.controller.core.result import (
    ControllerResult,
    Refusal,
    Resume,
    VersionedRecord,
)
from moldau.controller.core.settings import ControllerSettings
from moldau.controller.core.state import ControllerState
from moldau.metadata.features import (
    broker_registration_change_record_version,
    register_broker_record_version,
)
from moldau.metadata.image import BrokerRegistration
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p62_broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from moldau.protocol.messages.p63_broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)
from moldau.protocol.messages.p64_unregister_broker import (
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from moldau.protocol.metadata_records import (
    BrokerRegistrationChangeRecord,
    UnregisterBrokerRecord,
)
from moldau.protocol.schema import Message

FENCE = 1
UNFENCE = -1
IN_CONTROLLED_SHUTDOWN = 1

SESSION_OVER: Final = object()
"""Who makes a broker leave that fell silent."""


class ClusterControl:
    """Brokers' lives; holds the heartbeats, which are not in the log."""

    __slots__ = ("_settings", "_state", "heartbeats", "must_sweep")

    def __init__(self, state: ControllerState, settings: ControllerSettings) -> None:
        self._state = state
        self._settings = settings
        self.heartbeats = BrokerHeartbeats(settings.broker_session_timeout_ms)
        self.must_sweep = False

    def register_broker(
        self, request: BrokerRegistrationRequest, *, log_end_offset: int, now_ms: float
    ) -> ControllerResult[BrokerRegistrationResponse]:
        """Register an incarnation; its broker epoch is the offset the next record will get."""
        state, broker_id = self._state, request.broker_id
        existing = state.broker(broker_id)
        is_new_incarnation = existing is None or existing.incarnation_id != request.incarnation_id
        try:
            check_registration(state, self._settings, request)
            if existing is not None and is_new_incarnation:
                self._check_not_alive(existing, now_ms)
        except Refusal as refusal:
            return ControllerResult(BrokerRegistrationResponse(error_code=refusal.error))
        version = register_broker_record_version(state.metadata_level)
        keeps = None if is_new_incarnation else existing
        broker_epoch = log_end_offset if keeps is None else keeps.broker_epoch
        record = registration_record(request, version, broker_epoch=broker_epoch, keeps=keeps)
        directories = frozenset(record.log_dirs)
        if keeps is None:
            is_clean = self._is_clean(existing, request, directories)
            step = leaving_step(
                state, self._settings, broker_id, is_clean=is_clean, directories=directories
            )
        else:
            step = unregistered_directories_step(state, self._settings, broker_id, directories)
        if not step.is_last:
            return ControllerResult(
                BrokerRegistrationResponse(),
                step.records,
                resume=self._again(self.register_broker, request),
                leaving=broker_id if keeps is None else None,
            )
        if keeps is None:
            self.heartbeats.forget(broker_id)
        elif state.is_active(broker_id) and not directories.issubset(keeps.directories):
            self.must_sweep = True  # what lies in a directory that is back may lead again
        step.records.append((record, version))
        self.heartbeats.touch(broker_id, broker_epoch, now_ms)
        return ControllerResult(BrokerRegistrationResponse(broker_epoch=broker_epoch), step.records)

    def _is_clean(
        self,
        existing: BrokerRegistration | None,
        request: BrokerRegistrationRequest,
        directories: Collection[UUID],
    ) -> bool:
        """Whether the broker has all that it had when it stopped, as far as that can be known.

        Without KIP-966 nothing is known of how it stopped: Kafka believes it then. What it says of
        its stop counts for the directories that it still has: one that is gone may have held
        replicas whose directory the controller had not been told yet.
        """
        if not self._state.eligible_leader_replicas_enabled:
            return True
        return (
            existing is not None
            and request.previous_broker_epoch == existing.broker_epoch
            and set(existing.directories).issubset(directories)
        )

    @staticmethod
    def _again(decide: Callable[..., ControllerResult[Any]], request: Message) -> Resume:
        """The next step is the same decision, on the state that this step made."""
        return lambda log_end_offset, now_ms: decide(
            request, log_end_offset=log_end_offset, now_ms=now_ms
        )

    def _check_not_alive(self, existing: BrokerRegistration, now_ms: float) -> None:
        """A second process with a live broker's id is refused until the first one's session ends.

        The broker in the controller's own process is the exception: when that process asks to
        register a new incarnation, the old one is known to be dead.
        """
        if existing.broker_id == self._settings.node_id:
            return
        alive = self.heartbeats.has_valid_session(existing.broker_id, now_ms)
        if alive and not existing.in_controlled_shutdown:
            raise Refusal(
                ErrorCode.DUPLICATE_BROKER_REGISTRATION,
                f"broker {existing.broker_id} is alive under another incarnation",
            )

    def heartbeat(
        self, request: BrokerHeartbeatRequest, *, log_end_offset: int, now_ms: float
    ) -> ControllerResult[BrokerHeartbeatResponse]:
        """Take a heartbeat, and the transition it asks for."""
        state = self._state
        error = check_broker_epoch(state, request.broker_id, request.broker_epoch)
        if error is not ErrorCode.NONE:
            return ControllerResult(BrokerHeartbeatResponse(error_code=error))
        broker = state.broker(request.broker_id)
        assert broker is not None
        self.heartbeats.touch(
            broker.broker_id, broker.broker_epoch, now_ms, request.current_metadata_offset
        )
        is_caught_up = request.current_metadata_offset >= broker.broker_epoch
        response = BrokerHeartbeatResponse(is_caught_up=is_caught_up, is_fenced=broker.fenced)
        directories = self._directory_step(broker, request)
        if directories.records:
            # What the broker wants besides is decided once its directories are right.
            again = self._again(self.heartbeat, request)
            return ControllerResult(response, directories.records, resume=again)
        if broker.fenced:
            if request.want_shut_down:
                response.should_shut_down = True
            elif not request.want_fence and is_caught_up and not broker.in_controlled_shutdown:
                # An incarnation that began to shut down does not come back; the next one does.
                response.is_fenced = False
                return ControllerResult(response, self._unfence(broker))
            return ControllerResult(response)
        if broker.in_controlled_shutdown:
            if not request.want_shut_down and not request.want_fence:
                return ControllerResult(response)
            return self._advance_shutdown(broker, request, log_end_offset)
        if request.want_fence:
            return self._leave(broker, request, shut_down=request.want_shut_down)
        if request.want_shut_down:
            return self._advance_shutdown(broker, request, log_end_offset)
        return ControllerResult(response)

    def _advance_shutdown(
        self, broker: BrokerRegistration, request: BrokerHeartbeatRequest, log_end_offset: int
    ) -> ControllerResult[BrokerHeartbeatResponse]:
        """First move leadership away, then, when everybody knows, give leave to stop."""
        state, broker_id = self._state, broker.broker_id
        response = BrokerHeartbeatResponse(
            is_caught_up=request.current_metadata_offset >= broker.broker_epoch, is_fenced=False
        )
        is_half_way = state.leaving.get(broker_id) is request
        if state.index.leads_anything(broker_id) or is_half_way:
            step = leaving_step(state, self._settings, broker_id, is_clean=True)
            result = ControllerResult(response, step.records)
            if not step.is_last:
                result.resume = self._again(self.heartbeat, request)
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
        self, broker: BrokerRegistration, request: BrokerHeartbeatRequest, *, shut_down: bool
    ) -> ControllerResult[BrokerHeartbeatResponse]:
        """Fence a broker that asked for it."""
        response = BrokerHeartbeatResponse(
            is_caught_up=request.current_metadata_offset >= broker.broker_epoch,
            is_fenced=True,
            should_shut_down=shut_down,
        )
        step = self._fencing_step(broker)
        if step.is_last:
            return ControllerResult(response, step.records)
        again = self._again(self.heartbeat, request)
        return ControllerResult(response, step.records, resume=again, leaving=broker.broker_id)

    def _fencing_step(self, broker: BrokerRegistration) -> Step:
        """Move what a broker leads; with the last of it, fence the broker."""
        step = leaving_step(self._state, self._settings, broker.broker_id, is_clean=True)
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
                self.stay(broker_id)  # it was heard of again, or is gone by now
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
        """A broker that was on its way out stays: what it led already may need it again."""
        self._state.leaving.pop(broker_id, None)
        self.must_sweep |= self._state.is_active(broker_id)

    def unregister_broker(
        self, request: UnregisterBrokerRequest, *, log_end_offset: int, now_ms: float
    ) -> ControllerResult[UnregisterBrokerResponse]:
        """Remove a registration for good; its partitions' replicas stay assigned.

        What the broker has is not counted on any more: it leaves the eligible leaders, too.
        """
        broker = self._state.broker(request.broker_id)
        if broker is None:
            return ControllerResult(
                UnregisterBrokerResponse(
                    error_code=ErrorCode.BROKER_ID_NOT_REGISTERED,
                    error_message=f"broker {request.broker_id} is not registered",
                )
            )
        response = UnregisterBrokerResponse(error_message=None)
        step = leaving_step(self._state, self._settings, broker.broker_id, is_clean=False)
        if not step.is_last:
            again = self._again(self.unregister_broker, request)
            return ControllerResult(response, step.records, resume=again, leaving=broker.broker_id)
        record = UnregisterBrokerRecord(
            broker_id=broker.broker_id, broker_epoch=broker.broker_epoch
        )
        step.records.append((record, 0))
        self.heartbeats.forget(broker.broker_id)
        return ControllerResult(response, step.records)

    def _unfence(self, broker: BrokerRegistration) -> list[VersionedRecord]:
        step = return_step(self._state, self._settings, broker.broker_id)
        if not step.is_last:
            self.must_sweep = True  # the others get their leaders from the sweep
        return [self._change(broker, fenced=UNFENCE), *step.records]

    def _directory_step(self, broker: BrokerRegistration, request: BrokerHeartbeatRequest) -> Step:
        """What failed and cordoned directories in a heartbeat change."""
        version = broker_registration_change_record_version(self._state.metadata_level)
        failed = set(request.offline_log_dirs).intersection(broker.directories)
        remaining = [each for each in broker.directories if each not in failed]
        if failed and remaining and version >= 2:
            step = lost_directories_step(self._state, self._settings, broker.broker_id, failed)
            if step.is_last:
                record = self._blank_change(broker)
                record.log_dirs = remaining
                step.records.append((record, version))
            return step
        cordoned = request.cordoned_log_dirs
        if cordoned is not None and version >= 3:
            wanted = tuple(sorted(set(cordoned)))
            if wanted != broker.cordoned_directories:
                record = self._blank_change(broker)
                record.cordoned_log_dirs = list(wanted)
                return Step([(record, version)], is_last=True)
        return Step([], is_last=True)

    def _change(
        self, broker: BrokerRegistration, *, fenced: int = 0, shutdown: bool = False
    ) -> VersionedRecord:
        record = self._blank_change(broker)
        record.fenced = fenced
        if shutdown:
            record.in_controlled_shutdown = IN_CONTROLLED_SHUTDOWN
        return record, 1 if shutdown else 0

    def _blank_change(self, broker: BrokerRegistration) -> BrokerRegistrationChangeRecord:
        return BrokerRegistrationChangeRecord(
            broker_id=broker.broker_id, broker_epoch=broker.broker_epoch
        )
