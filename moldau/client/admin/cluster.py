"""Admin calls about the cluster, its brokers, configurations and log directories.

Owns the translation between typed values and messages. Invariant: as in `admin`.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from moldau.client.admin.arguments import check_several
from moldau.client.admin.types import (
    ClusterDescription,
    ConfigChange,
    ConfigEntry,
    ConfigResource,
    ConfigResourceType,
    ConfigSource,
    Features,
    LogDirectory,
    RegisteredBroker,
)
from moldau.client.cluster.cluster_client import ClusterClient, EndpointType, raise_for
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p18_api_versions import ApiVersionsRequest
from moldau.protocol.messages.p32_describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
)
from moldau.protocol.messages.p35_describe_log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsResult,
)
from moldau.protocol.messages.p44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from moldau.protocol.messages.p60_describe_cluster import DescribeClusterRequest
from moldau.protocol.messages.p74_list_config_resources import ListConfigResourcesRequest
from moldau.protocol.schema import Message
from moldau.protocol.types import TopicPartition
from moldau.runtime.connection import UnsupportedByPeer

#: Resources that only the broker they name can answer for.
BROKER_RESOURCES = (ConfigResourceType.BROKER, ConfigResourceType.BROKER_LOGGER)
CLIENT_SOFTWARE = ("moldau-admin", "1")


class ClusterCalls:
    """The part of `Admin` that deals with the cluster as a whole."""

    _client: ClusterClient

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
                # Apache Kafka before 2.8 tells of its brokers with the topics.
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
        """Supported and finalized feature levels, as the broker that answers tells them."""
        name, version = CLIENT_SOFTWARE
        request = ApiVersionsRequest(client_software_name=name, client_software_version=version)

        async def attempt() -> Features:
            response = await self._client.ask_any(request)
            raise_for(response.error_code, None, "describe features")
            return Features(
                {f.name: (f.min_version, f.max_version) for f in response.supported_features},
                {f.name: f.max_version_level for f in response.finalized_features},
                response.finalized_features_epoch,
            )

        return await self._client.retry(attempt, what="describe features", timeout_ms=timeout_ms)

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
        wanted = list(resources)

        async def ask(
            node_id: int | None, group: list[ConfigResource]
        ) -> dict[ConfigResource, dict[str, ConfigEntry]]:
            request = DescribeConfigsRequest(
                resources=[
                    DescribeConfigsResource(
                        resource_type=resource.resource_type,
                        resource_name=resource.name,
                        configuration_keys=None,
                    )
                    for resource in group
                ],
                include_synonyms=include_synonyms,
                include_documentation=include_documentation,
            )
            response = await self._ask(node_id, request)
            described = {}
            for result in response.results:
                resource = ConfigResource(
                    ConfigResourceType(result.resource_type), result.resource_name
                )
                raise_for(result.error_code, result.error_message, f"configuration of {resource}")
                described[resource] = {entry.name: _entry(entry) for entry in result.configs}
            return described

        async def attempt() -> dict[ConfigResource, dict[str, ConfigEntry]]:
            groups = _by_node(wanted)
            answers = await asyncio.gather(*(ask(*group) for group in groups.items()))
            return {key: value for answer in answers for key, value in answer.items()}

        return await self._client.retry(attempt, what="describe configs", timeout_ms=timeout_ms)

    async def alter_configs(
        self,
        changes: Mapping[ConfigResource, Collection[ConfigChange]],
        *,
        validate_only: bool = False,
        timeout_ms: float | None = None,
    ) -> None:
        """Set, delete, append to or subtract from keys (KIP-339). Raises: InvalidRequest, …"""

        async def ask(node_id: int | None, group: list[ConfigResource]) -> None:
            request = IncrementalAlterConfigsRequest(
                resources=[
                    AlterConfigsResource(
                        resource_type=resource.resource_type,
                        resource_name=resource.name,
                        configs=[
                            AlterableConfig(
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
            response = await self._ask(node_id, request)
            for result in response.responses:
                what = f"configuration of {result.resource_name or 'all brokers'}"
                raise_for(result.error_code, result.error_message, what)

        async def attempt() -> None:
            groups = _by_node(changes)
            await asyncio.gather(*(ask(*group) for group in groups.items()))

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

        async def attempt() -> list[ConfigResource]:
            response = await self._client.ask_any(request)
            raise_for(response.error_code, None, "list config resources")
            return [
                ConfigResource(ConfigResourceType(entry.resource_type), entry.resource_name)
                for entry in response.config_resources
            ]

        return await self._client.retry(attempt, what="list resources", timeout_ms=timeout_ms)

    async def describe_log_directories(
        self, broker_ids: Collection[int], *, timeout_ms: float | None = None
    ) -> dict[int, list[LogDirectory]]:
        """What lies in each broker's log directories (KIP-113, KIP-827)."""
        check_several(broker_ids)

        async def ask(broker_id: int) -> tuple[int, list[LogDirectory]]:
            response = await self._client.ask_node(broker_id, DescribeLogDirsRequest(topics=None))
            raise_for(response.error_code, None, f"log directories of broker {broker_id}")
            return broker_id, [_log_directory(result) for result in response.results]

        async def attempt() -> dict[int, list[LogDirectory]]:
            return dict(await asyncio.gather(*(ask(broker_id) for broker_id in broker_ids)))

        return await self._client.retry(attempt, what="describe log dirs", timeout_ms=timeout_ms)

    async def _ask(self, node_id: int | None, request: Message) -> Any:
        if node_id is None:
            return await self._client.ask_any(request)
        return await self._client.ask_node(node_id, request)


def _by_node(resources: Iterable[ConfigResource]) -> dict[int | None, list[ConfigResource]]:
    """Group by the broker that has to be asked; None for any of them."""
    groups: defaultdict[int | None, list[ConfigResource]] = defaultdict(list)
    for resource in resources:
        is_own = resource.resource_type in BROKER_RESOURCES and resource.name.isdigit()
        groups[int(resource.name) if is_own else None].append(resource)
    return groups


def _entry(entry: DescribeConfigsResourceResult) -> ConfigEntry:
    return ConfigEntry(
        entry.name,
        entry.value,
        ConfigSource(max(0, entry.config_source)),
        entry.read_only,
        entry.is_sensitive,
        tuple((s.name, s.value, ConfigSource(s.source)) for s in entry.synonyms),
        entry.documentation,
    )


def _log_directory(result: DescribeLogDirsResult) -> LogDirectory:
    return LogDirectory(
        result.log_dir,
        None if result.error_code == ErrorCode.NONE else ErrorCode.of(result.error_code).name,
        result.total_bytes,
        result.usable_bytes,
        {
            TopicPartition(topic.name, partition.partition_index): partition.partition_size
            for topic in result.topics
            for partition in topic.partitions
        },
    )
