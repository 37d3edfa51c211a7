"""Broker registration, heartbeats, fencing, controlled shutdown and removal (KIP-631, KIP-858,
KIP-966).

Owns: the life of a broker as the controller sees it. Transitions of a registration:

    absent -> fenced            registration
    fenced -> unfenced          a heartbeat of a broker that has read the log up to its registration
    unfenced -> shutting down   a heartbeat that wants to shut down while the broker leads something
    unfenced, shutting down -> fenced    session over, wish to be fenced, or leave given to stop
    any -> fenced (new epoch)   registration of a new incarnation
    any -> absent               UnregisterBroker

Must not: keep time. Invariant: a broker that is fenced, or shutting down, leads nothing.
"""

from __future__ import annotations

from moldau.metadata.controller.core.broker_changes import (
    leads_anything,
    records_for_leaving,
    records_for_lost_directories,
    records_for_return,
)
from moldau.metadata.controller.core.heartbeats import BrokerHeartbeats
from moldau.metadata.controller.core.producer_id_control import check_broker_epoch
from moldau.metadata.controller.core.registration_checks import (
    check_registration,
    registration_record,
)
from moldau.metadata.controller.core.result import ControllerResult, Refusal, VersionedRecord
from moldau.metadata.controller.core.settings import ControllerSettings
from moldau.metadata.controller.core.state import ControllerState
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

FENCE = 1
UNFENCE = -1
IN_CONTROLLED_SHUTDOWN = 1


class ClusterControl:
    """Brokers' lives; holds the heartbeats, which are not in the log."""

    __slots__ = ("_settings", "_state", "heartbeats")

    def __init__(self, state: ControllerState, settings: ControllerSettings) -> None:
        self._state = state
        self._settings = settings
        self.heartbeats = BrokerHeartbeats(settings.broker_session_timeout_ms)

    def register_broker(
        self, request: BrokerRegistrationRequest, *, log_end_offset: int, now_ms: float
    ) -> ControllerResult[BrokerRegistrationResponse]:
        """Register an incarnation; its broker epoch is the offset the next record will get."""
        state = self._state
        existing = state.broker(request.broker_id)
        is_new_incarnation = existing is None or existing.incarnation_id != request.incarnation_id
        try:
            check_registration(state, self._settings, request)
            if existing is not None and is_new_incarnation:
                self._check_not_alive(existing, now_ms)
        except Refusal as refusal:
            return ControllerResult(BrokerRegistrationResponse(error_code=refusal.error))
        records: list[VersionedRecord] = []
        if existing is not None and is_new_incarnation:
            is_clean = request.previous_broker_epoch == existing.broker_epoch
            records = records_for_leaving(
                state, self._settings, request.broker_id, is_clean=is_clean
            )
            self.heartbeats.forget(request.broker_id)
        version = register_broker_record_version(state.metadata_level)
        keeps = None if is_new_incarnation else existing
        broker_epoch = log_end_offset if keeps is None else keeps.broker_epoch
        record = registration_record(request, version, broker_epoch=broker_epoch, keeps=keeps)
        records.append((record, version))
        self.heartbeats.touch(request.broker_id, broker_epoch, now_ms)
        return ControllerResult(BrokerRegistrationResponse(broker_epoch=broker_epoch), records)

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
        records = self._directory_records(broker, request)
        if broker.fenced:
            if request.want_shut_down:
                response.should_shut_down = True
            elif not request.want_fence and is_caught_up:
                response.is_fenced = False
                records += self._unfence(broker)
        elif request.want_fence:
            response.is_fenced = True
            response.should_shut_down = request.want_shut_down
            records += self.fence(broker)
        elif request.want_shut_down:
            records += self._advance_shutdown(broker, response, log_end_offset)
        return ControllerResult(response, records)

    def _advance_shutdown(
        self, broker: BrokerRegistration, response: BrokerHeartbeatResponse, log_end_offset: int
    ) -> list[VersionedRecord]:
        """First move leadership away, then, when everybody knows, give leave to stop."""
        state = self._state
        broker_id = broker.broker_id
        if leads_anything(state, broker_id):
            records = [] if broker.in_controlled_shutdown else [self._change(broker, shutdown=True)]
            records += records_for_leaving(state, self._settings, broker_id, is_clean=True)
            self.heartbeats.begin_controlled_shutdown(broker_id, log_end_offset + len(records) - 1)
            return records
        if broker.in_controlled_shutdown and not self.heartbeats.may_shut_down(
            broker_id, state.image
        ):
            return []
        response.should_shut_down = True
        response.is_fenced = True
        return self.fence(broker)

    def fence(self, broker: BrokerRegistration) -> list[VersionedRecord]:
        """The records that fence a broker and move what it leads."""
        records = records_for_leaving(self._state, self._settings, broker.broker_id, is_clean=True)
        records.append(self._change(broker, fenced=FENCE))
        return records

    def fence_expired(self, now_ms: float) -> list[VersionedRecord]:
        """Fence one broker whose session is over; none when there is no such broker.

        One at a time, since moving one broker's leaders must not elect another dead one blindly:
        the next call sees the first one fenced.
        """
        expired = self.heartbeats.expired(self._state.image, now_ms)
        if not expired:
            return []
        broker = self._state.broker(expired[0])
        assert broker is not None
        return self.fence(broker)

    def unregister_broker(
        self, request: UnregisterBrokerRequest
    ) -> ControllerResult[UnregisterBrokerResponse]:
        """Remove a registration for good; its partitions' replicas stay assigned."""
        broker = self._state.broker(request.broker_id)
        if broker is None:
            return ControllerResult(
                UnregisterBrokerResponse(
                    error_code=ErrorCode.BROKER_ID_NOT_REGISTERED,
                    error_message=f"broker {request.broker_id} is not registered",
                )
            )
        records = records_for_leaving(self._state, self._settings, broker.broker_id, is_clean=True)
        record = UnregisterBrokerRecord(
            broker_id=broker.broker_id, broker_epoch=broker.broker_epoch
        )
        records.append((record, 0))
        self.heartbeats.forget(broker.broker_id)
        return ControllerResult(UnregisterBrokerResponse(error_message=None), records)

    def _unfence(self, broker: BrokerRegistration) -> list[VersionedRecord]:
        records = [self._change(broker, fenced=UNFENCE)]
        records += records_for_return(self._state, self._settings, broker.broker_id)
        return records

    def _directory_records(
        self, broker: BrokerRegistration, request: BrokerHeartbeatRequest
    ) -> list[VersionedRecord]:
        """What failed and cordoned directories in a heartbeat change."""
        records: list[VersionedRecord] = []
        failed = set(request.offline_log_dirs).intersection(broker.directories)
        if failed:
            remaining = [each for each in broker.directories if each not in failed]
            record = self._blank_change(broker)
            record.log_dirs = remaining
            if remaining:
                version = broker_registration_change_record_version(self._state.metadata_level)
                if version >= 2:
                    records.append((record, version))
                    records += records_for_lost_directories(
                        self._state, self._settings, broker.broker_id, failed
                    )
        cordoned = request.cordoned_log_dirs
        version = broker_registration_change_record_version(self._state.metadata_level)
        if cordoned is not None and version >= 3:
            wanted = tuple(sorted(set(cordoned)))
            if wanted != broker.cordoned_directories:
                record = self._blank_change(broker)
                record.cordoned_log_dirs = list(wanted)
                records.append((record, version))
        return records

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
