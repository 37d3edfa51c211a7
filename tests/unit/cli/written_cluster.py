"""What a cluster answers about its brokers, topics, log directories and quorum, written down.

Owns the answers of one scripted broker, which speaks for all. Must not know which command asks.
Invariant: topics come page by page, as brokers give them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p32_describe_configs as configs
from moldau.protocol.messages import p35_describe_log_dirs as logs
from moldau.protocol.messages import p46_list_partition_reassignments as moves
from moldau.protocol.messages import p55_describe_quorum as quorum
from moldau.protocol.messages import p60_describe_cluster as cluster
from moldau.protocol.messages import p75_describe_topic_partitions as topics
from moldau.protocol.schema import Message
from tests.unit.client.scripted_broker import NODE_ID, ScriptedBroker

PAGE = 2_000
GIB = 1 << 30


class Replicated(NamedTuple):
    """One partition of a topic."""

    leader: int = NODE_ID
    replicas: tuple[int, ...] = (NODE_ID,)
    isr: tuple[int, ...] = (NODE_ID,)
    size_bytes: int = 0


@dataclass
class WrittenCluster:
    """Change a field, and the next answer is another one."""

    topics: dict[str, list[Replicated]] = field(default_factory=dict)
    brokers: dict[int, bool] = field(default_factory=lambda: {NODE_ID: False})
    """Whether each is fenced, by id."""
    min_isr: dict[str, int] = field(default_factory=dict)
    config_errors: dict[str, ErrorCode] = field(default_factory=dict)
    directories: list[tuple[str, ErrorCode, int, int]] = field(
        default_factory=lambda: [("/disk", ErrorCode.NONE, 100 * GIB, 50 * GIB)]
    )
    logs_error: ErrorCode = ErrorCode.NONE
    quorum_error: ErrorCode = ErrorCode.NONE
    voters: dict[int, tuple[int, int]] = field(default_factory=lambda: {101: (9_000, 9_000)})
    """When each last fetched, and last had all, by id; the first one leads."""
    adding: dict[tuple[str, int], tuple[int, ...]] = field(default_factory=dict)

    def answer_through(self, broker: ScriptedBroker) -> None:
        broker.topics = {name: len(each) for name, each in self.topics.items()}
        for api_key, answer in {
            ApiKey.DESCRIBE_CLUSTER: self._cluster,
            ApiKey.DESCRIBE_TOPIC_PARTITIONS: self._topics,
            ApiKey.DESCRIBE_LOG_DIRS: self._logs,
            ApiKey.DESCRIBE_QUORUM: self._quorum,
            ApiKey.DESCRIBE_CONFIGS: self._configs,
            ApiKey.LIST_PARTITION_REASSIGNMENTS: self._moves,
        }.items():
            broker.script(api_key, answer)

    def _cluster(self, request: Any) -> Message:
        return cluster.DescribeClusterResponse(
            cluster_id="c",
            controller_id=NODE_ID,
            brokers=[
                cluster.DescribeClusterBroker(broker_id=each, host="h", port=1, is_fenced=fenced)
                for each, fenced in self.brokers.items()
                if request.include_fenced_brokers or not fenced
            ],
        )

    def _topics(self, request: Any) -> Message:
        named = {each.name for each in request.topics} or self.topics.keys()
        start = ("", 0)
        if request.cursor is not None:
            start = (request.cursor.topic_name, request.cursor.partition_index)
        all_of_them = [(name, index) for name in sorted(named) for index in self._indexes(name)]
        wanted = [each for each in all_of_them if each >= start]
        page, rest = wanted[:PAGE], wanted[PAGE:]
        response = topics.DescribeTopicPartitionsResponse(topics=list(self._page(page)))
        if rest:
            name, index = rest[0]
            response.next_cursor = topics.Cursor(topic_name=name, partition_index=index)
        return response

    def _indexes(self, name: str) -> range:
        return range(len(self.topics[name]))

    def _page(
        self, page: Collection[tuple[str, int]]
    ) -> Iterable[topics.DescribeTopicPartitionsResponseTopic]:
        for name in dict.fromkeys(name for name, _ in page):
            yield topics.DescribeTopicPartitionsResponseTopic(
                name=name,
                is_internal=name.startswith("__"),
                partitions=[
                    topics.DescribeTopicPartitionsResponsePartition(
                        partition_index=index,
                        leader_id=self.topics[name][index].leader,
                        replica_nodes=list(self.topics[name][index].replicas),
                        isr_nodes=list(self.topics[name][index].isr),
                    )
                    for topic, index in page
                    if topic == name
                ],
            )

    def _logs(self, request: Any) -> Message:
        first, *others = self.directories
        described = [
            logs.DescribeLogDirsTopic(
                name=name,
                partitions=[
                    logs.DescribeLogDirsPartition(
                        partition_index=index, partition_size=each.size_bytes
                    )
                    for index, each in enumerate(partitions)
                ],
            )
            for name, partitions in self.topics.items()
        ]
        return logs.DescribeLogDirsResponse(
            error_code=self.logs_error,
            results=[
                logs.DescribeLogDirsResult(
                    log_dir=path,
                    error_code=error,
                    total_bytes=total,
                    usable_bytes=usable,
                    topics=described if path == first[0] else [],
                )
                for path, error, total, usable in (first, *others)
            ],
        )

    def _quorum(self, request: Any) -> Message:
        if self.quorum_error:
            return quorum.DescribeQuorumResponse(error_code=self.quorum_error)
        partition = quorum.PartitionDataResponse(
            leader_id=next(iter(self.voters), -1),
            current_voters=[
                quorum.ReplicaState(
                    replica_id=each,
                    log_end_offset=5,
                    last_fetch_timestamp=fetched_ms,
                    last_caught_up_timestamp=caught_up_ms,
                )
                for each, (fetched_ms, caught_up_ms) in self.voters.items()
            ],
        )
        topic = quorum.TopicDataResponse(topic_name="__cluster_metadata", partitions=[partition])
        return quorum.DescribeQuorumResponse(topics=[topic])

    def _configs(self, request: Any) -> Message:
        return configs.DescribeConfigsResponse(
            results=[
                configs.DescribeConfigsResult(
                    error_code=self.config_errors.get(each.resource_name, ErrorCode.NONE),
                    resource_type=each.resource_type,
                    resource_name=each.resource_name,
                    configs=[
                        configs.DescribeConfigsResourceResult(
                            name="min.insync.replicas",
                            value=str(self.min_isr.get(each.resource_name, 1)),
                        )
                    ],
                )
                for each in request.resources
            ]
        )

    def _moves(self, request: Any) -> Message:
        return moves.ListPartitionReassignmentsResponse(
            topics=[
                moves.OngoingTopicReassignment(
                    name=name,
                    partitions=[
                        moves.OngoingPartitionReassignment(
                            partition_index=index,
                            replicas=list(self.topics[name][index].replicas),
                            adding_replicas=list(adding),
                        )
                    ],
                )
                for (name, index), adding in self.adding.items()
            ]
        )


def request_counts(broker: ScriptedBroker) -> Mapping[str, int]:
    """How many requests of each kind came, apart from those about versions and addresses."""
    counts: dict[str, int] = {}
    for request in broker.requests:
        name = type(request).__name__.removesuffix("Request")
        if name not in ("ApiVersions", "Metadata"):
            counts[name] = counts.get(name, 0) + 1
    return counts
