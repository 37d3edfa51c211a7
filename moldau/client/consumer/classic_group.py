"""A classic consumer group, as one member sees it: the requests, and the leader's work.

Owns what goes into JoinGroup, SyncGroup, Heartbeat and LeaveGroup, what comes out of them, the
assignment when this member leads, and the bytes of subscriptions and assignments (versions 0 to 3)
that members exchange through the coordinator. Must not decide when anything is sent
(`core.classic_member` does) nor touch what the user consumes. Invariants: the assignors see the
same on every member; a newer version is read as the newest known one; an assignment is written so
that its member can read it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from moldau.client.cluster.cluster_client import ClusterClient
from moldau.client.config.consumer import ConsumerConfig
from moldau.client.consumer.assignors import (
    ConsumerPartitionAssignor,
    MemberAssignment,
    PartitionRacks,
    RebalanceProtocol,
    Subscription,
    Topics,
    make_assignors,
    rebalance_protocol,
)
from moldau.client.consumer.core.classic_member import ClassicMember
from moldau.client.consumer.core.rebalance_steps import Assign, GroupRequest, Partitions, PollWatch
from moldau.client.consumer.group_link import MEMBERSHIP, OFFSETS, GroupLink
from moldau.client.records import TopicPartition
from moldau.config.backoff import Backoff
from moldau.protocol.errors import ErrorCode, RemoteProtocolError
from moldau.protocol.messages.consumer_protocol import (
    NEWEST_VERSION,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    OwnedTopic,
    decode_payload,
    encode_payload,
    payload_version,
)
from moldau.protocol.messages.consumer_protocol import TopicPartition as AssignedTopic
from moldau.protocol.messages.p11_join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from moldau.protocol.messages.p12_heartbeat import HeartbeatRequest, HeartbeatResponse
from moldau.protocol.messages.p13_leave_group import LeaveGroupRequest, MemberIdentity
from moldau.protocol.messages.p14_sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from moldau.protocol.schema import AnyRequest, Request, Response
from moldau.protocol.types import by_topic

PROTOCOL_TYPE: Final = "consumer"

JOIN_LAPSE_MS: Final = 5_000
"""A join may be answered this much after the rebalance timeout."""

REASON_LIMIT: Final = 255
"""Longer reasons are cut (KIP-800)."""


@dataclass(slots=True)
class _Round:
    """One generation in the making: the assignor that the coordinator chose, JoinGroup's answer for
    the leader, and what the leader sends, by member id.
    """

    protocol_name: str = ""
    joined: JoinGroupResponse | None = None
    assignments: Mapping[str, bytes] = field(default_factory=dict)


class ClassicGroup:
    """The requests of one member, and the assignors it offers. Raises: ConfigurationError."""

    def __init__(
        self,
        client: ClusterClient,
        config: ConsumerConfig,
        link: GroupLink,
        watch: PollWatch,
        backoff: Backoff,
        on_attention: Callable[[], None],
    ) -> None:
        assignors = make_assignors(config.partition_assignment_strategy)
        self.member: Final = ClassicMember(
            group_instance_id=config.group_instance_id,
            cooperative=rebalance_protocol(assignors) is RebalanceProtocol.COOPERATIVE,
            heartbeat_interval_ms=config.heartbeat_interval_ms,
            session_timeout_ms=config.session_timeout_ms,
            poll_watch=watch,
            backoff=backoff,
            on_attention=on_attention,
        )
        self._client = client
        self._config = config
        self._link = link
        self._assignors = {each.name: each for each in assignors}
        self._topics: frozenset[str] = frozenset()
        self._round = _Round()
        self._assigned_user_data: bytes | None = None
        self._assigned_by = ""
        self._led_wanted: frozenset[str] = frozenset()
        self._led_topics: Topics | None = None

    def subscribe(self, topics: frozenset[str], pattern: str | None, *, is_new: bool) -> None:
        self._topics = topics
        self.member.subscribe(topics, is_new=is_new)

    def unsubscribe(self, reason: str) -> tuple[Partitions, bool]:
        return self.member.unsubscribe(reason)

    def metadata_changed(self) -> None:
        """The leader compares the group's topics with what it assigned."""
        if not self.member.is_leader or self._led_topics is None:
            return
        if self._existing(self._led_wanted) != self._led_topics:
            self._led_topics = None
            self.member.request_rejoin("cached metadata has changed since the last assignment")

    def before_assign(self, step: Assign) -> None:
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

    def exchange(
        self, request: GroupRequest, now_ms: float
    ) -> tuple[int, Coroutine[object, object, object]]:
        """The request's number, and its sending, which does not touch the member."""
        return self.member.sent(request, now_ms), self._send(request)

    def accept(self, request: GroupRequest, attempt: int, response: object, now_ms: float) -> None:
        member = self.member
        if isinstance(response, dict):  # what `_lead` has worked out
            if member.led(attempt):
                self._round.assignments = response
            return
        assert isinstance(response, JoinGroupResponse | SyncGroupResponse | HeartbeatResponse)
        code = ErrorCode.of(response.error_code)
        if (
            code is ErrorCode.NONE
            and not isinstance(response, HeartbeatResponse)
            and response.protocol_type not in (None, "", PROTOCOL_TYPE)
        ):
            code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if code is not ErrorCode.NONE:
            joined = response if isinstance(response, JoinGroupResponse) else member
            member.refused(attempt, now_ms, request, code, member_id=joined.member_id)
        elif isinstance(response, JoinGroupResponse):
            self._joined(attempt, response, now_ms)
        elif isinstance(response, SyncGroupResponse):
            self._synced(attempt, bytes(response.assignment), now_ms)
        else:
            member.heartbeat_succeeded(attempt, now_ms)

    def refused(self, request: GroupRequest, attempt: int, now_ms: float, code: ErrorCode) -> None:
        self.member.refused(attempt, now_ms, request, code)

    def farewell(self) -> Coroutine[object, object, object] | None:
        """The sending of LeaveGroup, None when the group expects none."""
        leave = self.member.take_leave()
        if leave is None:
            return None
        member_id, reason = leave[0], leave[1][:REASON_LIMIT]

        def build(version: int) -> AnyRequest:
            if version < 3:
                return LeaveGroupRequest(group_id=self._link.group_id, member_id=member_id)
            return LeaveGroupRequest(
                group_id=self._link.group_id,
                members=[MemberIdentity(member_id=member_id, reason=reason)],
            )

        return self._link.ask(LeaveGroupRequest, build, purpose=OFFSETS)

    async def _send(self, request: GroupRequest) -> object:
        match request:
            case GroupRequest.JOIN:
                timeout_ms = self._config.max_poll_interval_ms + JOIN_LAPSE_MS
                return await self._ask(
                    JoinGroupRequest,
                    self._join_request(),
                    timeout_ms=max(self._config.request_timeout_ms, timeout_ms),
                )
            case GroupRequest.LEAD:
                return await self._lead()
            case GroupRequest.SYNC:
                return await self._ask(SyncGroupRequest, self._sync_request())
        assert request is GroupRequest.HEARTBEAT, request
        member = self.member
        if member.is_leader:
            # The leader watches the topics of all members, for the whole group.
            for topic in self._led_wanted:
                self._client.updates.used(topic)
        return await self._ask(
            HeartbeatRequest,
            HeartbeatRequest(
                group_id=self._link.group_id,
                generation_id=member.generation_id,
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
            ),
        )

    async def _ask(
        self, kind: type[AnyRequest], request: Request[Response], timeout_ms: float | None = None
    ) -> Response:
        return await self._link.ask(
            kind, lambda version: request, purpose=MEMBERSHIP, timeout_ms=timeout_ms
        )

    def _join_request(self) -> JoinGroupRequest:
        member, config = self.member, self._config
        generation_id = member.owned_generation_id
        reason = member.rejoin_reason
        return JoinGroupRequest(
            group_id=self._link.group_id,
            session_timeout_ms=config.session_timeout_ms,
            rebalance_timeout_ms=config.max_poll_interval_ms,
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[
                JoinGroupRequestProtocol(
                    name=name,
                    metadata=_write_subscription(
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
            group_id=self._link.group_id,
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
            self._led_topics = None

    def _synced(self, attempt: int, assignment: bytes, now_ms: float) -> None:
        try:
            partitions, user_data = _read_assignment(assignment)
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
            # The leader knows an older subscription of this member: tell it the current one.
            self.member.request_rejoin("assigned topics that are not subscribed to (any more)")

    # -- leading --------------------------------------------------------------------------------

    async def _lead(self) -> dict[str, bytes]:
        """Work out the assignments, with metadata fetched just now."""
        joined = self._round.joined
        assert joined is not None, "only the leader leads"
        subscriptions: dict[str, Subscription] = {}
        versions: dict[str, int] = {}
        for each in joined.members:
            metadata = bytes(each.metadata)
            versions[each.member_id] = payload_version(metadata)
            subscriptions[each.member_id] = _read_subscription(metadata, each.group_instance_id)
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
            member_id: _write_assignment(
                assignments.get(member_id, ()),
                assignor.assignment_user_data(member_id),
                versions[member_id],
            )
            for member_id in subscriptions
        }

    def _existing(self, topics: Iterable[str]) -> Topics:
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


def _check(
    assignor: ConsumerPartitionAssignor,
    assignments: Mapping[str, Iterable[TopicPartition]],
    subscriptions: Mapping[str, Subscription],
) -> None:
    """Refuse what would break the group; only an assignor of the user's own returns that."""
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


def _write_subscription(subscription: Subscription) -> bytes:
    """For JoinGroup, in the newest version (older members read its beginning)."""
    generation_id = subscription.generation_id
    message = ConsumerProtocolSubscription(
        topics=sorted(subscription.topics),
        user_data=subscription.user_data,
        owned_partitions=[
            OwnedTopic(topic=topic, partitions=partitions)
            for topic, partitions in by_topic(sorted(subscription.owned_partitions)).items()
        ],
        generation_id=-1 if generation_id is None else generation_id,
        rack_id=subscription.rack_id,
    )
    return encode_payload(message, NEWEST_VERSION)


def _read_subscription(metadata: bytes, group_instance_id: str | None) -> Subscription:
    read = decode_payload(ConsumerProtocolSubscription, metadata)
    return Subscription(
        topics=tuple(read.topics),
        owned_partitions=tuple(
            TopicPartition(each.topic, partition)
            for each in read.owned_partitions
            for partition in each.partitions
        ),
        generation_id=read.generation_id if read.generation_id >= 0 else None,
        rack_id=read.rack_id or None,
        group_instance_id=group_instance_id,
        user_data=None if read.user_data is None else bytes(read.user_data),
    )


def _write_assignment(
    partitions: Iterable[TopicPartition], user_data: bytes | None, version: int
) -> bytes:
    message = ConsumerProtocolAssignment(
        assigned_partitions=[
            AssignedTopic(topic=topic, partitions=indexes)
            for topic, indexes in by_topic(sorted(partitions)).items()
        ],
        user_data=user_data,
    )
    return encode_payload(message, version)


def _read_assignment(assignment: bytes) -> tuple[tuple[TopicPartition, ...], bytes | None]:
    """Partitions and the assignor's own bytes; no bytes at all are no partitions."""
    if not assignment:
        return (), None
    read = decode_payload(ConsumerProtocolAssignment, assignment)
    partitions = tuple(
        TopicPartition(each.topic, partition)
        for each in read.assigned_partitions
        for partition in each.partitions
    )
    return partitions, None if read.user_data is None else bytes(read.user_data)
