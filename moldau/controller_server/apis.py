"""The controller's requests: which there are, who may send them, how long they may take.

Owns: dispatch from an ApiKey to the controller or the log. Called in process by a broker of the
same node; the controller listener will use the same table. Must not: decide anything about
metadata.
Invariant: every request gets a response of its own API, failures included.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from moldau.controller_server.error_responses import error_response
from moldau.metadata.controller import Controller, RequestFailed
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p55_describe_quorum as quorum
from moldau.protocol.schema import Message
from moldau.raft import METADATA_TOPIC, SingleVoterLog
from moldau.runtime.clock import Clock

DEFAULT_TIMEOUT_MS: Final = 30_000

CONTROLLER_APIS: Final = frozenset(
    {
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.DESCRIBE_QUORUM,
        ApiKey.UPDATE_FEATURES,
        ApiKey.BROKER_REGISTRATION,
        ApiKey.BROKER_HEARTBEAT,
        ApiKey.UNREGISTER_BROKER,
        ApiKey.ALLOCATE_PRODUCER_IDS,
        ApiKey.CONTROLLER_REGISTRATION,
        ApiKey.ASSIGN_REPLICAS_TO_DIRS,
    }
)


@dataclass(frozen=True, slots=True)
class ControllerRequestContext:
    """Who sends a request, and how long they wait; `timeout_ms` None takes the request's own."""

    principal: str
    client_id: str | None = None
    timeout_ms: float | None = None


Authorizer = Callable[[ControllerRequestContext, ApiKey], bool]


def allow_all(_context: ControllerRequestContext, _api_key: ApiKey) -> bool:
    """Until security arrives."""
    return True


class ControllerApis:
    """Answers requests on the controller's loop."""

    def __init__(
        self,
        controller: Controller,
        log: SingleVoterLog,
        clock: Clock,
        authorizer: Authorizer = allow_all,
    ) -> None:
        self._controller = controller
        self._log = log
        self._clock = clock
        self._authorizer = authorizer
        self._special: dict[ApiKey, Callable[[Any, ControllerRequestContext], Awaitable[Any]]] = {
            ApiKey.DESCRIBE_QUORUM: self._describe_quorum
        }

    async def handle(self, request: Message, context: ControllerRequestContext) -> Any:
        """The response to `request`, after what it did is committed."""
        api_key = ApiKey(request.API_KEY)
        assert api_key in CONTROLLER_APIS, f"{api_key.name} is not for the controller"
        if not self._authorizer(context, api_key):
            return error_response(
                request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "not permitted on the cluster"
            )
        special = self._special.get(api_key)
        if special is not None:
            return await special(request, context)
        timeout_ms = context.timeout_ms
        if timeout_ms is None:
            timeout_ms = float(getattr(request, "timeout_ms", DEFAULT_TIMEOUT_MS))
        try:
            return await self._controller.handle(request, timeout_ms=timeout_ms)
        except RequestFailed as failure:
            return error_response(request, failure.error, failure.message)

    async def _describe_quorum(
        self, request: quorum.DescribeQuorumRequest, _context: ControllerRequestContext
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
                    answer.partitions.append(self._quorum_partition())
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

    def _quorum_partition(self) -> quorum.PartitionDataResponse:
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
