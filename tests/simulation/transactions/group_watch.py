"""What one consumer and its group's coordinator say to each other, reported to the ledger.

Owns: who the consumer is to its coordinator, what it was assigned and what it read as committed,
and what its listener got. Must not: change a request or an answer. Invariants: what a member
says it owns is all that it reads, so that an eager one says nothing when it joins; nothing is
handed out of a partition between its revocation and its next assignment; no commit leaves after one
that was asked for later and may be committed; every refusal is one that the protocol knows, and has
its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from typing import TYPE_CHECKING, Any

from moldau.client.consumer.group_link import GroupLink
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.consumer_protocol import ConsumerProtocolSubscription, decode_payload
from moldau.protocol.messages.p08_offset_commit import OffsetCommitRequest
from moldau.protocol.messages.p09_offset_fetch import OffsetFetchRequest
from moldau.protocol.messages.p11_join_group import JoinGroupRequest
from moldau.protocol.messages.p12_heartbeat import HeartbeatRequest
from moldau.protocol.messages.p13_leave_group import LeaveGroupRequest
from moldau.protocol.messages.p14_sync_group import SyncGroupRequest
from moldau.protocol.messages.p68_consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from tests.kit.seeds import Violation
from tests.simulation.transactions.coordinator_link import ELSEWHERE
from tests.simulation.transactions.group_log import (
    Author,
    Patience,
    assigned,
    commit_number,
    partitions_of,
)

if TYPE_CHECKING:
    from tests.simulation.transactions.world import TransactionWorld

Place = tuple[str, int]

JOIN_EPOCH = 0

RETRIED = ELSEWHERE | {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
}
OUT = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.UNRELEASED_INSTANCE_ID,
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ErrorCode.UNSUPPORTED_VERSION,
    }
)
"""With which a membership ends, or does not begin."""

NO_MEMBER = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID})
"""With which a commit, or a look at what is committed, reports that its member is none."""

IN_DOUBT = frozenset({ErrorCode.REQUEST_TIMED_OUT, *ELSEWHERE})
"""What a coordinator may say that has written a commit and does not know its end."""

REFUSED = OUT | {
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.MEMBER_ID_REQUIRED,
    ErrorCode.STALE_MEMBER_EPOCH,
}
MEMBERSHIP = (SyncGroupRequest, HeartbeatRequest, JoinGroupRequest, ConsumerGroupHeartbeatRequest)


class GroupWatch:
    """One consumer's. `epoch`: the generation, or the member epoch; `reported`: the partitions that
    its listener knows to be its own, with their topics' ids.
    """

    def __init__(
        self,
        world: TransactionWorld,
        label: str,
        group: str,
        instance_id: str | None,
        *,
        is_classic: bool,
        patience: Patience,
    ) -> None:
        self.world = world
        self.label = label
        self.group = group
        self.instance_id = instance_id
        self.is_classic = is_classic
        self.is_cooperative = not is_classic
        self.patience = patience
        self.member_id = ""
        self.epoch = -1
        self.is_member = self.is_closing = self.was_put_out = False
        self.is_overdue: Callable[[], bool] = lambda: False
        """Whether the consumer has not been polled for too long."""
        self.reported: dict[Place, Any] = {}
        self.asked: list[type] = []
        """What it wanted to send since that was emptied, reached or not."""
        self.refusals: set[ErrorCode] = set()
        """Since it has become a member last."""
        self.committed: dict[Place, list[int]] = {}
        """What it knows to have been committed since the partition was revoked last."""
        self._told: dict[Place, Any] = {}
        """What it was assigned since it joined, with the topics' ids."""
        self._joins = 0
        self._topic_ids: dict[str, Any] = {}
        self._is_heard = True
        """Whether the coordinator that has answered led the group's partition all the time."""
        self._target: dict[Place, Any] = {}
        """The newest assignment of KIP-848, likewise."""
        self._owes = False
        """Whether its coordinator waits for partitions that are to be given back."""
        self._newest_commits: dict[Place, int] = {}
        """The newest of those that are committed, or may be: not answered, or with an error
        IN_DOUBT.
        """

    def __repr__(self) -> str:
        state = "in" if self.is_member else "out, before in"
        return f"{self.member_id} {state} {self.epoch} has {sorted(self.reported)}"

    @property
    def mine(self) -> list[Place]:
        """What it reads, as a member."""
        return sorted(self.reported) if self.is_member else []

    def must_leave(self, member_id: str) -> bool:
        """Whether a consumer that holds this for its member id has to leave when it is closed.

        A classic one that has left, reached or not, or got UNKNOWN_MEMBER_ID, forgets its id.
        It has none to leave with before the coordinator has answered its next JoinGroup.
        """
        if not self.is_member or (self.is_classic and self.instance_id is not None):
            return False
        return member_id != "" or ErrorCode.UNKNOWN_MEMBER_ID not in self.refusals

    def attach(self, link: GroupLink) -> None:
        """See all that goes through the link."""
        ask = link.ask

        async def asking(kind: Any, build: Callable[[int], Any], **options: Any) -> Any:
            self.asked.append(kind)
            if kind is LeaveGroupRequest:
                # From now on it holds itself to be out, and does not ask again.
                self.refusals.add(ErrorCode.UNKNOWN_MEMBER_ID)
            sent: list[tuple[Any, float, int, int | None, bool]] = []

            def building(version: int) -> Any:
                request = build(version)
                node_id = link._node_id
                self.world.guard(self._sent, request, node_id)
                leads = self.world.is_coordinator(self.group, node_id)
                sent.append((request, self.world.loop.time(), self._joins, node_id, leads))
                return request

            try:
                response = await ask(kind, building, **options)
            except BaseException:
                if sent and isinstance(sent[-1][0], OffsetCommitRequest):
                    self._lost(sent[-1][0])
                raise
            self.world.guard(self._answered, *sent[-1], response)
            return response

        link.ask = asking  # type: ignore[method-assign]

    # -- requests --------------------------------------------------------------------------------

    def _sent(self, request: Any, node_id: int | None) -> None:
        data = self.world.data
        if isinstance(request, JoinGroupRequest):
            self._begin_membership(is_classic=True)
            # An assignment names topics, and means those that the coordinator knows: not one that
            # is created again later.
            for name in [plan.name for plan in self.world.topics]:
                known = data.topic_id_of(name)
                if node_id is not None:
                    known = self.world.topic_id_at(node_id, name)
                self._topic_ids[name] = known
            for protocol in request.protocols:
                read = decode_payload(ConsumerProtocolSubscription, bytes(protocol.metadata))
                owned = [(each.topic, i) for each in read.owned_partitions for i in each.partitions]
                self._check_said(owned)
        elif isinstance(request, HeartbeatRequest | SyncGroupRequest):
            self._check_epoch(request.generation_id)
        elif isinstance(request, LeaveGroupRequest):
            for member in request.members:
                data.group_log.left.add((self.group, member.member_id))
            self._leaves()
        elif isinstance(request, ConsumerGroupHeartbeatRequest):
            self._beats(request)
        elif isinstance(request, OffsetCommitRequest):
            self._commits(request)

    def _begin_membership(self, *, is_classic: bool) -> None:
        self._joins += 1
        self._told = {}
        self.epoch = -1
        data = self.world.data
        data.challenged(self.group, self.label, self.instance_id, is_classic=is_classic)

    def _beats(self, request: ConsumerGroupHeartbeatRequest) -> None:
        if request.member_epoch < JOIN_EPOCH:
            self._leaves()
            return
        if request.member_epoch == JOIN_EPOCH:
            self._begin_membership(is_classic=False)
            self.member_id = request.member_id
            self._target = {}
            self._owes = False
            self.patience.asked_at = inf
        else:
            self._check_epoch(request.member_epoch)
        # The time for giving partitions back begins when a heartbeat is taken, answered or not.
        self.patience.asked_at = min(self.patience.asked_at, self.world.loop.time())
        if request.topic_partitions is not None:
            self._check_said(self._with_ids(request.topic_partitions))

    def _check_epoch(self, epoch: int) -> None:
        """A member is in the generation, or epoch, that it was given since it joined."""
        if epoch != self.epoch:
            raise Violation("epoch-of-another-membership", f"{self.label}: {epoch}, {self}")

    def _check_said(self, owned: Iterable[Place]) -> None:
        """Others get what a member does not claim."""
        unsaid = set(self.reported).difference(owned)
        if unsaid and not self.world.data.is_spoilt:
            raise Violation(
                "kept-what-it-gave-up", f"{self.label}: {sorted(unsaid)}, it claims {owned}"
            )

    def _commits(self, request: OffsetCommitRequest) -> None:
        author = Author(
            request.member_id, request.generation_id_or_member_epoch, request.group_instance_id
        )
        for topic, partition in partitions_of(request, self.world.data.topic_names):
            metadata = partition.committed_metadata or ""
            if not metadata:
                continue
            # Signed again with a newer epoch, it may still arrive with the older one.
            self.world.data.group_log.authors.setdefault(metadata, author)
            place, number = (topic, partition.partition_index), commit_number(metadata)
            newest = self._newest_commits.get(place, -1)
            if number < newest:
                raise Violation(
                    "commit-reordered", f"{metadata} of {place}, {newest} may be committed"
                )

    # -- answers ---------------------------------------------------------------------------------

    def _answered(
        self,
        request: Any,
        sent_at: float,
        joins: int,
        node_id: int | None,
        was_leader: bool,
        response: Any,
    ) -> None:
        what = type(request).__name__.removesuffix("Request")
        error = self._judge(ErrorCode.of(getattr(response, "error_code", 0)), what, sent_at)
        leads = was_leader and self.world.is_coordinator(self.group, node_id)
        self._is_heard = leads
        if isinstance(request, OffsetCommitRequest):
            self._committed(request, response, sent_at)
        elif isinstance(request, OffsetFetchRequest):
            self._fetched(request, response, sent_at, is_leader=leads)
        elif isinstance(request, MEMBERSHIP) and getattr(request, "member_epoch", 0) >= JOIN_EPOCH:
            if joins != self._joins:
                raise Violation("answer-of-a-former-membership", f"{self.label}: {what}: {error}")
            if error is not ErrorCode.NONE:
                if error in OUT:
                    self.was_put_out = True
                    self._drop()
            elif isinstance(request, JoinGroupRequest):
                self.member_id = response.member_id
                self.epoch = response.generation_id
                self.is_cooperative = response.protocol_name == "cooperative-sticky"
            elif isinstance(request, SyncGroupRequest):
                self._synced(request, response, sent_at, node_id)
            elif isinstance(request, HeartbeatRequest):
                self._heard(sent_at)
                # One that has asked to leave since does not stay.
                if self.instance_id is None and leads and self.is_member:
                    data = self.world.data
                    data.may_stay(self.group, self.member_id, self.patience.ends_at)
            else:
                if request.member_epoch == JOIN_EPOCH:
                    self.refusals.clear()
                self._beat(request, response, sent_at)
        elif isinstance(request, ConsumerGroupHeartbeatRequest) and request.member_epoch == -1:
            self._left(request.member_id, error)

    def _left(self, member_id: str, error: ErrorCode) -> None:
        known = self.world.data.group_log.member_epochs.get(self.group, ())
        if error is ErrorCode.NONE and member_id in known and not self.world.data.is_spoilt:
            raise Violation("left-member-lives", f"{self.label}: {member_id} in {known}")

    def _judge(self, error: ErrorCode, what: str, sent_at: float) -> ErrorCode:
        """Count an error, and find its reason."""
        world = self.world
        if error is ErrorCode.NONE:
            return error
        world.counts[f"{what} {error.name}"] += 1
        is_lawful = error in RETRIED | REFUSED
        if error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL:
            is_lawful = self.group in world.changing_groups or world.faulty_clients > 0
        is_lawful |= error is ErrorCode.UNKNOWN_TOPIC_ID and world.draws.has_visitors
        is_lawful |= error is ErrorCode.UNSUPPORTED_VERSION and world.draws.levels
        if error in (ErrorCode.FENCED_INSTANCE_ID, ErrorCode.UNRELEASED_INSTANCE_ID):
            is_lawful = world.data.is_rivalled(self.group, self.label, self.instance_id)
        if not is_lawful and not world.data.is_spoilt:
            raise Violation("unexpected-error", f"{self.label}: {what}: {error.name}")
        may_refuse = world.data.is_spoilt or self.group in world.changing_groups
        may_refuse |= world.draws.groups or world.draws.levels
        if error is ErrorCode.GROUP_ID_NOT_FOUND and not may_refuse:
            # A group without members and offsets is removed: who comes late finds none. A group
            # without members becomes classic for a classic member that joins, and may stay so.
            is_heartbeat = what == "ConsumerGroupHeartbeat"
            if not world.data.may_be_lost(
                self.group, self.label, sent_at, is_heartbeat=is_heartbeat
            ):
                raise Violation("group-lost", f"{self.label}: {what} in {self.group}")
            world.counts["groups_gone"] += 1
        self.refusals.add(error)
        return error

    def _synced(
        self, request: SyncGroupRequest, response: Any, sent_at: float, node_id: int | None
    ) -> None:
        given = assigned(bytes(response.assignment))
        # A static member that comes back has the assignment that it had (KIP-345).
        who = self.instance_id or self.label
        if self.world.rests_on_uncommitted(self.group, node_id):
            self.world.counts["assigned_by_uncommitted"] += 1
        else:
            self.world.data.claimed(self.group, request.generation_id, who, given)
        self._told = {place: self._topic_ids.get(place[0]) for place in given}
        self.is_member = True
        self.refusals.clear()
        self._heard(sent_at)

    def _beat(self, request: ConsumerGroupHeartbeatRequest, response: Any, sent_at: float) -> None:
        self.epoch = response.member_epoch
        self.is_member = True
        self._heard(sent_at)
        if response.assignment is not None:
            self.world.data.counts["assignments"] += 1
            self._target = self._with_ids(response.assignment.topic_partitions)
            self._told.update(self._target)
            self._owes = not self.reported.items() <= self._target.items()
        if request.topic_partitions is not None:
            said = self._with_ids(request.topic_partitions)
            self._owes = not said.items() <= self._target.items()
        if not self._owes:
            self.patience.asked_at = inf

    def _with_ids(self, topics: Iterable[Any]) -> dict[Place, Any]:
        """Partitions of a heartbeat or its answer, with the topics' ids."""
        names = self.world.data.topic_names
        return {
            (names[topic.topic_id], index): topic.topic_id
            for topic in topics
            for index in topic.partitions
        }

    def _heard(self, sent_at: float) -> None:
        """A former coordinator may hear it, too, and its successor expel it (ADR 15)."""
        if not self._is_heard:
            return
        self.patience.heard_at = max(self.patience.heard_at, sent_at)
        if self.is_classic:
            # Another member may begin a rebalance at any time.
            self.patience.asked_at = self.patience.heard_at

    def _leaves(self) -> None:
        """Its listener is called before, unless the consumer was not polled for too long."""
        if self.is_closing and self.reported and self.is_member and not self.is_overdue():
            raise Violation("left-with-partitions", f"{self.label}: {self}")
        self._drop()

    def _drop(self) -> None:
        """It is a member no more, and knows: it commits nothing from now on."""
        self.is_member = False
        self.refusals.add(ErrorCode.UNKNOWN_MEMBER_ID)
        self.world.data.released(self.group, self.label)
        self.world.data.may_go(self.group, self.member_id)

    def perhaps_lapsed(self) -> None:
        """The consumer holds itself to be out of its group. A static member of a classic group that
        was not polled for too long goes without a word (KIP-345), and its partitions stay its own
        until its session is over.
        """
        is_silent = self.is_classic and self.instance_id is not None
        if self.is_member and is_silent and self.is_overdue():
            self.world.counts["left_in_silence"] += 1
            self.is_member = False
            self.refusals.add(ErrorCode.UNKNOWN_MEMBER_ID)

    def ended(self) -> None:
        """Its process is gone."""
        self.is_member = False
        self.world.data.released(self.group, self.label)
        self.world.data.may_go(self.group, self.member_id)

    # -- offsets ---------------------------------------------------------------------------------

    def _lost(self, request: OffsetCommitRequest) -> None:
        """A commit was sent and not answered."""
        data = self.world.data
        data.group_log.may_come_late(request, data.topic_names)
        for topic, partition in partitions_of(request, data.topic_names):
            self._may_be_committed((topic, partition.partition_index), partition)

    def _may_be_committed(self, place: Place, partition: Any) -> None:
        metadata = partition.committed_metadata or ""
        if metadata:
            newest = self._newest_commits.get(place, -1)
            self._newest_commits[place] = max(commit_number(metadata), newest)

    def _committed(self, request: OffsetCommitRequest, response: Any, sent_at: float) -> None:
        sent = {
            (topic, partition.partition_index): partition
            for topic, partition in partitions_of(request, self.world.data.topic_names)
        }
        for topic, answer in partitions_of(response, self.world.data.topic_names):
            error = self._judge(ErrorCode.of(answer.error_code), "OffsetCommit", sent_at)
            self.was_put_out |= error in NO_MEMBER
            place = (topic, answer.partition_index)
            partition = sent[place]
            if error is ErrorCode.NONE or error in IN_DOUBT:
                self._may_be_committed(place, partition)
            if error is not ErrorCode.NONE:
                continue
            metadata = partition.committed_metadata or ""
            key = (self.group, *place)
            self.world.data.offset_answered(key, partition.committed_offset, metadata)
            if place in self.reported:
                self.committed.setdefault(place, []).append(partition.committed_offset)

    def _fetched(
        self, request: OffsetFetchRequest, response: Any, sent_at: float, *, is_leader: bool
    ) -> None:
        data = self.world.data
        found = response.groups[0]
        error = self._judge(ErrorCode.of(found.error_code), "OffsetFetch", sent_at)
        self.was_put_out |= error in NO_MEMBER
        ids = {topic.topic_id for topic in request.groups[0].topics}
        for topic in found.topics:
            name = topic.name or data.topic_names[topic.topic_id]
            topic_id = topic.topic_id if topic.topic_id in ids and not topic.name else None
            for each in topic.partitions:
                error = self._judge(ErrorCode.of(each.error_code), "OffsetFetch", sent_at)
                if error is not ErrorCode.NONE:
                    continue
                data.offset_fetched(
                    (self.group, name, each.partition_index),
                    each.committed_offset,
                    each.metadata or "",
                    sent_at,
                    is_leader=is_leader,
                    topic_id=topic_id if name in data.recreated else None,
                    may_miss_tombstones=self.world.may_miss_tombstones,
                )
                place = (name, each.partition_index)
                self.committed.setdefault(place, []).append(max(each.committed_offset, 0))

    # -- what its listener hears ----------------------------------------------------------------

    def assigned(self, added: Iterable[Place]) -> None:
        """These are new. Raises Violation."""
        data = self.world.data
        new = {}
        for place in added:
            if place in self.reported:
                raise Violation("assigned-without-revocation", f"{self.label}: {place}")
            if place not in self._told and self.is_member and not data.is_spoilt:
                raise Violation("assigned-untold", f"{self.label}: {place}, told {self._told}")
            new[place] = self._told.get(place)
        self.reported.update(new)
        if self.is_member:
            data.owned(
                self.group,
                self.label,
                new,
                self.patience,
                self.instance_id,
                is_classic=self.is_classic,
            )

    def gave_up(self, places: Iterable[Place]) -> None:
        """These are revoked, or lost. Raises Violation."""
        for place in places:
            if place not in self.reported:
                raise Violation("revoked-without-assignment", f"{self.label}: {place}")
            del self.reported[place]
            self.committed.pop(place, None)
        self.world.data.released(self.group, self.label, self.reported)
