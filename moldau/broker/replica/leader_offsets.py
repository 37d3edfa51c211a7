"""Where the leader's logs begin and end: ListOffsets, asked by a follower that is out of range.

Owns the two requests and their answers. Must not keep anything. Invariant: every partition that is
asked about gets a step, whatever the leader leaves out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from moldau.broker.replica.following import FollowerPosition, FollowerStep
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p01_fetch import PartitionData
from moldau.protocol.messages.p02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from moldau.protocol.types import TopicPartition

if TYPE_CHECKING:
    from moldau.broker.replica.fetched_partitions import Followed
    from moldau.runtime.connection import Connection

LATEST: Final = -1
EARLIEST: Final = -2

FoundOffset = tuple[ErrorCode, int]


async def ask_leader_offsets(
    connection: Connection, replica_id: int, asking: Mapping[Followed, FollowerPosition]
) -> dict[Followed, FollowerStep]:
    """Ask for both ends of each partition's log and apply them; what to do next.

    Raises as `Connection.send`.
    """
    latest = connection.submit(_request(replica_id, asking, LATEST))
    earliest = connection.submit(_request(replica_id, asking, EARLIEST))
    ends = _found(await latest)  # type: ignore[arg-type]
    starts = _found(await earliest)  # type: ignore[arg-type]
    steps: dict[Followed, FollowerStep] = {}
    for followed, requested in asking.items():
        nothing = (ErrorCode.UNKNOWN_SERVER_ERROR, -1)
        end_error, end_offset = ends.get(requested.topic_partition, nothing)
        start_error, start_offset = starts.get(requested.topic_partition, nothing)
        error = end_error if end_error is not ErrorCode.NONE else start_error
        partition = followed.partition
        if error is ErrorCode.NONE:
            steps[followed] = partition.apply_leader_offsets(requested, start_offset, end_offset)
            continue
        refused = partition.apply_fetched(requested, PartitionData(error_code=error))
        # Out of range is no answer to this question.
        steps[followed] = FollowerStep.BACK_OFF if refused is FollowerStep.ASK_OFFSETS else refused
    return steps


def _request(
    replica_id: int, asking: Mapping[Followed, FollowerPosition], timestamp: int
) -> ListOffsetsRequest:
    topics: dict[str, ListOffsetsTopic] = {}
    for position in asking.values():
        topic, partition_index = position.topic_partition
        if topic not in topics:
            topics[topic] = ListOffsetsTopic(name=topic, partitions=[])
        topics[topic].partitions.append(
            ListOffsetsPartition(
                partition_index=partition_index,
                current_leader_epoch=position.leader_epoch,
                timestamp=timestamp,
            )
        )
    return ListOffsetsRequest(replica_id=replica_id, topics=list(topics.values()))


def _found(response: ListOffsetsResponse) -> dict[TopicPartition, FoundOffset]:
    return {
        TopicPartition(topic.name, found.partition_index): (
            ErrorCode.of(found.error_code),
            found.offset,
        )
        for topic in response.topics
        for found in topic.partitions
    }
