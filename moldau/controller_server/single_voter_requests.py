"""What a quorum of one voter says about itself.

Owns: DescribeQuorum over `SingleVoterLog`. Must not: pretend to be a quorum; every other quorum
request is refused. Goes away together with `SingleVoterLog`. Invariant: every request is answered.
"""

from __future__ import annotations

from moldau.protocol.error_responses import error_response
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p55_describe_quorum as quorum
from moldau.protocol.schema import Message
from moldau.raft import METADATA_TOPIC, SingleVoterLog
from moldau.runtime.clock import Clock


class SingleVoterRequests:
    """Implements `QuorumRequests`."""

    def __init__(self, log: SingleVoterLog, clock: Clock) -> None:
        self._log = log
        self._clock = clock

    async def handle(self, request: Message, api_version: int, client_host: str) -> Message:
        """As the port says."""
        if isinstance(request, quorum.DescribeQuorumRequest):
            return self._describe_quorum(request)
        response: Message = error_response(
            request,
            ErrorCode.UNSUPPORTED_VERSION,
            "the quorum has a single voter",
            api_version=api_version,
        )
        return response

    def _describe_quorum(
        self, request: quorum.DescribeQuorumRequest
    ) -> quorum.DescribeQuorumResponse:
        """DescribeQuorum v0–v2 (KIP-595, KIP-836, KIP-853): who leads, and how far everybody is."""
        response = quorum.DescribeQuorumResponse(error_message=None)
        for topic in request.topics:
            answer = quorum.TopicDataResponse(topic_name=topic.topic_name)
            response.topics.append(answer)
            for partition in topic.partitions:
                index = partition.partition_index
                if topic.topic_name != METADATA_TOPIC or index != 0:
                    answer.partitions.append(
                        quorum.PartitionDataResponse(
                            partition_index=index,
                            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                            error_message="only the metadata log has a quorum",
                        )
                    )
                else:
                    answer.partitions.append(self._partition())
        response.nodes = [
            quorum.Node(
                node_id=voter.voter_id,
                listeners=[
                    quorum.Listener(name=name, host=host, port=port)
                    for name, host, port in voter.endpoints
                ],
            )
            for voter in self._log.voters.voters
        ]
        return response

    def _partition(self) -> quorum.PartitionDataResponse:
        log, now_ms = self._log, self._clock.now_ms()
        return quorum.PartitionDataResponse(
            partition_index=0,
            error_message=None,
            leader_id=log.node_id,
            leader_epoch=log.leader_epoch,
            high_watermark=log.high_watermark,
            current_voters=[
                quorum.ReplicaState(
                    replica_id=log.node_id,
                    replica_directory_id=log.directory_id,
                    log_end_offset=log.log_end_offset,
                    last_fetch_timestamp=now_ms,
                    last_caught_up_timestamp=now_ms,
                )
            ],
        )
