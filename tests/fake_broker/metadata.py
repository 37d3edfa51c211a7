"""ApiVersions, Metadata, FindCoordinator, DescribeCluster: what the cluster looks like.

Owns the answers only; the facts are the cluster's. Invariant: every broker says the same.
"""

from __future__ import annotations

from typing import Any

from moldau.protocol import ApiKey, ErrorCode
from moldau.protocol.messages import p75_describe_topic_partitions as topics_75
from moldau.protocol.messages.p03_metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from moldau.protocol.messages.p10_find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from moldau.protocol.messages.p18_api_versions import (
    ApiVersion,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from moldau.protocol.messages.p60_describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from moldau.protocol.types import ZERO_UUID, topic_name_problem
from tests.fake_broker.cluster import CoordinatorKind, FakeTopic
from tests.fake_broker.context import Context, Handler
from tests.fake_broker.node import HOST

_FIRST_BATCHED_FIND = 4
_KINDS: dict[int, CoordinatorKind] = {0: "group", 1: "transaction"}
_TRANSACTION_VERSION_SINCE = 5
_ZERO_FEATURE_VERSION_SINCE = 4


def api_versions(context: Context) -> ApiVersionsResponse:
    """Versions and features; transaction.version is a feature where EndTxn 5 is advertised."""
    served = context.node.advertised()
    response = ApiVersionsResponse(
        error_code=context.refusal("top"),
        api_keys=[
            ApiVersion(api_key=key, min_version=lowest, max_version=highest)
            for key, (lowest, highest) in sorted(served.items())
        ],
    )
    level = context.cluster.settings.transaction_version
    if served.get(ApiKey.END_TXN, (0, 0))[1] >= _TRANSACTION_VERSION_SINCE:
        name = "transaction.version"
        if context.version >= _ZERO_FEATURE_VERSION_SINCE:
            response.supported_features = [SupportedFeatureKey(name=name, max_version=2)]
        response.finalized_features_epoch = 1
        if level:
            response.finalized_features = [
                FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            ]
    return response


async def metadata(context: Context, request: MetadataRequest) -> MetadataResponse:
    """Brokers, and the topics asked for (null: all; before version 1 an empty list)."""
    cluster = context.cluster
    wants_all = request.topics is None or (context.version == 0 and not request.topics)
    if wants_all:
        topics = [_described(context, topic) for topic in cluster.topics.values()]
    else:
        topics = [_asked_for(context, request, each) for each in request.topics or ()]
    return MetadataResponse(
        error_code=context.refusal("top"),
        brokers=[
            MetadataResponseBroker(
                node_id=node_id,
                host=HOST,
                port=cluster.nodes[node_id].port,
                rack=cluster.nodes[node_id].rack,
            )
            for node_id in cluster.live_node_ids
        ],
        cluster_id=cluster.cluster_id,
        controller_id=cluster.controller_id,
        topics=topics,
    )


def _asked_for(context: Context, request: MetadataRequest, asked: Any) -> MetadataResponseTopic:
    cluster = context.cluster
    if asked.topic_id != ZERO_UUID:
        found = cluster.topic_by_id(asked.topic_id)
        if found is None:
            return MetadataResponseTopic(
                error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=asked.topic_id
            )
        return _described(context, found)
    name = asked.name
    found = cluster.topics.get(name)
    if found is None and topic_name_problem(name) is not None:
        return MetadataResponseTopic(error_code=ErrorCode.INVALID_TOPIC_EXCEPTION, name=name)
    if found is None:
        if cluster.settings.auto_create_topics and request.allow_auto_topic_creation:
            cluster.create_topic(name, cluster.settings.default_partition_count)
            # As a broker says while the creation is on its way; the next answer has the topic.
            return MetadataResponseTopic(error_code=ErrorCode.LEADER_NOT_AVAILABLE, name=name)
        return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=name)
    return _described(context, found)


def _described(context: Context, topic: FakeTopic) -> MetadataResponseTopic:
    refusal = context.refusal("topic", topic.name)
    if refusal:
        return MetadataResponseTopic(error_code=refusal, name=topic.name)
    live = set(context.cluster.live_node_ids)
    described = MetadataResponseTopic(
        name=topic.name, topic_id=topic.topic_id, is_internal=topic.name.startswith("__")
    )
    for index, partition in enumerate(topic.partitions):
        error = context.refusal("partition", topic.name, index) or partition.error
        has_leader = partition.leader_id in live and error != ErrorCode.LEADER_NOT_AVAILABLE
        if not has_leader:
            error = error or ErrorCode.LEADER_NOT_AVAILABLE
        described.partitions.append(
            MetadataResponsePartition(
                error_code=error,
                partition_index=index,
                leader_id=partition.leader_id if has_leader else -1,
                leader_epoch=partition.log.leader_epoch,
                replica_nodes=partition.replica_ids,
                isr_nodes=[each for each in partition.replica_ids if each in live],
                offline_replicas=[each for each in partition.replica_ids if each not in live],
            )
        )
    return described


async def find_coordinator(
    context: Context, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    """One key before version 4, many since."""
    cluster = context.cluster
    kind = _KINDS.get(request.key_type)
    refusal = context.refusal("top")
    if kind is None:
        refusal = refusal or ErrorCode.INVALID_REQUEST
    is_batched = context.version >= _FIRST_BATCHED_FIND
    keys = request.coordinator_keys if is_batched else [request.key]
    answers = []
    for key in keys:
        node_id = -1
        error = refusal
        if kind is not None and not error:
            node_id = cluster.coordinator_of(kind, key)
            if not cluster.nodes[node_id].is_running:
                error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        if error:
            answers.append(Coordinator(key=key, node_id=-1, host="", port=-1, error_code=error))
        else:
            port = cluster.nodes[node_id].port
            answers.append(Coordinator(key=key, node_id=node_id, host=HOST, port=port))
    if is_batched:
        return FindCoordinatorResponse(coordinators=answers)
    only = answers[0]
    return FindCoordinatorResponse(
        error_code=only.error_code, node_id=only.node_id, host=only.host, port=only.port
    )


async def describe_cluster(
    context: Context, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    """The brokers."""
    cluster = context.cluster
    return DescribeClusterResponse(
        error_code=context.refusal("top"),
        cluster_id=cluster.cluster_id,
        controller_id=cluster.controller_id,
        brokers=[
            DescribeClusterBroker(
                broker_id=node_id,
                host=HOST,
                port=cluster.nodes[node_id].port,
                rack=cluster.nodes[node_id].rack,
            )
            for node_id in cluster.live_node_ids
        ],
    )


async def describe_topic_partitions(
    context: Context, request: topics_75.DescribeTopicPartitionsRequest
) -> topics_75.DescribeTopicPartitionsResponse:
    """Topics in the order of their names, page by page (KIP-966)."""
    cluster = context.cluster
    names = sorted({each.name for each in request.topics} or cluster.topics)
    response = topics_75.DescribeTopicPartitionsResponse()
    left_count = request.response_partition_limit
    for name in names:
        if request.cursor is not None and name < request.cursor.topic_name:
            continue
        topic = cluster.topics.get(name)
        if topic is None:
            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            response.topics.append(
                topics_75.DescribeTopicPartitionsResponseTopic(error_code=unknown, name=name)
            )
            continue
        whole = _described(context, topic)
        answer = topics_75.DescribeTopicPartitionsResponseTopic(
            error_code=whole.error_code or context.refusal("top"), name=name
        )
        answer.topic_id = whole.topic_id
        response.topics.append(answer)
        is_first = request.cursor is not None and name == request.cursor.topic_name
        first = request.cursor.partition_index if is_first and request.cursor else 0
        for each in whole.partitions[first:]:
            if left_count <= 0:
                response.next_cursor = topics_75.Cursor(
                    topic_name=name, partition_index=each.partition_index
                )
                return response
            left_count -= 1
            answer.partitions.append(
                topics_75.DescribeTopicPartitionsResponsePartition(
                    error_code=each.error_code,
                    partition_index=each.partition_index,
                    leader_id=each.leader_id,
                    leader_epoch=each.leader_epoch,
                    replica_nodes=each.replica_nodes,
                    isr_nodes=each.isr_nodes,
                    offline_replicas=each.offline_replicas,
                )
            )
    return response


HANDLERS: dict[ApiKey, Handler] = {
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: describe_topic_partitions,
    ApiKey.METADATA: metadata,
    ApiKey.FIND_COORDINATOR: find_coordinator,
    ApiKey.DESCRIBE_CLUSTER: describe_cluster,
}
