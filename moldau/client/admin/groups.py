"""Admin calls about groups, their members and their committed offsets.

A call about several groups or partitions returns for each its value or its error, so that the error
of one hides nothing of the others; only lists of everything raise.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from moldau.client.admin.calls import AdminCalls, check_several, partition_entries
from moldau.client.cluster.coordinators import PASSING, CoordinatorCall, KeyType, Refusal
from moldau.client.cluster.metadata_cache import Broker
from moldau.client.errors import KafkaError, UnsupportedByBroker, raise_for
from moldau.protocol.errors import ErrorCode, RemoteProtocolError
from moldau.protocol.messages import p08_offset_commit as commit
from moldau.protocol.messages import p09_offset_fetch as fetch
from moldau.protocol.messages import p13_leave_group as leave
from moldau.protocol.messages import p15_describe_groups as classic
from moldau.protocol.messages import p47_offset_delete as delete
from moldau.protocol.messages import p69_consumer_group_describe as consumer
from moldau.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    Payload,
    decode_payload,
)
from moldau.protocol.messages.p16_list_groups import ListGroupsRequest, ListGroupsResponse
from moldau.protocol.messages.p42_delete_groups import DeleteGroupsRequest
from moldau.protocol.schema import AnyRequest
from moldau.protocol.types import Buffer, TopicPartition, by_topic

CLASSIC = "classic"
CONSUMER = "consumer"
EMPTY_STATES = ("Empty", "Dead")
"""States of a group without members, whose offsets can be changed from outside."""


@dataclass(frozen=True, slots=True)
class GroupListing:
    """One group of a list. `group_type` is "classic", "consumer", "share" or "streams"; `state` is
    Kafka's word ("Stable", "Empty", …).
    """

    group_id: str
    group_type: str
    protocol_type: str
    state: str
    coordinator_id: int


@dataclass(frozen=True, slots=True)
class GroupMember:
    """One member.

    `assignment` is what it owns, `target` what it is to own. `target` and `member_epoch` are None
    in classic groups, `member_type` is None where the broker does not tell.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    host: str
    assignment: frozenset[TopicPartition]
    target: frozenset[TopicPartition] | None = None
    member_epoch: int | None = None
    member_type: str | None = None
    rack_id: str | None = None
    subscribed_topics: tuple[str, ...] = ()
    subscribed_regex: str | None = None


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """One group and its members; the epochs are None in classic groups.

    `assignor` is the assignment strategy in use, "" while there is none. Partitions of classic
    members are known only where `protocol_type` is "consumer".
    """

    group_id: str
    group_type: str
    protocol_type: str
    state: str
    assignor: str
    coordinator: Broker
    members: tuple[GroupMember, ...]
    group_epoch: int | None = None
    assignment_epoch: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the group has no members."""
        return self.state in EMPTY_STATES


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A group's committed position in a partition; the leader epoch is -1 where not known."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


OFFSET_FETCH_VERSIONS: Final = (8, 9)
"""They have names, not ids: committed offsets outlive their topics, whose ids become unknown."""
ONE_GROUP_VERSIONS: Final = (2, 7)
"""Before version 8 OffsetFetch is about one group (Apache Kafka before 3.0)."""
FIRST_STABLE_VERSION: Final = 7
"""Since then OffsetFetch can be asked to wait for open transactions (KIP-447)."""
OFFSET_COMMIT_VERSIONS: Final = (2, 9)
LEAVE_GROUP_VERSIONS: Final = (3, 5)
"""Before version 3 a request cannot name an instance (KIP-345)."""
NO_GENERATION: Final = -1
"""The generation of a commit from outside of the group."""
NO_OFFSET: Final = -1

NOT_THIS_KIND: Final = frozenset((ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION))
"""Answers to ConsumerGroupDescribe after which the group may still be a classic one."""

CONSUMER_PROTOCOL_TYPE: Final = "consumer"
MEMBER_TYPES: Final = {0: CLASSIC, 1: CONSUMER}

Offsets = dict[TopicPartition, CommittedOffset]


class GroupCalls(AdminCalls):
    """The part of `Admin` that deals with groups."""

    async def find_coordinators(
        self, key_type: KeyType, keys: Collection[str], *, timeout_ms: float | None = None
    ) -> dict[str, Broker | KafkaError]:
        """The coordinator of each group or transactional id, or why there is none."""
        check_several(keys)
        return await self._coordinators.find(key_type, keys, timeout_ms=timeout_ms)

    async def list_groups(
        self,
        *,
        states: Collection[str] = (),
        group_types: Collection[str] = (),
        timeout_ms: float | None = None,
    ) -> list[GroupListing]:
        """All groups of the cluster in the order of their ids, each broker asked for its own.

        Args:
            states, group_types: only these, in Kafka's words (KIP-518, KIP-848); empty for all.

        Raises:
            UnsupportedByBroker: a broker does not know `states` or `group_types`.
            AuthorizationFailed, KafkaError: a broker did not answer; a list without its groups
                would look complete.
        """
        check_several(states, group_types)
        request = ListGroupsRequest(states_filter=list(states), types_filter=list(group_types))

        def read(broker_id: int, response: ListGroupsResponse) -> list[GroupListing]:
            raise_for(response.error_code, None, f"groups of broker {broker_id}")
            return [
                GroupListing(
                    each.group_id,
                    each.group_type or CLASSIC,
                    each.protocol_type,
                    each.group_state,
                    broker_id,
                )
                for each in response.groups
            ]

        return await self._ask_every_broker(
            request,
            read,
            lambda each: each.group_id,
            what="list groups",
            timeout_ms=timeout_ms,
            versions=(5, 5) if group_types else (4, 5) if states else None,
        )

    async def describe_groups(
        self, group_ids: Collection[str], *, timeout_ms: float | None = None
    ) -> dict[str, GroupDescription | KafkaError]:
        """State and members of consumer groups of both protocols.

        A group that does not exist is an error GROUP_ID_NOT_FOUND.
        """
        check_several(group_ids)
        found = await self._coordinators.ask(_DESCRIBE_CONSUMER, group_ids, timeout_ms=timeout_ms)
        others = [
            group_id
            for group_id, answer in found.items()
            if isinstance(answer, KafkaError) and answer.code in NOT_THIS_KIND
        ]
        older = await self._coordinators.ask(_DESCRIBE_CLASSIC, others, timeout_ms=timeout_ms)
        return {**found, **older}

    async def delete_groups(
        self, group_ids: Collection[str], *, timeout_ms: float | None = None
    ) -> dict[str, KafkaError | None]:
        """Delete groups with all their committed offsets; None for each that is deleted.

        A group with members is an error NON_EMPTY_GROUP, an unknown one GROUP_ID_NOT_FOUND.
        """
        check_several(group_ids)
        outcome = await self._coordinators.ask(_DELETE, group_ids, timeout_ms=timeout_ms)
        return {
            group_id: answer if isinstance(answer, KafkaError) else None
            for group_id, answer in outcome.items()
        }

    async def remove_group_members(
        self,
        group_id: str,
        group_instance_ids: Collection[str],
        *,
        reason: str | None = None,
        timeout_ms: float | None = None,
    ) -> dict[str, KafkaError | None]:
        """Take static members out of a group, so that it need not wait for their sessions to end
        (KIP-345).

        Returns for each instance None, or why it is still there (UNKNOWN_MEMBER_ID).

        Args:
            reason: for the brokers' log (KIP-800).
        """
        check_several(group_instance_ids)

        def request(_: Sequence[str]) -> AnyRequest:
            return leave.LeaveGroupRequest(
                group_id=group_id,
                members=[
                    leave.MemberIdentity(member_id="", group_instance_id=each, reason=reason)
                    for each in group_instance_ids
                ],
            )

        call: CoordinatorCall[dict[str, int]] = CoordinatorCall(
            KeyType.GROUP,
            "remove members of group",
            request,
            lambda response, _: {
                each.group_instance_id or "": each.error_code for each in response.members
            },
            versions=LEAVE_GROUP_VERSIONS,
        )
        return await self._try_items(
            call,
            group_id,
            group_instance_ids,
            lambda each: f"remove {each} from group {group_id}",
            timeout_ms,
        )

    # -- committed offsets ------------------------------------------------------------------------

    async def list_group_offsets(
        self,
        group_ids: Collection[str],
        *,
        require_stable: bool = False,
        timeout_ms: float | None = None,
    ) -> dict[str, dict[TopicPartition, CommittedOffset] | KafkaError]:
        """All committed offsets of the groups; none for a group that does not exist.

        Args:
            require_stable: wait until no open transaction can change them any more (KIP-447).
        """
        check_several(group_ids)
        call: CoordinatorCall[Offsets] = CoordinatorCall(
            KeyType.GROUP,
            "offsets of group",
            lambda keys: fetch.OffsetFetchRequest(
                groups=[
                    fetch.OffsetFetchRequestGroup(group_id=group_id, topics=None)
                    for group_id in keys
                ],
                require_stable=require_stable,
            ),
            _read_offsets,
            _groups,
            versions=OFFSET_FETCH_VERSIONS,
        )
        found = await self._coordinators.ask(call, group_ids, timeout_ms=timeout_ms)
        older = [each for each, got in found.items() if isinstance(got, UnsupportedByBroker)]
        if not older:
            return found
        one_by_one: CoordinatorCall[Offsets] = CoordinatorCall(
            KeyType.GROUP,
            "offsets of group",
            lambda keys: fetch.OffsetFetchRequest(
                group_id=keys[0], topics=None, require_stable=require_stable
            ),
            _read_offsets,
            versions=(
                FIRST_STABLE_VERSION if require_stable else ONE_GROUP_VERSIONS[0],
                ONE_GROUP_VERSIONS[1],
            ),
        )
        asked = await self._coordinators.ask(one_by_one, older, timeout_ms=timeout_ms)
        return {**found, **asked}

    async def alter_group_offsets(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        *,
        timeout_ms: float | None = None,
    ) -> dict[TopicPartition, KafkaError | None]:
        """Commit offsets for a group without members; it is created when it does not exist.

        Returns for each partition None or why its offset was not committed. A group with members
        answers UNKNOWN_MEMBER_ID for all of them.
        """

        def request(_: Sequence[str]) -> AnyRequest:
            topics: defaultdict[str, list[commit.OffsetCommitRequestPartition]] = defaultdict(list)
            for partition, committed in sorted(offsets.items()):
                topics[partition.topic].append(
                    commit.OffsetCommitRequestPartition(
                        partition_index=partition.partition,
                        committed_offset=committed.offset,
                        committed_leader_epoch=committed.leader_epoch,
                        committed_metadata=committed.metadata,
                    )
                )
            return commit.OffsetCommitRequest(
                group_id=group_id,
                generation_id_or_member_epoch=NO_GENERATION,
                topics=[
                    commit.OffsetCommitRequestTopic(name=name, partitions=partitions)
                    for name, partitions in topics.items()
                ],
            )

        call: CoordinatorCall[dict[TopicPartition, int]] = CoordinatorCall(
            KeyType.GROUP,
            "commit offsets of group",
            request,
            _read_codes,
            versions=OFFSET_COMMIT_VERSIONS,
        )
        return await self._try_items(
            call, group_id, offsets, lambda each: f"{call.what} {group_id}: {each}", timeout_ms
        )

    async def delete_group_offsets(
        self,
        group_id: str,
        partitions: Collection[TopicPartition],
        *,
        timeout_ms: float | None = None,
    ) -> dict[TopicPartition, KafkaError | None]:
        """Delete a group's committed offsets of partitions (KIP-496).

        Returns for each partition None or why it is still there: GROUP_SUBSCRIBED_TO_TOPIC while
        a member of the group reads the topic.
        """
        check_several(partitions)

        def request(_: Sequence[str]) -> AnyRequest:
            return delete.OffsetDeleteRequest(
                group_id=group_id,
                topics=[
                    delete.OffsetDeleteRequestTopic(
                        name=topic,
                        partitions=[
                            delete.OffsetDeleteRequestPartition(partition_index=index)
                            for index in indexes
                        ],
                    )
                    for topic, indexes in by_topic(sorted(partitions)).items()
                ],
            )

        call: CoordinatorCall[dict[TopicPartition, int]] = CoordinatorCall(
            KeyType.GROUP, "delete offsets of group", request, _read_codes
        )
        return await self._try_items(
            call, group_id, partitions, lambda each: f"{call.what} {group_id}: {each}", timeout_ms
        )


def _groups(response: Any) -> Iterable[tuple[str, Any]]:
    """The entries of a response about several groups."""
    return ((group.group_id, group) for group in response.groups)


def _read_offsets(
    group: fetch.OffsetFetchResponse | fetch.OffsetFetchResponseGroup, _: Broker
) -> Offsets | Refusal:
    """A group's committed offsets; an error of one partition is the group's."""
    error_code: int = ErrorCode.NONE
    offsets: Offsets = {}
    for topic in group.topics:
        for entry in topic.partitions:
            error_code = error_code or entry.error_code
            if entry.committed_offset != NO_OFFSET:
                offsets[TopicPartition(topic.name, entry.partition_index)] = CommittedOffset(
                    entry.committed_offset, entry.committed_leader_epoch, entry.metadata or ""
                )
    return Refusal(error_code) if error_code != ErrorCode.NONE else offsets


def _read_codes(
    response: commit.OffsetCommitResponse | delete.OffsetDeleteResponse, _: Broker
) -> dict[TopicPartition, int] | Refusal:
    """The error code of each partition; a passing one is about the whole group."""
    codes = {each: entry.error_code for each, entry in partition_entries(response.topics)}
    passing = [code for code in codes.values() if ErrorCode.of(code) in PASSING]
    return Refusal(passing[0]) if passing else codes


# -- descriptions --------------------------------------------------------------------------------


def _read_consumer(group: consumer.DescribedGroup, broker: Broker) -> GroupDescription:
    """A group of KIP-848."""
    return GroupDescription(
        group.group_id,
        CONSUMER,
        CONSUMER_PROTOCOL_TYPE,
        group.group_state,
        group.assignor_name,
        broker,
        tuple(map(_consumer_member, group.members)),
        group.group_epoch,
        group.assignment_epoch,
    )


def _consumer_member(member: consumer.Member) -> GroupMember:
    def partitions(assignment: consumer.Assignment) -> frozenset[TopicPartition]:
        return frozenset(
            TopicPartition(topic.topic_name, index)
            for topic in assignment.topic_partitions
            for index in topic.partitions
        )

    return GroupMember(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        partitions(member.assignment),
        partitions(member.target_assignment),
        member.member_epoch,
        MEMBER_TYPES.get(member.member_type),
        member.rack_id,
        tuple(member.subscribed_topic_names),
        member.subscribed_topic_regex or None,
    )


def _read_classic(group: classic.DescribedGroup, broker: Broker) -> GroupDescription | Refusal:
    if group.group_state == "Dead" and not group.members:
        # Before version 6 a group that does not exist is described like this.
        return Refusal(ErrorCode.GROUP_ID_NOT_FOUND)
    is_consumers = group.protocol_type == CONSUMER_PROTOCOL_TYPE
    return GroupDescription(
        group.group_id,
        CLASSIC,
        group.protocol_type,
        group.group_state,
        group.protocol_data,
        broker,
        tuple(_classic_member(each, is_consumers=is_consumers) for each in group.members),
    )


def _classic_member(member: classic.DescribedGroupMember, *, is_consumers: bool) -> GroupMember:
    """A member of a classic group. What it is assigned and subscribes to are bytes of the members'
    own: they can be anything, and are left out where they are not readable.
    """
    assignment: ConsumerProtocolAssignment | None = None
    subscription: ConsumerProtocolSubscription | None = None
    if is_consumers:
        assignment = _embedded(ConsumerProtocolAssignment, member.member_assignment)
        subscription = _embedded(ConsumerProtocolSubscription, member.member_metadata)
    return GroupMember(
        member.member_id,
        member.group_instance_id,
        member.client_id,
        member.client_host,
        frozenset(
            TopicPartition(topic.topic, index)
            for topic in (() if assignment is None else assignment.assigned_partitions)
            for index in topic.partitions
        ),
        subscribed_topics=() if subscription is None else tuple(subscription.topics),
    )


def _embedded(kind: type[Payload], payload: Buffer) -> Payload | None:
    try:
        return decode_payload(kind, payload)
    except RemoteProtocolError:
        return None


_DESCRIBE_CONSUMER: Final[CoordinatorCall[GroupDescription]] = CoordinatorCall(
    KeyType.GROUP,
    "describe group",
    lambda keys: consumer.ConsumerGroupDescribeRequest(group_ids=list(keys)),
    _read_consumer,
    _groups,
)
_DESCRIBE_CLASSIC: Final[CoordinatorCall[GroupDescription]] = CoordinatorCall(
    KeyType.GROUP,
    "describe group",
    lambda keys: classic.DescribeGroupsRequest(groups=list(keys)),
    _read_classic,
    _groups,
)
_DELETE: Final[CoordinatorCall[bool]] = CoordinatorCall(
    KeyType.GROUP,
    "delete group",
    lambda keys: DeleteGroupsRequest(groups_names=list(keys)),
    lambda *_: True,
    lambda response: ((each.group_id, each) for each in response.results),
)
