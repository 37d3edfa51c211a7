"""Admin calls about the controller quorum, feature levels and the registration of brokers.

Owns the translation between typed values and messages. Invariant: as in `admin`.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping

from moldau.client.admin.arguments import check_several
from moldau.client.admin.types import (
    FeatureUpdate,
    QuorumDescription,
    QuorumEndpoint,
    QuorumReplica,
)
from moldau.client.cluster.cluster_client import ClusterClient, raise_for
from moldau.client.errors import InvalidRequest, error_for
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p54_end_quorum_epoch as end_quorum_epoch
from moldau.protocol.messages import p55_describe_quorum as describe_quorum
from moldau.protocol.messages.p57_update_features import FeatureUpdateKey, UpdateFeaturesRequest
from moldau.protocol.messages.p64_unregister_broker import UnregisterBrokerRequest
from moldau.protocol.messages.p80_add_raft_voter import AddRaftVoterRequest, Listener
from moldau.protocol.messages.p81_remove_raft_voter import RemoveRaftVoterRequest

METADATA_TOPIC = "__cluster_metadata"
OPERATION_TIMEOUT_MS = 30_000


class QuorumCalls:
    """The part of `Admin` that deals with controllers."""

    _client: ClusterClient

    async def describe_metadata_quorum(
        self, *, timeout_ms: float | None = None
    ) -> QuorumDescription:
        """Leader, voters and observers of the metadata log (KIP-595, KIP-836, KIP-853)."""

        async def attempt() -> QuorumDescription:
            return await self._describe_quorum()

        return await self._client.retry(attempt, what="describe quorum", timeout_ms=timeout_ms)

    async def add_raft_voter(
        self,
        voter_id: int,
        directory_id: uuid.UUID,
        endpoints: Collection[QuorumEndpoint],
        *,
        cluster_id: str | None = None,
        timeout_ms: float | None = None,
    ) -> None:
        """Make a controller that follows the log a voter (KIP-853).

        Args:
            endpoints: where it listens, one for each listener of the other voters.
            cluster_id: refused when it is not the cluster's; None does not care.

        Raises:
            BrokerError: DUPLICATE_VOTER, or UNSUPPORTED_VERSION for static voters.
        """
        check_several(endpoints)
        limit_ms = self._client.config.default_api_timeout_ms if timeout_ms is None else timeout_ms
        request = AddRaftVoterRequest(
            cluster_id=cluster_id,
            timeout_ms=int(min(limit_ms, OPERATION_TIMEOUT_MS)),
            voter_id=voter_id,
            voter_directory_id=directory_id,
            listeners=[
                Listener(name=each.listener_name, host=each.host, port=each.port)
                for each in endpoints
            ],
        )

        async def attempt() -> None:
            response = await self._client.ask_controller(request)
            raise_for(response.error_code, response.error_message, f"add voter {voter_id}")

        await self._client.retry(attempt, what=f"add voter {voter_id}", timeout_ms=timeout_ms)

    async def remove_raft_voter(
        self,
        voter_id: int,
        directory_id: uuid.UUID,
        *,
        cluster_id: str | None = None,
        timeout_ms: float | None = None,
    ) -> None:
        """Take a voter out of the quorum (KIP-853). Raises: BrokerError (VOTER_NOT_FOUND, …)"""
        request = RemoveRaftVoterRequest(
            cluster_id=cluster_id, voter_id=voter_id, voter_directory_id=directory_id
        )

        async def attempt() -> None:
            response = await self._client.ask_controller(request)
            raise_for(response.error_code, response.error_message, f"remove voter {voter_id}")

        await self._client.retry(attempt, what=f"remove voter {voter_id}", timeout_ms=timeout_ms)

    async def transfer_quorum_leader(
        self, successor_id: int, *, timeout_ms: float | None = None
    ) -> QuorumDescription:
        """Let the quorum's leader resign in favour of another voter; returns the quorum after it.

        The leader is sent an EndQuorumEpoch in its own name, which names the successor first; it
        resigns and tells the others in this order. Whoever wins the election leads.

        Raises:
            InvalidRequest: the successor is no voter.
            BrokerError: the leader refuses, or has no known address.
        """
        quorum = await self.describe_metadata_quorum(timeout_ms=timeout_ms)
        if quorum.voter(successor_id) is None:
            known = ", ".join(str(voter.replica_id) for voter in quorum.voters)
            raise InvalidRequest(f"node {successor_id} is no voter; voters are {known}")
        if quorum.leader_id == successor_id:
            return quorum
        await self._end_quorum_epoch(quorum, successor_id)

        async def attempt() -> QuorumDescription:
            after = await self._describe_quorum()
            if after.leader_epoch <= quorum.leader_epoch or after.leader_id < 0:
                raise error_for(ErrorCode.LEADER_NOT_AVAILABLE, None, "election of a new leader")
            return after

        return await self._client.retry(attempt, what="election", timeout_ms=timeout_ms)

    async def update_features(
        self,
        updates: Mapping[str, FeatureUpdate],
        *,
        validate_only: bool = False,
        timeout_ms: float | None = None,
    ) -> None:
        """Finalize feature levels, all or none (KIP-584, KIP-778).

        Raises:
            BrokerError: INVALID_UPDATE_VERSION, FEATURE_UPDATE_FAILED, …
        """
        request = UpdateFeaturesRequest(
            timeout_ms=OPERATION_TIMEOUT_MS,
            feature_updates=[
                FeatureUpdateKey(
                    feature=name,
                    max_version_level=update.level,
                    allow_downgrade=False,
                    upgrade_type=update.upgrade_type,
                )
                for name, update in updates.items()
            ],
            validate_only=validate_only,
        )

        async def attempt() -> None:
            response = await self._client.ask_controller(request)
            raise_for(response.error_code, response.error_message, "update features")
            for result in response.results:
                raise_for(result.error_code, result.error_message, f"feature {result.feature}")

        await self._client.retry(attempt, what="update features", timeout_ms=timeout_ms)

    async def unregister_broker(self, broker_id: int, *, timeout_ms: float | None = None) -> None:
        """Forget a broker that is gone for good. Raises: BrokerError (BROKER_ID_NOT_REGISTERED)"""
        request = UnregisterBrokerRequest(broker_id=broker_id)

        async def attempt() -> None:
            response = await self._client.ask_controller(request)
            raise_for(response.error_code, response.error_message, f"unregister broker {broker_id}")

        what = f"unregister broker {broker_id}"
        await self._client.retry(attempt, what=what, timeout_ms=timeout_ms)

    async def _describe_quorum(self) -> QuorumDescription:
        request = describe_quorum.DescribeQuorumRequest(
            topics=[
                describe_quorum.TopicData(
                    topic_name=METADATA_TOPIC,
                    partitions=[describe_quorum.PartitionData(partition_index=0)],
                )
            ]
        )
        response = await self._client.ask_controller(request)
        raise_for(response.error_code, response.error_message, "describe quorum")
        partition = response.topics[0].partitions[0]
        raise_for(partition.error_code, partition.error_message, "describe quorum")
        return QuorumDescription(
            leader_id=partition.leader_id,
            leader_epoch=partition.leader_epoch,
            high_watermark=partition.high_watermark,
            voters=tuple(_replica(each) for each in partition.current_voters),
            observers=tuple(_replica(each) for each in partition.observers),
            endpoints={
                node.node_id: tuple(
                    QuorumEndpoint(each.name, each.host, each.port) for each in node.listeners
                )
                for node in response.nodes
            },
        )

    async def _end_quorum_epoch(self, quorum: QuorumDescription, successor_id: int) -> None:
        """Ask the leader to resign; it may be gone before it has answered."""
        endpoints = quorum.endpoints.get(quorum.leader_id)
        if not endpoints:
            raise error_for(
                ErrorCode.LEADER_NOT_AVAILABLE,
                f"the address of the leader, node {quorum.leader_id}, is not known",
                "transfer the quorum's leader",
                final=True,
            )
        others = sorted(
            (voter for voter in quorum.voters if voter.replica_id != quorum.leader_id),
            key=lambda voter: (voter.replica_id != successor_id, -voter.log_end_offset),
        )
        request = end_quorum_epoch.EndQuorumEpochRequest(
            cluster_id=(await self._cluster_id()),
            topics=[
                end_quorum_epoch.TopicData(
                    topic_name=METADATA_TOPIC,
                    partitions=[
                        end_quorum_epoch.PartitionData(
                            partition_index=0,
                            leader_id=quorum.leader_id,
                            leader_epoch=quorum.leader_epoch,
                            preferred_successors=[voter.replica_id for voter in others],
                            preferred_candidates=[
                                end_quorum_epoch.ReplicaInfo(
                                    candidate_id=voter.replica_id,
                                    candidate_directory_id=voter.directory_id,
                                )
                                for voter in others
                            ],
                        )
                    ],
                )
            ],
            leader_endpoints=[
                end_quorum_epoch.LeaderEndpoint(
                    name=each.listener_name, host=each.host, port=each.port
                )
                for each in endpoints
            ],
        )

        async def attempt() -> None:
            response = await self._client.ask_address(endpoints[0].host, endpoints[0].port, request)
            raise_for(response.error_code, None, "end the leader's epoch")
            for topic in response.topics:
                for partition in topic.partitions:
                    # A higher epoch than ours: it has resigned, perhaps at an earlier attempt.
                    if partition.leader_epoch <= quorum.leader_epoch:
                        raise_for(partition.error_code, None, "end the leader's epoch")

        await self._client.retry(attempt, what="end the leader's epoch", timeout_ms=None)

    async def _cluster_id(self) -> str | None:
        if self._client.metadata.cluster_id is None:
            await self._client.refresh_metadata([])
        return self._client.metadata.cluster_id


def _replica(state: describe_quorum.ReplicaState) -> QuorumReplica:
    return QuorumReplica(
        state.replica_id,
        state.replica_directory_id,
        state.log_end_offset,
        _time(state.last_fetch_timestamp),
        _time(state.last_caught_up_timestamp),
    )


def _time(timestamp_ms: int) -> int | None:
    return timestamp_ms if timestamp_ms >= 0 else None
