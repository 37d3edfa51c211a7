"""DescribeLogDirs v1–v5: what lies in each log directory, and how full its volume is (KIP-827).

Behaviour: null topics mean all; an offline directory is listed with KAFKA_STORAGE_ERROR. Known
gaps: no replica is ever moved between directories yet, so no future replica is listed.
"""

from __future__ import annotations

from collections import defaultdict

from moldau.broker.api.services import BrokerServices
from moldau.protocol.access_control import Operation
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p35_describe_log_dirs as p35
from moldau.runtime.slices import LoopSlices
from moldau.server.request import RequestContext
from moldau.storage.log_manager import describe_log_dirs


async def answer(
    services: BrokerServices, context: RequestContext, request: p35.DescribeLogDirsRequest
) -> p35.DescribeLogDirsResponse:
    if not context.authorized_cluster(Operation.DESCRIBE):
        return p35.DescribeLogDirsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    wanted = None
    slices = LoopSlices(services.clock)
    if request.topics is not None:
        wanted = defaultdict[str, set[int]](set)
        for asked in request.topics:
            wanted[asked.topic].update(asked.partitions)
            if slices.is_over:
                await slices.next()
    response = p35.DescribeLogDirsResponse()
    for described in describe_log_dirs(services.log_manager):
        topics: dict[str, p35.DescribeLogDirsTopic] = {}
        for log in described.logs:
            name, index = log.topic_partition
            if wanted is not None and index not in wanted.get(name, ()):
                continue
            topic = topics.setdefault(name, p35.DescribeLogDirsTopic(name=name))
            # Replicas are never moved between directories here, so none lags behind.
            topic.partitions.append(
                p35.DescribeLogDirsPartition(partition_index=index, partition_size=log.size_bytes)
            )
        response.results.append(
            p35.DescribeLogDirsResult(
                error_code=described.error,
                log_dir=described.directory,
                topics=[topics[name] for name in sorted(topics)],
                total_bytes=described.total_bytes,
                usable_bytes=described.usable_bytes,
            )
        )
    return response
