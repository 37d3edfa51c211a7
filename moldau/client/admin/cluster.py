"""Admin calls about the cluster: its brokers, configurations, log directories and quorum."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from moldau.client.admin.calls import (
    OPERATION_TIMEOUT_MS,
    AdminCalls,
    check_kind,
    check_several,
    gathered,
    raise_any,
)
from moldau.client.cluster.cluster_client import EndpointType
from moldau.client.errors import InvalidRequest, error_for, raise_for
from moldau.config.definition import ConfigSource
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p32_describe_configs as described_configs
from moldau.protocol.messages import p44_incremental_alter_configs as altered_configs
from moldau.protocol.messages import p54_end_quorum_epoch as end_quorum_epoch
from moldau.protocol.messages import p55_describe_quorum as describe_quorum
from moldau.protocol.messages import p57_update_features as updated_features
from moldau.protocol.messages.p18_api_versions import ApiVersionsRequest
from moldau.protocol.messages.p35_describe_log_dirs import DescribeLogDirsRequest
from moldau.protocol.messages.p60_describe_cluster import DescribeClusterRequest
from moldau.protocol.messages.p64_unregister_broker import UnregisterBrokerRequest
from moldau.protocol.messages.p74_list_config_resources import ListConfigResourcesRequest
from moldau.protocol.messages.p80_add_raft_voter import AddRaftVoterRequest
from moldau.protocol.messages.p81_remove_raft_voter import RemoveRaftVoterRequest
from moldau.protocol.messages.quorum_records import Endpoint
from moldau.protocol.schema import Request, Response
from moldau.protocol.types import METADATA_TOPIC_NAME, TopicPartition
from moldau.runtime.connection import UnsupportedByPeer

NEWS_MS: Final = 500.0
"""How long not every broker may know of a topic that was just created."""


class ConfigResourceType(IntEnum):
    """What a configuration belongs to."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


@dataclass(frozen=True, slots=True)
class RegisteredBroker:
    """A broker as the controller knows it."""

    node_id: int
    host: str
    port: int
    rack: str | None
    fenced: bool


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The cluster's id, its brokers and which of them answers for the controller."""

    cluster_id: str
    controller_id: int
    brokers: tuple[RegisteredBroker, ...]


@dataclass(frozen=True, slots=True)
class ConfigResource:
    """A topic, broker, … that has a configuration; broker "" is the default of all brokers."""

    resource_type: ConfigResourceType
    name: str

    def __str__(self) -> str:
        if not self.name and self.resource_type is ConfigResourceType.BROKER:
            return "all brokers"
        if self.resource_type is ConfigResourceType.BROKER_LOGGER:
            return f"loggers of broker {self.name}"
        return f"{self.resource_type.name.lower().replace('_', ' ')} {self.name}"


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One key's effective value; None for a sensitive or absent one."""

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool
    sensitive: bool
    synonyms: tuple[tuple[str, str | None, ConfigSource], ...] = ()
    documentation: str | None = None


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """One change of one key; DELETE needs no value."""

    name: str
    value: str | None
    operation: altered_configs.ConfigOperation = altered_configs.ConfigOperation.SET


@dataclass(frozen=True, slots=True)
class LogDirectory:
    """One directory of one broker; `error` is set when it is offline."""

    directory: str
    error: str | None
    total_bytes: int
    usable_bytes: int
    partition_bytes: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Features:
    """Feature levels: what brokers support and what the cluster has finalized (KIP-584)."""

    supported: Mapping[str, tuple[int, int]]
    finalized: Mapping[str, int]
    finalized_epoch: int


class UpgradeType(IntEnum):
    """Which way a feature level may go (KIP-778)."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


@dataclass(frozen=True, slots=True)
class FeatureUpdate:
    """A level to finalize; 0 switches the feature off."""

    level: int
    upgrade_type: UpgradeType = UpgradeType.UPGRADE


@dataclass(frozen=True, slots=True)
class QuorumEndpoint:
    """Where a controller listens."""

    listener_name: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.listener_name}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class QuorumReplica:
    """A voter or an observer as the leader sees it; a time is None where the leader has none."""

    replica_id: int
    directory_id: uuid.UUID
    log_end_offset: int
    last_fetch_timestamp_ms: int | None
    last_caught_up_timestamp_ms: int | None


@dataclass(frozen=True, slots=True)
class QuorumDescription:
    """The controller quorum (KIP-595, KIP-836, KIP-853); `endpoints` by node id."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]
    endpoints: Mapping[int, tuple[QuorumEndpoint, ...]]

    def voter(self, replica_id: int) -> QuorumReplica | None:
        """The voter with this id, or None."""
        return next((voter for voter in self.voters if voter.replica_id == replica_id), None)


BROKER_RESOURCES: Final = (ConfigResourceType.BROKER, ConfigResourceType.BROKER_LOGGER)
"""Resources that only the broker they name can answer for."""
CLIENT_SOFTWARE: Final = ("moldau-admin", "1")


class ClusterCalls(AdminCalls):
    """The part of `Admin` that deals with the cluster as a whole, its brokers and controllers."""

    async def describe_cluster(
        self, *, include_fenced_brokers: bool = False, timeout_ms: float | None = None
    ) -> ClusterDescription:
        """The cluster's id and brokers (KIP-700); its controllers, when these are asked."""
        asks_controllers = self._client.config.asks_controllers
        request = DescribeClusterRequest(
            include_fenced_brokers=include_fenced_brokers and not asks_controllers,
            endpoint_type=EndpointType.CONTROLLER if asks_controllers else EndpointType.BROKER,
        )

        async def attempt() -> ClusterDescription:
            try:
                response = await self._client.ask_any(request)
            except UnsupportedByPeer:
                if asks_controllers or include_fenced_brokers:
                    raise
                # Apache Kafka before 2.8 describes its brokers with the topics.
                return await self._describe_by_metadata()
            raise_for(response.error_code, response.error_message, "describe cluster")
            return ClusterDescription(
                response.cluster_id,
                response.controller_id,
                tuple(
                    RegisteredBroker(b.broker_id, b.host, b.port, b.rack, b.is_fenced)
                    for b in response.brokers
                ),
            )

        return await self._client.retry(attempt, what="describe cluster", timeout_ms=timeout_ms)

    async def _describe_by_metadata(self) -> ClusterDescription:
        metadata = await self._client.refresh_metadata([])
        return ClusterDescription(
            metadata.cluster_id or "",
            metadata.controller_id,
            tuple(
                RegisteredBroker(each.node_id, each.host, each.port, each.rack, False)
                for each in metadata.brokers.values()
            ),
        )

    async def describe_features(self, *, timeout_ms: float | None = None) -> Features:
        """Supported and finalized feature levels, as the broker that answers knows them."""
        name, version = CLIENT_SOFTWARE
        request = ApiVersionsRequest(client_software_name=name, client_software_version=version)
        response = await self._ask_any(request, "describe features", timeout_ms)
        return Features(
            {f.name: (f.min_version, f.max_version) for f in response.supported_features},
            {f.name: f.max_version_level for f in response.finalized_features},
            response.finalized_features_epoch,
        )

    # -- configurations ---------------------------------------------------------------------------

    async def describe_configs(
        self,
        resources: Iterable[ConfigResource],
        *,
        include_synonyms: bool = False,
        include_documentation: bool = False,
        timeout_ms: float | None = None,
    ) -> dict[ConfigResource, dict[str, ConfigEntry]]:
        """Effective configurations. Raises: UnknownTopicOrPartition, InvalidRequest, KafkaError"""
        check_several(resources)
        resources = list(resources)
        check_kind(resources, ConfigResource)
        groups = _by_node(resources)
        began_ms = self._client.clock.monotonic_ms()

        async def ask(
            node_id: int | None, group: list[ConfigResource]
        ) -> dict[ConfigResource, dict[str, ConfigEntry]]:
            request = described_configs.DescribeConfigsRequest(
                resources=[
                    described_configs.DescribeConfigsResource(
                        resource_type=resource.resource_type,
                        resource_name=resource.name,
                        configuration_keys=None,
                    )
                    for resource in group
                ],
                include_synonyms=include_synonyms,
                include_documentation=include_documentation,
            )
            response = await self._ask_node_or_any(node_id, request)
            described = {}
            for result in response.results:
                resource = ConfigResource(
                    ConfigResourceType(result.resource_type), result.resource_name
                )
                self._raise_configs(result.error_code, result.error_message, resource, began_ms)
                described[resource] = {entry.name: _entry(entry) for entry in result.configs}
            return described

        async def attempt() -> dict[ConfigResource, dict[str, ConfigEntry]]:
            return await gathered(ask(*group) for group in groups.items())

        return await self._client.retry(attempt, what="describe configs", timeout_ms=timeout_ms)

    async def alter_configs(
        self,
        changes: Mapping[ConfigResource, Collection[ConfigChange]],
        *,
        validate_only: bool = False,
        timeout_ms: float | None = None,
    ) -> None:
        """Set, delete, append to or subtract from keys (KIP-339). Raises: InvalidRequest, …"""
        check_kind(changes, ConfigResource)
        check_kind((each for some in changes.values() for each in some), ConfigChange)
        began_ms = self._client.clock.monotonic_ms()

        async def ask(node_id: int | None, group: list[ConfigResource]) -> dict[None, None]:
            request = altered_configs.IncrementalAlterConfigsRequest(
                resources=[
                    altered_configs.AlterConfigsResource(
                        resource_type=resource.resource_type,
                        resource_name=resource.name,
                        configs=[
                            altered_configs.AlterableConfig(
                                name=change.name,
                                config_operation=change.operation,
                                value=change.value,
                            )
                            for change in changes[resource]
                        ],
                    )
                    for resource in group
                ],
                validate_only=validate_only,
            )
            if self._client.config.asks_controllers:
                response = await self._client.ask_controller(request)  # also for another node
            else:
                response = await self._ask_node_or_any(node_id, request)
            for result in response.responses:
                resource = ConfigResource(
                    ConfigResourceType(result.resource_type), result.resource_name
                )
                self._raise_configs(result.error_code, result.error_message, resource, began_ms)
            return {}

        async def attempt() -> None:
            await gathered(ask(*group) for group in _by_node(changes).items())

        await self._client.retry(attempt, what="alter configs", timeout_ms=timeout_ms)

    async def list_config_resources(
        self,
        resource_types: Collection[ConfigResourceType] = (),
        *,
        timeout_ms: float | None = None,
    ) -> list[ConfigResource]:
        """Everything that can carry a configuration (KIP-1142); no types mean all of them."""
        check_several(resource_types)
        request = ListConfigResourcesRequest(resource_types=[int(t) for t in resource_types])
        response = await self._ask_any(request, "list config resources", timeout_ms)
        return [
            ConfigResource(ConfigResourceType(entry.resource_type), entry.resource_name)
            for entry in response.config_resources
        ]

    def _raise_configs(
        self, code: int, message: str | None, resource: ConfigResource, began_ms: float
    ) -> None:
        """Raise a resource's error; nothing for NONE. A topic that is unknown for longer than a new
        one may be is not asked for again.

        Raises: BrokerError.
        """
        if code != ErrorCode.NONE:
            is_old = self._client.clock.monotonic_ms() - began_ms >= NEWS_MS
            final = code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and is_old
            raise error_for(code, message, f"configuration of {resource}", final=final)

    async def _ask_node_or_any(self, node_id: int | None, request: Request[Response]) -> Response:
        if node_id is None:
            return await self._client.ask_any(request)
        return await self._client.ask_node(node_id, request)

    # -- brokers ----------------------------------------------------------------------------------

    async def describe_log_directories(
        self, broker_ids: Collection[int], *, timeout_ms: float | None = None
    ) -> dict[int, list[LogDirectory]]:
        """Contents and sizes of each broker's log directories (KIP-113, KIP-827)."""
        check_several(broker_ids)

        async def ask(broker_id: int) -> dict[int, list[LogDirectory]]:
            response = await self._client.ask_node(broker_id, DescribeLogDirsRequest(topics=None))
            raise_for(response.error_code, None, f"log directories of broker {broker_id}")
            return {
                broker_id: [
                    LogDirectory(
                        result.log_dir,
                        None
                        if result.error_code == ErrorCode.NONE
                        else ErrorCode.of(result.error_code).name,
                        result.total_bytes,
                        result.usable_bytes,
                        {
                            TopicPartition(topic.name, each.partition_index): each.partition_size
                            for topic in result.topics
                            for each in topic.partitions
                        },
                    )
                    for result in response.results
                ]
            }

        async def attempt() -> dict[int, list[LogDirectory]]:
            return await gathered(map(ask, broker_ids))

        return await self._client.retry(attempt, what="describe log dirs", timeout_ms=timeout_ms)

    async def describe_certificates(
        self, broker_ids: Collection[int], *, timeout_ms: float | None = None
    ) -> dict[int, bytes | None]:
        """The certificate that each broker has shown to this client, in DER; None without TLS."""
        check_several(broker_ids)

        async def ask(broker_id: int) -> dict[int, bytes | None]:
            return {broker_id: (await self._client.connection(broker_id)).peer_certificate}

        async def attempt() -> dict[int, bytes | None]:
            return await gathered(map(ask, broker_ids))

        return await self._client.retry(attempt, what="see certificates", timeout_ms=timeout_ms)

    async def unregister_broker(self, broker_id: int, *, timeout_ms: float | None = None) -> None:
        """Remove a broker that is gone for good. Raises: BrokerError (BROKER_ID_NOT_REGISTERED)"""
        request = UnregisterBrokerRequest(broker_id=broker_id)
        await self._ask_controller(request, f"unregister broker {broker_id}", timeout_ms)

    # -- features and the quorum ------------------------------------------------------------------

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
        request = updated_features.UpdateFeaturesRequest(
            timeout_ms=OPERATION_TIMEOUT_MS,
            feature_updates=[
                updated_features.FeatureUpdateKey(
                    feature=name,
                    max_version_level=update.level,
                    allow_downgrade=False,
                    upgrade_type=update.upgrade_type,
                )
                for name, update in updates.items()
            ],
            validate_only=validate_only,
        )
        await self._ask_controller(
            request,
            "update features",
            timeout_ms,
            check=lambda found: raise_any(found.results, lambda each: f"feature {each.feature}"),
        )

    async def describe_metadata_quorum(
        self, *, timeout_ms: float | None = None
    ) -> QuorumDescription:
        """Leader, voters and observers of the metadata log (KIP-595, KIP-836, KIP-853)."""
        return await self._client.retry(
            self._describe_quorum, what="describe quorum", timeout_ms=timeout_ms
        )

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
            cluster_id: refused when it is not the cluster's; None for no check.

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
            listeners=_listeners(endpoints),
        )
        await self._ask_controller(request, f"add voter {voter_id}", timeout_ms)

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
        await self._ask_controller(request, f"remove voter {voter_id}", timeout_ms)

    async def transfer_quorum_leader(
        self, successor_id: int, *, timeout_ms: float | None = None
    ) -> QuorumDescription:
        """Let the quorum's leader resign in favour of another voter; returns the quorum after it.

        The leader is sent an EndQuorumEpoch in its own name, which names the successor first; it
        resigns and notifies the voters in this order. The winner of the election leads.

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

    async def _describe_quorum(self) -> QuorumDescription:
        request = describe_quorum.DescribeQuorumRequest(
            topics=[
                describe_quorum.TopicData(
                    topic_name=METADATA_TOPIC_NAME,
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
            voters=tuple(map(_replica, partition.current_voters)),
            observers=tuple(map(_replica, partition.observers)),
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
        if self._client.metadata.cluster_id is None:
            await self._client.refresh_metadata([])
        request = end_quorum_epoch.EndQuorumEpochRequest(
            cluster_id=self._client.metadata.cluster_id,
            topics=[
                end_quorum_epoch.TopicData(
                    topic_name=METADATA_TOPIC_NAME,
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
            leader_endpoints=_listeners(endpoints),
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


def _by_node(resources: Iterable[ConfigResource]) -> dict[int | None, list[ConfigResource]]:
    """Resources by the broker that has to be asked; None for any broker."""
    groups: defaultdict[int | None, list[ConfigResource]] = defaultdict(list)
    for resource in resources:
        is_own = resource.resource_type in BROKER_RESOURCES and resource.name.isdigit()
        groups[int(resource.name) if is_own else None].append(resource)
    return groups


def _entry(entry: described_configs.DescribeConfigsResourceResult) -> ConfigEntry:
    return ConfigEntry(
        entry.name,
        entry.value,
        ConfigSource(max(0, entry.config_source)),
        entry.read_only,
        entry.is_sensitive,
        tuple((s.name, s.value, ConfigSource(s.source)) for s in entry.synonyms),
        entry.documentation,
    )


def _listeners(endpoints: Iterable[QuorumEndpoint]) -> list[Endpoint]:
    return [Endpoint(name=each.listener_name, host=each.host, port=each.port) for each in endpoints]


def _replica(state: describe_quorum.ReplicaState) -> QuorumReplica:
    times_ms = (state.last_fetch_timestamp, state.last_caught_up_timestamp)
    return QuorumReplica(
        state.replica_id,
        state.replica_directory_id,
        state.log_end_offset,
        *(time_ms if time_ms >= 0 else None for time_ms in times_ms),
    )
