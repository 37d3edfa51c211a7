"""The controller as a state machine: committed batches and requests in, records and responses out.

Owns: the role (standby or active), the working state, and which image belongs to which appended
batch. Transitions:

    STANDBY -> ACTIVE    this node leads the quorum, and everything before its epoch was replayed
    ACTIVE -> STANDBY    it leads no more: what was appended and not committed is forgotten

A request is answered from the working state, which contains what was appended before it, committed
or not; its response may leave only when everything up to its own records is committed (the driver
waits). Since images are immutable, forgetting is going back to the last committed one.

Must not: append, wait or read clocks. Invariant: the working state is the committed image plus the
appended batches, in log order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from types import GeneratorType
from typing import Any, Final

from moldau.controller.core.access_control import create_acls, delete_acls
from moldau.controller.core.client_quota_control import alter_client_quotas
from moldau.controller.core.cluster_control import (
    ClusterControl,
    allocate_producer_ids,
    register_controller,
)
from moldau.controller.core.configuration_control import (
    incremental_alter_configs,
    legacy_alter_configs,
)
from moldau.controller.core.delegation_token_control import (
    Requester,
    create_delegation_token,
    expire_delegation_token,
    expired_tokens,
    renew_delegation_token,
)
from moldau.controller.core.elections import PeriodicTasks, elect_leaders
from moldau.controller.core.feature_control import eligible_leader_replicas_records, update_features
from moldau.controller.core.reassignments import (
    alter_partition_reassignments,
    list_partition_reassignments,
)
from moldau.controller.core.replica_reports import alter_partition, assign_replicas_to_directories
from moldau.controller.core.result import (
    ControllerResult,
    TakesPermits,
    VersionedRecord,
    unlimited,
)
from moldau.controller.core.scram_control import alter_user_scram_credentials, secret_records
from moldau.controller.core.state import ControllerSettings, ControllerState, Random
from moldau.controller.core.topic_control import create_partitions, create_topics, delete_topics
from moldau.metadata.features import (
    ELIGIBLE_LEADER_REPLICAS_VERSION,
    METADATA_VERSION,
    TRANSACTIONS_LEVEL,
)
from moldau.metadata.image import MetadataDelta, MetadataImage, Provenance, TransactionFilter
from moldau.metadata.image.security import EntryChanges
from moldau.metadata.steps import Steps
from moldau.protocol import metadata_records as kinds
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.metadata_records.frame import encode_record
from moldau.protocol.schema import AnyRequest, Message

BOOTSTRAP_TRANSACTION: Final = "Bootstrap records"


class Role(Enum):
    """Whether this controller decides."""

    STANDBY = "standby"
    ACTIVE = "active"


_TRANSACTION_MARKS: Final = (
    kinds.BeginTransactionRecord,
    kinds.EndTransactionRecord,
    kinds.AbortTransactionRecord,
)


@dataclass(frozen=True, slots=True)
class Change:
    """A batch before it is appended: its records, their bytes, and the working image with them."""

    records: Sequence[VersionedRecord]
    values: Sequence[bytes]
    delta: MetadataDelta
    image: MetadataImage


_Decision = ControllerResult[Message] | Steps[ControllerResult[Message]]

HANDLERS: Final[dict[int, Callable[[ControllerState, Any], _Decision]]] = {
    ApiKey.INCREMENTAL_ALTER_CONFIGS: incremental_alter_configs,
    ApiKey.ALTER_CONFIGS: legacy_alter_configs,
    ApiKey.UPDATE_FEATURES: update_features,
    ApiKey.ALLOCATE_PRODUCER_IDS: allocate_producer_ids,
    ApiKey.CONTROLLER_REGISTRATION: register_controller,
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: assign_replicas_to_directories,
    ApiKey.ALTER_PARTITION: alter_partition,
    ApiKey.ELECT_LEADERS: elect_leaders,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: alter_partition_reassignments,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: list_partition_reassignments,
    ApiKey.CREATE_ACLS: create_acls,
    ApiKey.DELETE_ACLS: delete_acls,
    ApiKey.ALTER_CLIENT_QUOTAS: alter_client_quotas,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: alter_user_scram_credentials,
}
"""What decides each request that depends on neither the time nor the log's end."""

LIMITED_HANDLERS: Final[dict[int, Callable[[ControllerState, Any, TakesPermits], _Decision]]] = {
    ApiKey.CREATE_TOPICS: create_topics,
    ApiKey.DELETE_TOPICS: delete_topics,
    ApiKey.CREATE_PARTITIONS: create_partitions,
}
"""As `HANDLERS`, with the sender's quota of partitions that it creates and deletes (KIP-599)."""

TOKEN_HANDLERS: Final[dict[int, Callable[[ControllerState, Any, Requester], _Decision]]] = {
    ApiKey.CREATE_DELEGATION_TOKEN: create_delegation_token,
    ApiKey.RENEW_DELEGATION_TOKEN: renew_delegation_token,
    ApiKey.EXPIRE_DELEGATION_TOKEN: expire_delegation_token,
}
"""As `HANDLERS`, with who asks and the time of day (KIP-48)."""


class ControllerCore:
    """One controller's state and decisions."""

    def __init__(
        self,
        settings: ControllerSettings,
        random: Random,
        *,
        on_entries_changed: Callable[[EntryChanges], None] = lambda changes: None,
    ) -> None:
        self.role = Role.STANDBY
        self.leader_epoch = -1
        self.state = ControllerState(settings, random)
        self.committed_image = MetadataImage.EMPTY
        self.cluster_control = ClusterControl(self.state)
        self._tasks = PeriodicTasks(self.state)
        self._transactions = TransactionFilter()
        self._on_entries_changed = on_entries_changed
        self._appended: deque[tuple[int, MetadataImage, EntryChanges]] = deque()
        self._broker_handlers: dict[int, Callable[..., ControllerResult[Message]]] = {
            ApiKey.BROKER_REGISTRATION: self.cluster_control.register_broker,
            ApiKey.BROKER_HEARTBEAT: self.cluster_control.heartbeat,
            ApiKey.UNREGISTER_BROKER: self.cluster_control.unregister_broker,
        }

    def load_snapshot(self, records: Sequence[Message], provenance: Provenance) -> None:
        assert self.role is Role.STANDBY, "an active controller is never behind the log"
        delta = MetadataDelta(MetadataImage.EMPTY)
        for record in records:
            delta.replay(record)
        self._transactions.reset()
        before, image = self.committed_image, delta.apply(provenance)
        self.committed_image = image
        self.state.reset(image)
        gone: EntryChanges = dict.fromkeys(before.acls.entries_by_id)
        self._on_entries_changed({**gone, **image.acls.entries_by_id})

    def on_committed(self, records: Sequence[Message], provenance: Provenance) -> None:
        """A batch is committed; control batches come with no records."""
        last_offset = provenance.last_contained_offset
        if self.role is Role.ACTIVE:
            if self._appended and self._appended[0][0] <= last_offset:
                appended_offset, image, changes = self._appended.popleft()
                assert appended_offset == last_offset, "batches are committed as they were appended"
                self.committed_image = replace(image, provenance=provenance)
                self._on_entries_changed(changes)
            else:
                self.committed_image = replace(self.committed_image, provenance=provenance)
            return
        changes = self.state.replay(self._transactions.feed(records), provenance)
        self.committed_image = self.state.image
        self._on_entries_changed(changes)

    def prepare(self, records: Sequence[VersionedRecord]) -> Steps[Change]:
        """What it takes to append `records` as one batch; the working state stays as it is."""
        delta = MetadataDelta(self.state.image)
        values: list[bytes] = []
        for record, version in records:
            values.append(encode_record(record, version))
            # A transaction lies within one batch here: all between its marks counts.
            if not isinstance(record, _TRANSACTION_MARKS):
                delta.replay(record)
            yield
        image = yield from delta.apply_in_steps(self.state.image.provenance)
        yield
        return Change(records, values, delta, image)

    def on_appended(self, change: Change, last_offset: int, now_ms: int) -> Steps[None]:
        """A prepared batch is in the log: the working state follows, its indexes in steps."""
        assert self.role is Role.ACTIVE
        assert self.state.image is change.delta.image, "nothing was appended since it was prepared"
        self._transactions.feed(record for record, _version in change.records)
        assert not self._transactions.is_open, "a transaction lies within one batch here"
        provenance = Provenance(last_offset, self.leader_epoch, now_ms)
        image = replace(change.image, provenance=provenance)
        self._appended.append((last_offset, image, change.delta.acls_delta.changes))
        yield from self.state.follow(change.delta, image)

    def activate(
        self,
        leader_epoch: int,
        bootstrap_records: Sequence[VersionedRecord],
        *,
        monotonic_ms: float,
    ) -> list[VersionedRecord]:
        """Become active; returns what has to be appended first.

        That is the abort of a transaction that a deposed leader left open; in a new cluster, the
        feature levels the directory was formatted with; and the secret behind answers about unknown
        users, where there are users but no secret yet.
        """
        assert self.role is Role.STANDBY
        self.role = Role.ACTIVE
        self.leader_epoch = leader_epoch
        self.cluster_control.heartbeats.reset(self.state.image, monotonic_ms)
        self._tasks.start(monotonic_ms)
        records: list[VersionedRecord] = []
        if self._transactions.is_open:
            records.append((kinds.AbortTransactionRecord(reason="the leader was replaced"), 0))
        if METADATA_VERSION not in self.state.image.features.finalized_levels:
            records += self._bootstrap(bootstrap_records)
        elif self.state.image.scram.credentials or self.state.image.delegation_tokens.tokens_by_id:
            records += secret_records(self.state)
        return records

    def _bootstrap(self, given: Sequence[VersionedRecord]) -> list[VersionedRecord]:
        levels = {
            record.name: record.feature_level
            for record, _version in given
            if isinstance(record, kinds.FeatureLevelRecord)
        }
        assert METADATA_VERSION in levels, "the formatted feature levels name metadata.version"
        records = list(given)
        if any(isinstance(record, kinds.UserScramCredentialRecord) for record, _version in given):
            records += secret_records(self.state)
        if levels.get(ELIGIBLE_LEADER_REPLICAS_VERSION, 0):
            records += eligible_leader_replicas_records(self.state)
        if levels[METADATA_VERSION] >= TRANSACTIONS_LEVEL:
            begin = kinds.BeginTransactionRecord(name=BOOTSTRAP_TRANSACTION)
            records = [(begin, 0), *records, (kinds.EndTransactionRecord(), 0)]
        return records

    def deactivate(self) -> None:
        """Lead no more: forget what was appended and may never be committed."""
        assert self.role is Role.ACTIVE
        self.role = Role.STANDBY
        self.leader_epoch = -1
        self._appended.clear()
        self._tasks.stop()
        self.state.reset(self.committed_image)

    def handle(
        self,
        request: AnyRequest,
        *,
        log_end_offset: int,
        now_ms: float,
        takes_permits: TakesPermits = unlimited,
        requester: Requester | None = None,
    ) -> Steps[ControllerResult[Message]]:
        """Decide one request.

        Args:
            log_end_offset: the offset that the next record will get.
            now_ms: monotonic milliseconds, for sessions.
            takes_permits: the sender's quota of partitions created and deleted.
            requester: needed for requests about delegation tokens.
        """
        assert self.role is Role.ACTIVE
        broker_handler = self._broker_handlers.get(request.API_KEY)
        if broker_handler is not None:
            result = broker_handler(request, log_end_offset=log_end_offset, now_ms=now_ms)
            return self._note_steps(request, result)
        limited = LIMITED_HANDLERS.get(request.API_KEY)
        if limited is not None:
            decided: _Decision = limited(self.state, request, takes_permits)
        elif request.API_KEY in TOKEN_HANDLERS:
            assert requester is not None, "tokens have owners"
            decided = TOKEN_HANDLERS[request.API_KEY](self.state, request, requester)
        else:
            decided = HANDLERS[request.API_KEY](self.state, request)
        if isinstance(decided, GeneratorType):
            result = yield from decided
            result.may_wait = True
        else:
            assert isinstance(decided, ControllerResult)
            result = decided
        return self._note_steps(request, result)

    def resume(
        self,
        request: AnyRequest,
        result: ControllerResult[Message],
        *,
        log_end_offset: int,
        now_ms: float,
    ) -> ControllerResult[Message]:
        """The next step of a request, after the records of `result` were appended."""
        assert self.role is Role.ACTIVE
        assert result.resume is not None
        return self._note_steps(request, result.resume(log_end_offset, now_ms))

    def abandon(self, request: AnyRequest) -> None:
        """A request's steps end early, because the log did not take one."""
        leaving = self.state.leaving
        for broker_id in [each for each, owner in leaving.items() if owner is request]:
            self.cluster_control.stay(broker_id)
        self._sweep_if_needed()

    def _note_steps(
        self, request: AnyRequest, result: ControllerResult[Message]
    ) -> ControllerResult[Message]:
        if result.resume is None:
            self.abandon(request)
        elif result.leaving is not None:
            self.state.leaving[result.leaving] = request
        return result

    def _sweep_if_needed(self) -> None:
        if self.cluster_control.must_sweep:
            self.cluster_control.must_sweep = False
            self._tasks.sweep()

    def fence_expired(self, now_ms: float) -> list[VersionedRecord]:
        records = self.cluster_control.fence_expired(now_ms)
        self._sweep_if_needed()
        return records

    def next_session_expiry_ms(self) -> float | None:
        """When `fence_expired` may have something to do, in monotonic milliseconds."""
        return self.cluster_control.heartbeats.next_expiry_ms(self.state.image)

    def next_task_ms(self) -> float | None:
        """When `run_due_task` may have something to do, in monotonic milliseconds."""
        return self._tasks.next_due_ms()

    def run_due_task(self, now_ms: float) -> list[VersionedRecord]:
        """Records of the elections the controller holds by itself; empty when none is due."""
        assert self.role is Role.ACTIVE
        return self._tasks.run_due(now_ms)

    def task_refused(self) -> None:
        """The log did not take the records of `run_due_task`: look for all that is to be done."""
        self._tasks.sweep_all()

    def expired_tokens(self, now_ms: int) -> list[VersionedRecord]:
        """Records that remove delegation tokens past their end. Milliseconds since 1970."""
        assert self.role is Role.ACTIVE
        return expired_tokens(self.state, now_ms)

    @property
    def may_snapshot(self) -> bool:
        """Whether the committed image is whole: not in the middle of a transaction."""
        return not self._transactions.is_open
