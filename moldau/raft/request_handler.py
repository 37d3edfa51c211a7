"""The quorum's APIs on the controllers' listener.

Owns: Vote, BeginQuorumEpoch, EndQuorumEpoch, Fetch and FetchSnapshot of the metadata log,
UpdateRaftVoter, AddRaftVoter, RemoveRaftVoter and DescribeQuorum. Must not: check permissions (the
listener has), or decide anything (the quorum does). Invariant: every request gets its own API's
response.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Final

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p55_describe_quorum as quorum
from moldau.protocol.messages.p80_add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse
from moldau.protocol.messages.p81_remove_raft_voter import (
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
)
from moldau.protocol.registry import response_class
from moldau.protocol.schema import Message
from moldau.protocol.types import METADATA_TOPIC_NAME, ZERO_UUID
from moldau.raft.core.messages import (
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    KraftVersionRequest,
    PeerRequest,
    UpdateVoterRequest,
)
from moldau.raft.core.values import Endpoints, ReplicaKey, ReplicaProgress
from moldau.raft.core.voters import VoterDescription, endpoints_of, listeners_of
from moldau.raft.quorum_log import QuorumLog, QuorumStatus
from moldau.raft.values import QuorumStopped
from moldau.raft.wire import (
    METADATA_PARTITION,
    Refused,
    decode_request,
    encode_response,
)
from moldau.runtime.clock import Clock
from moldau.text import short_message

REMOVE_VOTER_TIMEOUT_MS: Final = 30_000
"""RemoveRaftVoter says nothing of how long its sender waits: what Kafka's tools wait by default."""

MAX_NAMED: Final = 1_000
"""Topics and partitions of a DescribeQuorum request. One partition has a quorum; of all others
there is to say only that they have none.
"""

MAX_ENDPOINTS: Final = 1_000
"""The limit for endpoints of a voter or a leader, and for candidates that a leader prefers: they
are in the log, in the memory of every node, and in its answers.
"""

MAX_ENDPOINT_CHARACTERS: Final = 100_000
"""The limit for all names and hosts together."""

MAX_EPOCH_JUMP: Final = 2**24
"""How far above the own epoch a request's may be. Epochs rise by one per election: half a year of
one each second stays below it, and a request that claimed the last epoch there is would leave the
quorum without another election for ever."""


@dataclass(eq=False, repr=False)
class RaftRequestHandler:
    """Answers the requests of the quorum's APIs for one replica, on the log's event loop.

    Args:
        listener_name: of the listener the requests come by; leaders are named by their address
            there.
    """

    _log: QuorumLog
    _cluster_id: str
    _: KW_ONLY
    clock: Clock
    listener_name: str

    async def handle(self, request: Message, api_version: int, client_host: str) -> Message:
        """The response to a request of the quorum's APIs; a fetch may wait as long as it asks."""
        del client_host  # of no meaning to the quorum
        try:
            match request:
                case quorum.DescribeQuorumRequest():
                    return self._describe_quorum(request, api_version)
                case AddRaftVoterRequest():
                    return await self._add_voter(request)
                case RemoveRaftVoterRequest():
                    return await self._remove_voter(request)
                case _:
                    return await self._peer(request, api_version)
        except QuorumStopped:
            return _refusal_of(request, ErrorCode.BROKER_NOT_AVAILABLE)

    async def _peer(self, request: Message, api_version: int) -> Message:
        try:
            decoded = decode_request(request, api_version, self._cluster_id)
        except Refused as refusal:
            return refusal.response
        assert not isinstance(decoded, KraftVersionRequest), "ApiVersions is the listener's"
        last_epoch = self._log.state.leader_epoch + MAX_EPOCH_JUMP
        if decoded.leader_epoch > last_epoch or not _is_keepable(decoded):
            return _refusal_of(request, ErrorCode.INVALID_REQUEST)
        return encode_response(await self._log.handle(decoded), api_version, self.listener_name)

    async def _add_voter(self, request: AddRaftVoterRequest) -> AddRaftVoterResponse:
        """AddRaftVoter v0–v1 (KIP-853, KIP-1186)."""
        error, message = self._refusal(request)
        if error is ErrorCode.NONE and len(request.listeners) > MAX_ENDPOINTS:
            error = ErrorCode.INVALID_REQUEST
            message = f"a voter has at most {MAX_ENDPOINTS} endpoints"
        endpoints = endpoints_of(request.listeners[:MAX_ENDPOINTS])
        names = [endpoint.listener_name for endpoint in endpoints]
        if error is ErrorCode.NONE and not _fit(endpoints):
            error = ErrorCode.INVALID_REQUEST
            message = f"a voter's endpoints have at most {MAX_ENDPOINT_CHARACTERS} characters"
        if error is ErrorCode.NONE and self.listener_name not in names:
            error = ErrorCode.INVALID_REQUEST
            message = f"the voter to add needs an endpoint of listener {self.listener_name}"
        if error is ErrorCode.NONE:
            error, message = await self._log.add_voter(
                VoterDescription(request.voter_id, request.voter_directory_id, endpoints),
                timeout_ms=max(request.timeout_ms, 0),
                ack_when_committed=request.ack_when_committed,
            )
        return AddRaftVoterResponse(error_code=error, error_message=_text(error, message))

    async def _remove_voter(self, request: RemoveRaftVoterRequest) -> RemoveRaftVoterResponse:
        """RemoveRaftVoter v0 (KIP-853)."""
        error, message = self._refusal(request)
        if error is ErrorCode.NONE:
            error, message = await self._log.remove_voter(
                ReplicaKey(request.voter_id, request.voter_directory_id),
                timeout_ms=REMOVE_VOTER_TIMEOUT_MS,
            )
        return RemoveRaftVoterResponse(error_code=error, error_message=_text(error, message))

    def _refusal(
        self, request: AddRaftVoterRequest | RemoveRaftVoterRequest
    ) -> tuple[ErrorCode, str]:
        """What a change of voters is refused for before the quorum sees it, in Kafka's order."""
        if request.cluster_id is not None and request.cluster_id != self._cluster_id:
            return (
                ErrorCode.INCONSISTENT_CLUSTER_ID,
                f"this is cluster {self._cluster_id}, not {request.cluster_id}",
            )
        if not self._log.is_leader:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, "this controller does not lead the quorum"
        if request.voter_id < 0 or request.voter_directory_id == ZERO_UUID:
            return ErrorCode.INVALID_REQUEST, "a voter is its node id and its directory id"
        return ErrorCode.NONE, ""

    def _describe_quorum(
        self, request: quorum.DescribeQuorumRequest, api_version: int
    ) -> quorum.DescribeQuorumResponse:
        """DescribeQuorum v0–v2 (KIP-595, KIP-836, KIP-853): the leader and the progress."""
        status = self._log.status()
        response = quorum.DescribeQuorumResponse()
        named = len(request.topics) + sum(len(topic.partitions) for topic in request.topics)
        if named > MAX_NAMED:
            response.error_code = ErrorCode.INVALID_REQUEST
            response.error_message = "only the metadata log, named once, has a quorum"
            return response
        asked = [
            (topic.topic_name, partition.partition_index)
            for topic in request.topics
            for partition in topic.partitions
        ]
        is_known = asked == [(METADATA_TOPIC_NAME, METADATA_PARTITION)]
        for topic in request.topics:
            answer = quorum.TopicDataResponse(topic_name=topic.topic_name)
            response.topics.append(answer)
            for partition in topic.partitions:
                if is_known:
                    answer.partitions.append(self._partition(status, api_version))
                    continue
                answer.partitions.append(
                    quorum.PartitionDataResponse(
                        partition_index=partition.partition_index,
                        error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                        error_message="only the metadata log, named once, has a quorum",
                    )
                )
        if api_version >= 2 and status.is_leader and is_known:
            response.nodes = [
                quorum.Node(node_id=voter.voter_id, listeners=listeners_of(voter.endpoints))
                for voter in status.voter_set.voters
            ]
        return response

    def _partition(self, status: QuorumStatus, api_version: int) -> quorum.PartitionDataResponse:
        leadership = status.leadership
        answer = quorum.PartitionDataResponse(
            partition_index=METADATA_PARTITION,
            leader_id=leadership.leader_id,
            leader_epoch=leadership.leader_epoch,
        )
        if not status.is_leader:
            answer.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            leads = f"node {leadership.leader_id} leads"
            if leadership.leader_id < 0:
                leads = "it knows no leader: a majority of the voters has to run and to elect one"
            answer.error_message = (
                "this controller does not lead the quorum; "
                f"in epoch {leadership.leader_epoch} {leads}"
            )
            return answer
        answer.high_watermark = status.high_watermark
        answer.current_voters = self._replicas(status.voters, api_version)
        answer.observers = self._replicas(status.observers, api_version)
        return answer

    def _replicas(
        self, progress: Sequence[ReplicaProgress], api_version: int
    ) -> list[quorum.ReplicaState]:
        states = []
        for each in progress:
            state = quorum.ReplicaState(
                replica_id=each.replica.node_id,
                log_end_offset=each.log_end_offset,
                last_fetch_timestamp=self._wall_ms(each.replica, each.last_fetch_ms),
                last_caught_up_timestamp=self._wall_ms(each.replica, each.last_caught_up_ms),
            )
            if api_version >= 2:
                state.replica_directory_id = each.replica.directory_id
            states.append(state)
        return states

    def _wall_ms(self, replica: ReplicaKey, monotonic_ms: float | None) -> int:
        """The wall clock's time; a leader has always just heard of itself, -1 stands for never."""
        now_ms = self.clock.now_ms()
        if replica.node_id == self._log.node_id:
            return now_ms
        if monotonic_ms is None:
            return -1
        return now_ms - round(self.clock.monotonic_ms() - monotonic_ms)


def _is_keepable(request: PeerRequest) -> bool:
    """Whether the addresses and candidates that a peer names are few enough to be remembered."""
    match request:
        case BeginQuorumEpochRequest():
            return _fit(request.leader_endpoints)
        case EndQuorumEpochRequest():
            is_short = len(request.preferred_candidates) <= MAX_ENDPOINTS
            return is_short and _fit(request.leader_endpoints)
        case UpdateVoterRequest():
            return _fit(request.voter.endpoints)
        case _:
            return True


def _fit(endpoints: Endpoints) -> bool:
    characters = sum(len(each.listener_name) + len(each.host) for each in endpoints)
    return len(endpoints) <= MAX_ENDPOINTS and characters <= MAX_ENDPOINT_CHARACTERS


def _refusal_of(request: Message, error: ErrorCode) -> Message:
    return response_class(request.API_KEY)(error_code=error)


def _text(error: ErrorCode, message: str) -> str | None:
    return None if error is ErrorCode.NONE else short_message(message) or error.message
