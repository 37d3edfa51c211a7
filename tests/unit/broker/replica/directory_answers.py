"""A controller's answers to AssignReplicasToDirs."""

from __future__ import annotations

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p73_assign_replicas_to_dirs import (
    AssignReplicasToDirsResponse,
    DirectoryDataResponse,
    PartitionDataResponse,
    TopicDataResponse,
)
from tests.unit.broker.scripted_channel import Sent


def answer(
    sent: Sent, *, errors: dict[int, ErrorCode] | None = None, skip: tuple[int, ...] = ()
) -> None:
    """Take everything over, except what `errors` names by partition, or `skip` leaves out."""
    errors = errors or {}
    sent.request.to_bytes(0)  # what is sent fits the wire
    sent.answer(
        AssignReplicasToDirsResponse(
            directories=[
                DirectoryDataResponse(
                    id=directory.id,
                    topics=[
                        TopicDataResponse(
                            topic_id=topic.topic_id,
                            partitions=[
                                PartitionDataResponse(
                                    partition_index=partition.partition_index,
                                    error_code=errors.get(
                                        partition.partition_index, ErrorCode.NONE
                                    ),
                                )
                                for partition in topic.partitions
                                if partition.partition_index not in skip
                            ],
                        )
                        for topic in directory.topics
                    ],
                )
                for directory in sent.request.directories
            ]
        )
    )
