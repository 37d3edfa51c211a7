"""Admin calls about groups and their committed offsets.

Owns the translation between typed values and messages. Invariant: a call about several groups or
partitions returns for each its value or its error, so that one group's trouble hides nothing of
the others; only lists of everything raise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from moldau.client.admin.arguments import check_several
from moldau.client.admin.group_answers import (
    PartitionErrors,
    partition_errors,
    read_classic,
    read_consumer,
    read_deleted,
    read_offsets,
    read_offsets_of_one,
)
from moldau.client.admin.group_types import (
    CLASSIC,
    CommittedOffset,
    GroupDescription,
    GroupListing,
    Offsets,
)
from moldau.client.cluster.cluster_client import ClusterClient, Versions, raise_for
from moldau.client.cluster.coordinators import (
    CoordinatorCall,
    Coordinators,
    KeyType,
    Refusal,
)
from moldau.client.cluster.metadata_cache import Broker
from moldau.client.errors import KafkaError, UnsupportedByBroker, error_for
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p08_offset_commit as commit
from moldau.protocol.messages import p09_offset_fetch as fetch
from moldau.protocol.messages import p15_describe_groups as classic
from moldau.protocol.messages import p47_offset_delete as delete
from moldau.protocol.messages import p69_consumer_group_describe as consumer
from moldau.protocol.messages.p16_list_groups import ListGroupsRequest
from moldau.protocol.messages.p42_delete_groups import DeleteGroupsRequest
from moldau.protocol.schema import Message
from moldau.protocol.types import TopicPartition

Value = TypeVar("Value")

#: Names, not ids: committed offsets outlive their topics, whose ids then nobody can resolve.
OFFSET_FETCH_VERSIONS: Final = (8, 9)
ONE_GROUP_VERSIONS: Final = (2, 7)
"""Before version 8 OffsetFetch is about one group (Apache Kafka before 3.0)."""
FIRST_STABLE_VERSION: Final = 7
"""Since then OffsetFetch can be asked to wait for open transactions (KIP-447)."""
OFFSET_COMMIT_VERSIONS: Final = (2, 9)
NOBODY: Final = -1
"""The generation of a commit that comes from outside of the group."""

NOT_THIS_KIND: Final = frozenset((ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION))
"""Answers to ConsumerGroupDescribe after which the group may still be a classic one."""


class GroupCalls:
    """The part of `Admin` that deals with groups."""

    _client: ClusterClient
    _coordinators: Coordinators

    async def find_coordinators(
        self, key_type: KeyType, keys: Collection[str], *, timeout_ms: float | None = None
    ) -> dict[str, Broker | KafkaError]:
        """Who coordinates each group or transactional id, or why nobody does."""
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
            AuthorizationFailed, KafkaError: a broker did not tell; a list that lacks some would
            look whole.
        """
        check_several(states, group_types)
        request = ListGroupsRequest(states_filter=list(states), types_filter=list(group_types))

        def read(broker_id: int, response: Any) -> list[GroupListing]:
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

        found = await ask_every_broker(
            self._client,
            request,
            read,
            what="list groups",
            timeout_ms=timeout_ms,
            versions=(5, 5) if group_types else (4, 5) if states else None,
        )
        # A group that moves while brokers are asked may be told of twice.
        return sorted(
            {each.group_id: each for each in found}.values(), key=lambda each: each.group_id
        )

    async def describe_groups(
        self, group_ids: Collection[str], *, timeout_ms: float | None = None
    ) -> dict[str, GroupDescription | KafkaError]:
        """State and members of consumer groups of both protocols.

        A group that is not there is an error GROUP_ID_NOT_FOUND.
        """
        check_several(group_ids)
        asked = list(dict.fromkeys(group_ids))
        found = await self._coordinators.ask(DESCRIBE_CONSUMER, asked, timeout_ms=timeout_ms)
        others = [group_id for group_id, answer in found.items() if _is_of_another_kind(answer)]
        older = await self._coordinators.ask(DESCRIBE_CLASSIC, others, timeout_ms=timeout_ms)
        return {**found, **older}

    async def delete_groups(
        self, group_ids: Collection[str], *, timeout_ms: float | None = None
    ) -> dict[str, KafkaError | None]:
        """Delete groups with all they have committed; None for each that is gone.

        A group with members is an error NON_EMPTY_GROUP, an unknown one GROUP_ID_NOT_FOUND.
        """
        check_several(group_ids)
        outcome = await self._coordinators.ask(DELETE, group_ids, timeout_ms=timeout_ms)
        return {
            group_id: answer if isinstance(answer, KafkaError) else None
            for group_id, answer in outcome.items()
        }

    async def list_group_offsets(
        self,
        group_ids: Collection[str],
        *,
        require_stable: bool = False,
        timeout_ms: float | None = None,
    ) -> dict[str, dict[TopicPartition, CommittedOffset] | KafkaError]:
        """Everything the groups have committed; nothing for a group that is not there.

        Args:
            require_stable: wait until no open transaction can change them any more (KIP-447).
        """
        check_several(group_ids)
        call = CoordinatorCall(
            KeyType.GROUP,
            "offsets of group",
            lambda keys: fetch.OffsetFetchRequest(
                groups=[
                    fetch.OffsetFetchRequestGroup(group_id=group_id, topics=None)
                    for group_id in keys
                ],
                require_stable=require_stable,
            ),
            read_offsets,
            versions=OFFSET_FETCH_VERSIONS,
        )
        found = await self._coordinators.ask(call, group_ids, timeout_ms=timeout_ms)
        older = [each for each, got in found.items() if isinstance(got, UnsupportedByBroker)]
        if not older:
            return found
        one_by_one = CoordinatorCall(
            KeyType.GROUP,
            "offsets of group",
            lambda keys: fetch.OffsetFetchRequest(
                group_id=keys[0], topics=None, require_stable=require_stable
            ),
            read_offsets_of_one,
            versions=(
                FIRST_STABLE_VERSION if require_stable else ONE_GROUP_VERSIONS[0],
                ONE_GROUP_VERSIONS[1],
            ),
            keys_per_request=1,
        )
        told = await self._coordinators.ask(one_by_one, older, timeout_ms=timeout_ms)
        return {**found, **told}

    async def alter_group_offsets(
        self, group_id: str, offsets: Offsets, *, timeout_ms: float | None = None
    ) -> dict[TopicPartition, KafkaError | None]:
        """Commit offsets for a group that nobody is in; it is made when it is not there.

        Returns for each partition None or why its offset was not committed. A group with members
        answers UNKNOWN_MEMBER_ID for all of them.
        """

        def request(_: Sequence[str]) -> Message:
            topics: dict[str, commit.OffsetCommitRequestTopic] = {}
            for partition, committed in sorted(offsets.items()):
                topic = topics.setdefault(
                    partition.topic, commit.OffsetCommitRequestTopic(name=partition.topic)
                )
                topic.partitions.append(
                    commit.OffsetCommitRequestPartition(
                        partition_index=partition.partition,
                        committed_offset=committed.offset,
                        committed_leader_epoch=committed.leader_epoch,
                        committed_metadata=committed.metadata,
                    )
                )
            return commit.OffsetCommitRequest(
                group_id=group_id,
                generation_id_or_member_epoch=NOBODY,
                topics=list(topics.values()),
            )

        call = CoordinatorCall(
            KeyType.GROUP,
            "commit offsets of group",
            request,
            lambda response, *_: {group_id: partition_errors(response)},
            versions=OFFSET_COMMIT_VERSIONS,
        )
        return await self._for_partitions(call, group_id, offsets, timeout_ms)

    async def delete_group_offsets(
        self,
        group_id: str,
        partitions: Collection[TopicPartition],
        *,
        timeout_ms: float | None = None,
    ) -> dict[TopicPartition, KafkaError | None]:
        """Forget what a group has committed for partitions (KIP-496).

        Returns for each partition None or why it is still there: GROUP_SUBSCRIBED_TO_TOPIC while
        somebody in the group reads the topic.
        """
        check_several(partitions)

        def request(_: Sequence[str]) -> Message:
            topics: dict[str, delete.OffsetDeleteRequestTopic] = {}
            for partition in sorted(partitions):
                topic = topics.setdefault(
                    partition.topic, delete.OffsetDeleteRequestTopic(name=partition.topic)
                )
                topic.partitions.append(
                    delete.OffsetDeleteRequestPartition(partition_index=partition.partition)
                )
            return delete.OffsetDeleteRequest(group_id=group_id, topics=list(topics.values()))

        def read(response: Any, *_: object) -> Mapping[str, PartitionErrors | Refusal]:
            if response.error_code != ErrorCode.NONE:
                return {group_id: Refusal(response.error_code)}
            return {group_id: partition_errors(response)}

        call = CoordinatorCall(KeyType.GROUP, "delete offsets of group", request, read)
        return await self._for_partitions(call, group_id, partitions, timeout_ms)

    async def _for_partitions(
        self,
        call: CoordinatorCall[PartitionErrors],
        group_id: str,
        partitions: Iterable[TopicPartition],
        timeout_ms: float | None,
    ) -> dict[TopicPartition, KafkaError | None]:
        answer = (await self._coordinators.ask(call, [group_id], timeout_ms=timeout_ms))[group_id]
        if isinstance(answer, KafkaError):
            return dict.fromkeys(partitions, answer)
        outcome: dict[TopicPartition, KafkaError | None] = {}
        for partition in partitions:
            code = answer.get(partition, ErrorCode.UNKNOWN_SERVER_ERROR)
            outcome[partition] = (
                None
                if code == ErrorCode.NONE
                else error_for(code, None, f"{call.what} {group_id}: {partition}", final=True)
            )
        return outcome


async def ask_every_broker(
    client: ClusterClient,
    request: Message,
    read: Callable[[int, Any], list[Value]],
    *,
    what: str,
    timeout_ms: float | None,
    versions: Versions | None = None,
) -> list[Value]:
    """What all brokers tell together, in one go: while a broker goes away, what it told of is told
    by others.

    Args:
        versions: the lowest and the highest version that can say what the request says.

    Raises:
        UnsupportedByBroker: a broker serves none of `versions`.
        KafkaError: a broker did not tell within the time.
    """

    async def ask(broker_id: int) -> list[Value]:
        return read(broker_id, await client.ask_node(broker_id, request, versions=versions))

    async def attempt() -> list[Value]:
        await client.refresh_metadata([])
        told = await asyncio.gather(*(ask(each) for each in sorted(client.metadata.brokers)))
        return [each for values in told for each in values]

    return await client.retry(attempt, what=what, timeout_ms=timeout_ms)


def _is_of_another_kind(answer: GroupDescription | KafkaError) -> bool:
    return isinstance(answer, KafkaError) and answer.code in NOT_THIS_KIND


DESCRIBE_CONSUMER: Final[CoordinatorCall[GroupDescription]] = CoordinatorCall(
    KeyType.GROUP,
    "describe group",
    lambda keys: consumer.ConsumerGroupDescribeRequest(group_ids=list(keys)),
    read_consumer,
)
DESCRIBE_CLASSIC: Final[CoordinatorCall[GroupDescription]] = CoordinatorCall(
    KeyType.GROUP,
    "describe group",
    lambda keys: classic.DescribeGroupsRequest(groups=list(keys)),
    read_classic,
)
DELETE: Final[CoordinatorCall[bool]] = CoordinatorCall(
    KeyType.GROUP,
    "delete group",
    lambda keys: DeleteGroupsRequest(groups_names=list(keys)),
    read_deleted,
)
