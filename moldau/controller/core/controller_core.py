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
from dataclasses import replace
from enum import Enum
from importlib import import_module
from types import GeneratorType
from typing import Any, Final, NamedTuple, TypeAlias

from moldau.controller.core.cluster_control import ClusterControl
from moldau.controller.core.delegation_token_control import expired_tokens
from moldau.controller.core.elections import PeriodicTasks
from moldau.controller.core.feature_control import eligible_leader_replicas_records
from moldau.controller.core.result import Asked, ControllerResult, VersionedRecord
from moldau.controller.core.scram_control import secret_records
from moldau.controller.core.state import ControllerSettings, ControllerState, Random
from moldau.metadata.features import (
    ELIGIBLE_LEADER_REPLICAS_VERSION,
    METADATA_VERSION,
    TRANSACTIONS_LEVEL,
)
from moldau.metadata.image import MetadataDelta, MetadataImage, Provenance, TransactionFilter
from moldau.metadata.image.security import EntryChanges
from moldau.metadata.steps import Steps
from moldau.protocol import metadata_records as kinds
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


class Change(NamedTuple):
    """A batch before it is appended: its records, their bytes, and the working image with them."""

    records: Sequence[VersionedRecord]
    values: Sequence[bytes]
    delta: MetadataDelta
    image: MetadataImage


_Decision: TypeAlias = ControllerResult[Message] | Steps[ControllerResult[Message]]
Decider: TypeAlias = "Callable[[ControllerCore, Any, Asked], _Decision]"


def decider(name: str) -> Decider:
    """What decides an API, by the name in its row: a function of a module of this package, or a
    method of `ClusterControl`.
    """
    holder, _, function = name.partition(".")
    if holder == ClusterControl.__name__:
        return lambda core, *asked: getattr(core.cluster_control, function)(*asked)
    decide = getattr(import_module(f"{__package__}.{holder}"), function)
    return lambda core, *asked: decide(core.state, *asked)


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
        self.tasks = PeriodicTasks(self.state)
        self._transactions = TransactionFilter()
        self._on_entries_changed = on_entries_changed
        self._appended: deque[tuple[int, MetadataImage, EntryChanges]] = deque()

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
        self.tasks.start(monotonic_ms)
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
        self.tasks.stop()
        self.state.reset(self.committed_image)

    def handle(
        self, request: AnyRequest, decide: Decider, asked: Asked
    ) -> Steps[ControllerResult[Message]]:
        """Decide one request."""
        assert self.role is Role.ACTIVE
        decided = decide(self, request, asked)
        if isinstance(decided, GeneratorType):
            result = yield from decided
            result.may_wait = True
        else:
            assert isinstance(decided, ControllerResult)
            result = decided
        return self._note_steps(request, result)

    def resume(
        self, request: AnyRequest, result: ControllerResult[Message], asked: Asked
    ) -> ControllerResult[Message]:
        """The next step of a request, after the records of `result` were appended."""
        assert self.role is Role.ACTIVE
        assert result.resume is not None
        return self._note_steps(request, result.resume(asked))

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
            self.tasks.sweep()

    def fence_expired(self, now_ms: float) -> list[VersionedRecord]:
        records = self.cluster_control.fence_expired(now_ms)
        self._sweep_if_needed()
        return records

    def run_due_task(self, now_ms: float) -> list[VersionedRecord]:
        """Records of the elections the controller holds by itself; empty when none is due."""
        assert self.role is Role.ACTIVE
        return self.tasks.run_due(now_ms)

    def expired_tokens(self, now_ms: int) -> list[VersionedRecord]:
        """Records that remove delegation tokens past their end. Milliseconds since 1970."""
        assert self.role is Role.ACTIVE
        return expired_tokens(self.state, now_ms)

    @property
    def may_snapshot(self) -> bool:
        """Whether the committed image is whole: not in the middle of a transaction."""
        return not self._transactions.is_open
