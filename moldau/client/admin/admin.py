"""The admin client: topics, configurations, brokers, offsets, groups, transactions, the quorum.

Owns the calls of an operator, one base class per subject, each retried over passing faults within
its time limit. Must not cache anything but the brokers' addresses. Invariant: a call either returns
the cluster's answer or raises one `KafkaError`; for several names at once it first finishes all of
them, then raises for the first that failed. Calls about single replicas, groups, transactions and
their partitions return an error beside the values instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self, Unpack

from moldau.client.admin.cluster import ClusterCalls
from moldau.client.admin.groups import GroupCalls
from moldau.client.admin.partitions import PartitionCalls
from moldau.client.admin.security import SecurityCalls
from moldau.client.admin.topics import TopicCalls
from moldau.client.admin.transactions import TransactionCalls
from moldau.client.cluster.cluster_client import ClusterClient
from moldau.client.cluster.coordinators import Coordinators
from moldau.client.config.client import AdminConfig, AdminSettings, ClientConfig


class Admin(TopicCalls, PartitionCalls, ClusterCalls, GroupCalls, TransactionCalls, SecurityCalls):
    """An asyncio admin client; use as `async with Admin("localhost:9092") as admin`.

    Args:
        bootstrap_servers: `HOST:PORT,…` or a list of these.
        config: a whole configuration, or a mapping of dotted keys; keyword settings win over it.
        settings: keyword settings of `AdminConfig`; with `bootstrap_controllers` and no
            bootstrap servers the controllers are asked directly (KIP-919).

    Raises:
        ConfigurationError: a setting that is unknown or cannot have that value.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] = (),
        *,
        config: ClientConfig | Mapping[str, object] | None = None,
        **settings: Unpack[AdminSettings],
    ) -> None:
        resolved = AdminConfig.resolve(bootstrap_servers, config, settings)
        self._client = ClusterClient(resolved)
        self._coordinators = Coordinators(self._client)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close()
