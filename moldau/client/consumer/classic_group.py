"""A classic consumer group, as one member sees it: the requests, and the leader's work.

Owns what goes into JoinGroup, SyncGroup, Heartbeat and LeaveGroup, what comes out of them, and the
assignment when this member leads. Must not decide when anything is sent (`core.classic_member`
does) nor touch what the user consumes. Invariant: the assignors see the same on every member.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from moldau.client.cluster.cluster_client import ClusterClient
from moldau.client.config.consumer import ConsumerConfig
from moldau.client.consumer.assignors import (
    ConsumerPartitionAssignor,
    MemberAssignment,
    PartitionRacks,
    Subscription,
    Topics,
    make_assignors,
    rebalance_protocol,
)
from moldau.client.consumer.assignors.assignor import RebalanceProtocol
from moldau.client.consumer.consumer_protocol import (
    PROTOCOL_TYPE,
    read_assignment,
    read_subscription,
    version_of,
    write_assignment,
    write_subscription,
)
from moldau.client.consumer.core.classic_member import ClassicMember
from moldau.client.consumer.core.rebalance_steps import Assign, GroupRequest
from moldau.client.consumer.group_link import MEMBERSHIP, OFFSETS, GroupLink
from moldau.client.records import TopicPartition
from moldau.protocol.errors import ErrorCode, RemoteProtocolError
from moldau.protocol.messages.p11_join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from moldau.protocol.messages.p12_heartbeat import HeartbeatRequest
from moldau.protocol.messages.p13_leave_group import LeaveGroupRequest, MemberIdentity
from moldau.protocol.messages.p14_sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from moldau.protocol.schema import Message

JOIN_LAPSE_MS: Final = 5_000
"""A join may be answered this much after the rebalance timeout."""

REASON_LIMIT: Final = 255
"""Longer reasons are cut (KIP-800)."""


@dataclass(slots=True)
class _Round:
    """One generation in the making.

    Attributes:
        protocol_name: the assignor the coordinator chose.
        joined: JoinGroup's answer, for the leader.
        assignments: what the leader sends, by member id.
    """

    protocol_name: str = ""
    joined: JoinGroupResponse | None = None
    assignments: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back, and to which of the member's requests."""

    request: GroupRequest
    attempt: int
    response: Any


class ClassicGroup:
    """The requests of one member, and the assignors it offers.

    Args:
        member: the machine that decides what is sent.
    """

    def __init__(
        self,
        client: ClusterClient,
        config: ConsumerConfig,
        group_id: str,
        link: GroupLink,
        member: ClassicMember,
        assignors: tuple[ConsumerPartitionAssignor, ...],
    ) -> None:
        self.member: Final = member
        self._client = client
        self._config = config
        self._group_id = group_id
        self._link = link
        self._assignors = {each.name: each for each in assignors}
        self._topics: frozenset[str] = frozenset()
        self._round = _Round()
        self._assigned_user_data: bytes | None = None
        self._assigned_by = ""
        self._led_wanted: frozenset[str] = frozenset()
        self._led_topics: Topics | None = None

    def set_topics(self, topics: frozenset[str], *, anew: bool) -> None:
        """What to subscribe to from now on."""
        self._topics = topics
        self.member.subscribe(topics, anew=anew)

    def metadata_changed(self) -> None:
        """The leader compares the group's topics with what it assigned."""
        if not self.member.is_leader or self._led_topics is None:
            return
        if self._existing(self._led_wanted) != self._led_topics:
            self._led_topics = None
            self.member.request_rejoin("cached metadata has changed since the last assignment")

    def before_assign(self, step: Assign) -> None:
        """The assignor hears what this member got, before its user does."""
        assignor = self._assignors.get(self._assigned_by)
        if assignor is not None:
            assignor.on_assignment(
                MemberAssignment(
                    partitions=tuple(sorted(step.partitions)),
                    user_data=self._assigned_user_data,
                    generation_id=self.member.generation_id,
                )
            )

    # -- requests -------------------------------------------------------------------------------

    async def send(self, request: GroupRequest, attempt: int) -> Answer:
        """Send one, without touching the member. Raises as `GroupLink.ask`."""
        match request:
            case GroupRequest.JOIN:
                response = await self._ask(
                    JoinGroupRequest,
                    self._join_request(),
                    timeout_ms=max(
                        self._config.request_timeout_ms,
                        self._config.max_poll_interval_ms + JOIN_LAPSE_MS,
                    ),
                )
            case GroupRequest.LEAD:
                return Answer(request, attempt, await self._lead())
            case GroupRequest.SYNC:
                response = await self._ask(SyncGroupRequest, self._sync_request())
            case _:
                assert request is GroupRequest.HEARTBEAT, request
                member = self.member
                if member.is_leader:
                    # Its own and the others': the leader watches them for the whole group.
                    for topic in self._led_wanted:
                        self._client.used(topic)
                response = await self._ask(
                    HeartbeatRequest,
                    HeartbeatRequest(
                        group_id=self._group_id,
                        generation_id=member.generation_id,
                        member_id=member.member_id,
                        group_instance_id=member.group_instance_id,
                    ),
                )
        return Answer(request, attempt, response)

    def accept(self, answer: Answer, now_ms: float) -> None:
        """Tell the member what was answered."""
        member, attempt = self.member, answer.attempt
        if answer.request is GroupRequest.LEAD:
            if member.led(attempt):
                self._round.assignments = answer.response
            return
        response = answer.response
        code = ErrorCode.of(response.error_code)
        if code is ErrorCode.NONE and answer.request is not GroupRequest.HEARTBEAT:
            protocol_type = response.protocol_type
            if protocol_type not in (None, "", PROTOCOL_TYPE):
                code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if code is not ErrorCode.NONE:
            member_id = (
                response.member_id if answer.request is GroupRequest.JOIN else member.member_id
            )
            member.refused(attempt, now_ms, answer.request, code, member_id=member_id)
        elif answer.request is GroupRequest.JOIN:
            self._joined(attempt, response, now_ms)
        elif answer.request is GroupRequest.SYNC:
            self._synced(attempt, bytes(response.assignment), now_ms)
        else:
            member.heartbeat_succeeded(attempt, now_ms)

    async def leave(self, member_id: str, reason: str) -> None:
        """Send LeaveGroup; nobody cares for its answer. Raises as `GroupLink.ask`."""
        reason = reason[:REASON_LIMIT]

        def build(version: int) -> Message:
            if version < 3:
                return LeaveGroupRequest(group_id=self._group_id, member_id=member_id)
            return LeaveGroupRequest(
                group_id=self._group_id,
                members=[MemberIdentity(member_id=member_id, reason=reason)],
            )

        await self._link.ask(LeaveGroupRequest, build, purpose=OFFSETS)

    async def _ask(
        self, kind: type[Message], request: Message, timeout_ms: float | None = None
    ) -> Any:
        return await self._link.ask(
            kind, lambda version: request, purpose=MEMBERSHIP, timeout_ms=timeout_ms
        )

    def _join_request(self) -> JoinGroupRequest:
        member, config = self.member, self._config
        generation_id = member.owned_generation_id
        reason = member.rejoin_reason
        return JoinGroupRequest(
            group_id=self._group_id,
            session_timeout_ms=config.session_timeout_ms,
            rebalance_timeout_ms=config.max_poll_interval_ms,
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[
                JoinGroupRequestProtocol(
                    name=name,
                    metadata=write_subscription(
                        Subscription(
                            topics=tuple(self._topics),
                            owned_partitions=tuple(member.owned),
                            generation_id=generation_id if generation_id >= 0 else None,
                            rack_id=config.client_rack or None,
                            user_data=assignor.subscription_user_data(self._topics),
                        )
                    ),
                )
                for name, assignor in self._assignors.items()
            ],
            reason=None if reason is None else reason[:REASON_LIMIT],
        )

    def _sync_request(self) -> SyncGroupRequest:
        member = self.member
        return SyncGroupRequest(
            group_id=self._group_id,
            generation_id=member.generation_id,
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=self._round.protocol_name,
            assignments=[
                SyncGroupRequestAssignment(member_id=member_id, assignment=assignment)
                for member_id, assignment in self._round.assignments.items()
            ],
        )

    def _joined(self, attempt: int, response: JoinGroupResponse, now_ms: float) -> None:
        leads = response.leader == response.member_id
        if self.member.joined(
            attempt,
            now_ms,
            generation_id=response.generation_id,
            member_id=response.member_id,
            is_leader=leads,
        ):
            self._round = _Round(response.protocol_name or "", response if leads else None)
            self._led_topics = None  # what an earlier leader knew is nobody's concern any more

    def _synced(self, attempt: int, assignment: bytes, now_ms: float) -> None:
        try:
            partitions, user_data = read_assignment(assignment)
        except RemoteProtocolError as error:
            self.member.refused(
                attempt,
                now_ms,
                GroupRequest.SYNC,
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                message=f"the leader's assignment cannot be read: {error}",
            )
            return
        wanted = [each for each in partitions if each.topic in self._topics]
        self._assigned_user_data = user_data
        self._assigned_by = self._round.protocol_name
        self._round = _Round()
        self.member.synced(attempt, now_ms, frozenset(wanted))
        if len(wanted) < len(partitions):
            # The leader knows an older subscription of ours: tell it the one of today.
            self.member.request_rejoin("assigned topics that are not subscribed to (any more)")

    # -- leading --------------------------------------------------------------------------------

    async def _lead(self) -> dict[str, bytes]:
        """Work out who gets what, with metadata fetched just now."""
        joined = self._round.joined
        assert joined is not None, "only the leader leads"
        subscriptions: dict[str, Subscription] = {}
        versions: dict[str, int] = {}
        for each in joined.members:
            metadata = bytes(each.metadata)
            versions[each.member_id] = version_of(metadata)
            subscriptions[each.member_id] = read_subscription(metadata, each.group_instance_id)
        topics = sorted({topic for each in subscriptions.values() for topic in each.topics})
        await self._client.refresh_metadata(topics)
        existing = self._existing(topics)
        self._led_wanted = frozenset(topics)
        self._led_topics = existing
        if joined.skip_assignment:
            # A static leader that came back: the group goes on as it was (KIP-814).
            return {}
        assignor = self._assignors.get(self._round.protocol_name)
        if assignor is None:
            raise RemoteProtocolError(
                f"the coordinator chose {self._round.protocol_name!r}, which was not offered"
            )
        assignments = assignor.assign(existing, subscriptions)
        _check(assignor, assignments, subscriptions)
        return {
            member_id: write_assignment(
                assignments.get(member_id, ()),
                assignor.assignment_user_data(member_id),
                versions[member_id],
            )
            for member_id in subscriptions
        }

    def _existing(self, topics: Iterable[str]) -> Topics:
        """The partitions of the topics, and their replicas' racks, as this client knows them."""
        metadata = self._client.metadata
        racks = {broker_id: broker.rack for broker_id, broker in metadata.brokers.items()}
        existing: dict[str, list[PartitionRacks]] = {}
        for topic in topics:
            found = metadata.topics.get(topic)
            if found is None or not found.partitions:
                continue
            partitions = [frozenset[str]()] * (max(found.partitions) + 1)
            for index, partition in found.partitions.items():
                of_replicas = (racks.get(replica) for replica in partition.replicas)
                partitions[index] = frozenset(rack for rack in of_replicas if rack)
            existing[topic] = partitions
        return existing


def assignors_of(config: ConsumerConfig) -> tuple[tuple[ConsumerPartitionAssignor, ...], bool]:
    """Fresh assignors of `partition.assignment.strategy`, and whether they are cooperative.

    Raises:
        ConfigurationError: the setting makes no sense.
    """
    assignors = make_assignors(config.partition_assignment_strategy)
    return assignors, rebalance_protocol(assignors) is RebalanceProtocol.COOPERATIVE


def _check(
    assignor: ConsumerPartitionAssignor,
    assignments: Mapping[str, Iterable[TopicPartition]],
    subscriptions: Mapping[str, Subscription],
) -> None:
    """Refuse what would break the group; only an assignor of the user's own does that."""
    owners: dict[TopicPartition, str] = {}
    cooperative = RebalanceProtocol.COOPERATIVE in assignor.supported_protocols
    owned = {
        partition: member_id
        for member_id, subscription in subscriptions.items()
        for partition in (subscription.owned_partitions if cooperative else ())
    }
    for member_id, partitions in assignments.items():
        if member_id not in subscriptions:
            raise ValueError(f"assignor {assignor.name}: {member_id} is no member of the group")
        for partition in partitions:
            other = owners.setdefault(partition, member_id)
            if other != member_id:
                raise ValueError(
                    f"assignor {assignor.name}: {partition} is assigned to {other} and {member_id}"
                )
    if assignor.name == "cooperative-sticky":
        return
    for partition, member_id in owners.items():
        if owned.get(partition, member_id) != member_id:
            raise ValueError(
                f"assignor {assignor.name}: {partition} is assigned to {member_id} while "
                f"{owned[partition]} still owns it; cooperative assignors give it in a second "
                "rebalance (KIP-429)"
            )
