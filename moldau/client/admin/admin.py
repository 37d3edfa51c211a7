"""The admin client: topics, configurations, brokers, offsets, groups, transactions, the quorum.

Owns the calls of an operator, one base class per subject, each retried over passing faults within
its time limit. Must not cache anything but the brokers' addresses. Invariant: a call either returns
the cluster's answer or raises one `KafkaError`; for several names at once it first finishes all of
them, then raises for the first that failed. Calls about single replicas, groups, transactions and
their partitions return an error beside the values instead.
"""

from __future__ import annotations

from moldau.client.admin.cluster import ClusterCalls
from moldau.client.admin.groups import GroupCalls
from moldau.client.admin.partitions import PartitionCalls
from moldau.client.admin.security import SecurityCalls
from moldau.client.admin.topics import TopicCalls
from moldau.client.admin.transactions import TransactionCalls


class Admin(TopicCalls, PartitionCalls, ClusterCalls, GroupCalls, TransactionCalls, SecurityCalls):
    """An asyncio admin client; use as `async with Admin("localhost:9092") as admin`.

    While no broker was ever reached, calls fail with `NoBrokerAvailable` after about a second where
    every address refuses, and with `RequestTimeout` after `request.timeout.ms` where none answers;
    with `retries` among the settings they go on until `default.api.timeout.ms` is over.

    Args:
        bootstrap_servers: `HOST:PORT,…` or a list of these.
        config: a whole configuration, or a mapping of dotted keys; keyword settings win over it.
        settings: keyword settings of `AdminConfig`; with `bootstrap_controllers` and no
            bootstrap servers the controllers are asked directly (KIP-919).
        ports: clock, network and randomness of a simulation; None for the machine's own.

    Raises:
        ConfigurationError: a setting that is unknown or cannot have that value.
    """
