"""The table of APIs: one row says all that is stated of an API, for brokers and controllers alike.

Owns the versions, lanes, budgets, permissions and quotas of both kinds of listeners, and the names
of what answers there: the rooms of the broker and of the controller stand above this one, and a
handler is imported at its first request at a broker. Must not decide anything. Invariant: an API or
a version is in the table only when it is fully served: what ApiVersions does not name cannot be
reached either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from moldau.protocol.access_control import Operation
from moldau.protocol.api_keys import ApiKey
from moldau.server.change_log import (
    Change,
    configurations_changed,
    credentials_changed,
    entries_created,
    entries_deleted,
    quotas_changed,
)
from moldau.server.decoding import (
    BULK_BYTES,
    LIST_BYTES,
    SCALARS,
    Budget,
    needs,
    on_cluster,
    on_configs,
    on_groups,
    on_topics,
    on_transactions,
)
from moldau.server.fair_shares import Lane

METADATA: Final = Lane("metadata", 16)
"""What the metadata image answers; more at once would only take turns on the loop."""

LOOKUPS: Final = Lane("offset look-ups", 64)
"""ListOffsets, which may read from logs."""

DESCRIPTIONS: Final = Lane("descriptions", 16)
"""Configurations, rules, quotas, users, tokens, log directories: rare, and of any size."""

FORWARDING: Final = Lane("forwarded requests", 64, ends_with_connection=True)
"""What the active controller decides: while none answers, each waits as long as it may."""

SEARCHES: Final = Lane("searches", 8, ends_with_connection=True)
"""ListTransactions, which may match many names with a costly expression."""

CHANGES: Final = Lane("changes", 64)
"""What the active controller decides for clients, forwarded requests included. A request that has
begun keeps its place though its client has gone: the controller still holds what it began.
"""

PEERS: Final = Lane("nodes", 20_000)
"""Waiting fetches of the quorum included. The nodes may be one principal, which gets a half."""

FORWARDED: Final = "forwarding"
"""The broker's module for what only travels on to the active controller."""

TOKENS: Final = "delegation_tokens"
"""Forwarded, too, once it is clear that the client may ask about delegation tokens."""

RULES: Final = "descriptions"
"""Who may do what, and who may log in: from the broker's image."""

QUORUM: Final = "the quorum"
DESCRIBED: Final = "a description"
BY_LISTENER: Final = "the listener itself"
"""The same at brokers and controllers: ApiVersions, and SASL where no session waits for it."""


class Api(NamedTuple):
    """A row.

    Attributes:
        min_version, max_version: what is served, inclusive.
        broker: what answers on a broker's listener: BY_LISTENER, or a module of `broker.api`; ""
            for nothing.
        lane: at a broker, of what a coroutine answers; FORWARDING if any of it is forwarded.
        budget: of the decoding of what is not small, with the rights that a sender needs for it.
        controller: what answers on a controller's listener: QUORUM; DESCRIBED, from the metadata
            that any controller has replayed; BY_LISTENER; or what decides it at the active one, a
            function of `controller.core` ("topic_control.create_topics"); "" for nothing.
        operation: the permission on the cluster that a controller asks for; a broker that only
            forwards asks for none.
        restricted_by: the function of `controller.permitted_parts` that leaves of a request what
            the sender may ask for.
        strict_since: the first version whose clients know THROTTLING_QUOTA_EXCEEDED, of an API that
            takes from the quota of partitions created and deleted (KIP-599).
        changed: what the audit log says that an answered request has changed.
        link: the connection to the active controller that a broker sends it by: what must not wait
            for a slow change has one of its own.
        told_since: the lowest version that ApiVersions names, where that is not the lowest served.
    """

    min_version: int
    max_version: int
    broker: str = ""
    lane: Lane | None = None
    budget: Budget = SCALARS
    controller: str = ""
    operation: Operation | None = None
    restricted_by: str = ""
    strict_since: int | None = None
    changed: Callable[[Any, Any], Iterator[Change]] | None = None
    link: str = "forwarding"
    told_since: int | None = None

    @property
    def controller_lane(self) -> Lane:
        """What nodes ask has its own lane, the question about the quorum included."""
        asks_quorum = self.controller == QUORUM and self.operation is Operation.DESCRIBE
        if self.operation is Operation.CLUSTER_ACTION or asks_quorum:
            return PEERS
        return DESCRIPTIONS if self.controller == DESCRIBED else CHANGES

    @property
    def controller_budget(self) -> Budget:
        """At a controller the right on the cluster is the only one that counts, if one is asked."""
        if self.operation is None:
            return self.budget
        is_of_nodes = self.operation is Operation.CLUSTER_ACTION
        return needs(
            on_cluster(self.operation), max_bytes=BULK_BYTES if is_of_nodes else LIST_BYTES
        )

    @property
    def changes_metadata(self) -> bool:
        """Whether the answer to what is forwarded waits until the broker has seen the change."""
        return self.operation is not Operation.DESCRIBE


def _forwarded(
    min_version: int,
    max_version: int,
    controller: str,
    operation: Operation | None = None,
    budget: Budget | None = None,
    **more: Any,
) -> Api:
    """The row of what brokers only forward."""
    if budget is None:
        budget = SCALARS if operation is None else needs(on_cluster(operation))
    row = Api(min_version, max_version, FORWARDED, FORWARDING, budget, controller, operation)
    return row._replace(**more)


def _of_nodes(min_version: int, max_version: int, controller: str, **more: Any) -> Api:
    """The row of what brokers and controllers ask a controller."""
    return Api(
        min_version, max_version, controller=controller, operation=Operation.CLUSTER_ACTION, **more
    )


_READS_GROUP: Final = needs(on_groups(Operation.READ, "group_id"))
_DESCRIBES_GROUPS: Final = needs(on_groups(Operation.DESCRIBE))
_DESCRIBES_TOPICS: Final = needs(on_topics(Operation.DESCRIBE))

APIS: Final[dict[ApiKey, Api]] = {
    ApiKey.PRODUCE: Api(
        3,
        13,
        "p00_produce",
        budget=needs(on_topics(Operation.WRITE)),
        # As Apache Kafka, though 0 to 2 are refused: librdkafka before 2.8 leaves batches
        # uncompressed, without a word, unless it reads that.
        told_since=0,
    ),
    ApiKey.FETCH: Api(
        4,
        18,
        "p01_fetch",
        budget=needs(
            on_topics(Operation.READ), on_cluster(Operation.CLUSTER_ACTION), max_bytes=BULK_BYTES
        ),
        controller=QUORUM,
        operation=Operation.CLUSTER_ACTION,
    ),
    ApiKey.LIST_OFFSETS: Api(
        1,
        11,
        "p02_list_offsets",
        LOOKUPS,
        needs(on_topics(Operation.DESCRIBE), max_bytes=BULK_BYTES),
    ),
    ApiKey.METADATA: Api(0, 13, "p03_metadata", METADATA, _DESCRIBES_TOPICS),
    ApiKey.OFFSET_COMMIT: Api(
        2,
        10,
        "p08_offset_commit",
        budget=needs(on_groups(Operation.READ, "group_id"), max_bytes=BULK_BYTES),
    ),
    ApiKey.OFFSET_FETCH: Api(
        1, 10, "p09_offset_fetch", budget=needs(on_groups(Operation.DESCRIBE, "group_id"))
    ),
    ApiKey.FIND_COORDINATOR: Api(
        0,
        6,
        "p10_find_coordinator",
        budget=needs(on_groups(Operation.DESCRIBE), on_transactions(Operation.DESCRIBE)),
    ),
    ApiKey.JOIN_GROUP: Api(0, 9, "p11_join_group", budget=_READS_GROUP),
    ApiKey.HEARTBEAT: Api(0, 4, "p12_heartbeat"),
    ApiKey.LEAVE_GROUP: Api(0, 5, "p13_leave_group", budget=_READS_GROUP),
    ApiKey.SYNC_GROUP: Api(0, 5, "p14_sync_group", budget=_READS_GROUP),
    ApiKey.DESCRIBE_GROUPS: Api(0, 6, "p15_describe_groups", budget=_DESCRIBES_GROUPS),
    ApiKey.LIST_GROUPS: Api(0, 5, "p16_list_groups"),
    ApiKey.SASL_HANDSHAKE: Api(0, 1, BY_LISTENER, controller=BY_LISTENER),
    ApiKey.API_VERSIONS: Api(0, 4, BY_LISTENER, controller=BY_LISTENER),
    ApiKey.CREATE_TOPICS: _forwarded(
        2,
        7,
        "topic_control.create_topics",
        budget=needs(on_cluster(Operation.CREATE), on_topics(Operation.CREATE)),
        restricted_by="create_topics",
        strict_since=6,
    ),
    ApiKey.DELETE_TOPICS: _forwarded(
        1,
        6,
        "topic_control.delete_topics",
        budget=needs(on_cluster(Operation.DELETE), on_topics(Operation.DELETE)),
        restricted_by="delete_topics",
        strict_since=5,
    ),
    ApiKey.DELETE_RECORDS: Api(
        0, 2, "p21_delete_records", budget=needs(on_topics(Operation.DELETE))
    ),
    ApiKey.INIT_PRODUCER_ID: Api(0, 6, "p22_init_producer_id"),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Api(
        2,
        4,
        "p23_offset_for_leader_epoch",
        budget=needs(
            on_topics(Operation.DESCRIBE),
            on_cluster(Operation.CLUSTER_ACTION),
            max_bytes=BULK_BYTES,
        ),
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: Api(
        0,
        5,
        "p24_add_partitions_to_txn",
        budget=needs(
            on_transactions(Operation.WRITE, "v3_and_below_transactional_id"),
            on_cluster(Operation.CLUSTER_ACTION),
        ),
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: Api(0, 4, "p25_add_offsets_to_txn"),
    ApiKey.END_TXN: Api(0, 5, "p26_end_txn"),
    ApiKey.WRITE_TXN_MARKERS: Api(
        1,
        2,
        "p27_write_txn_markers",
        budget=needs(
            on_cluster(Operation.CLUSTER_ACTION), on_cluster(Operation.ALTER), max_bytes=BULK_BYTES
        ),
    ),
    ApiKey.TXN_OFFSET_COMMIT: Api(
        0,
        5,
        "p28_txn_offset_commit",
        budget=needs(on_transactions(Operation.WRITE, "transactional_id")),
    ),
    ApiKey.DESCRIBE_ACLS: Api(
        1, 3, RULES, DESCRIPTIONS, controller=DESCRIBED, operation=Operation.DESCRIBE
    ),
    ApiKey.CREATE_ACLS: _forwarded(
        1, 3, "access_control.create_acls", Operation.ALTER, changed=entries_created
    ),
    ApiKey.DELETE_ACLS: _forwarded(
        1, 3, "access_control.delete_acls", Operation.ALTER, changed=entries_deleted
    ),
    ApiKey.DESCRIBE_CONFIGS: Api(
        1,
        4,
        "p32_describe_configs",
        DESCRIPTIONS,
        on_configs(Operation.DESCRIBE_CONFIGS),
        controller=DESCRIBED,
    ),
    ApiKey.ALTER_CONFIGS: Api(
        0,
        2,
        "p33_alter_configs",
        FORWARDING,
        on_configs(Operation.ALTER_CONFIGS),
        "configuration_control.legacy_alter_configs",
        restricted_by="alter_configs",
        changed=configurations_changed,
    ),
    ApiKey.DESCRIBE_LOG_DIRS: Api(
        1, 5, "p35_describe_log_dirs", DESCRIPTIONS, needs(on_cluster(Operation.DESCRIBE))
    ),
    ApiKey.SASL_AUTHENTICATE: Api(0, 2, BY_LISTENER, controller=BY_LISTENER),
    ApiKey.CREATE_PARTITIONS: _forwarded(
        0,
        3,
        "topic_control.create_partitions",
        budget=needs(on_topics(Operation.ALTER)),
        restricted_by="create_partitions",
        strict_since=3,
    ),
    ApiKey.CREATE_DELEGATION_TOKEN: _forwarded(
        1,
        3,
        "delegation_token_control.create_delegation_token",
        broker=TOKENS,
        restricted_by="create_delegation_token",
    ),
    ApiKey.RENEW_DELEGATION_TOKEN: _forwarded(
        1, 2, "delegation_token_control.renew_delegation_token", broker=TOKENS
    ),
    ApiKey.EXPIRE_DELEGATION_TOKEN: _forwarded(
        1, 2, "delegation_token_control.expire_delegation_token", broker=TOKENS
    ),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: Api(1, 3, "p41_describe_delegation_token", DESCRIPTIONS),
    ApiKey.DELETE_GROUPS: Api(0, 2, "p42_delete_groups", budget=needs(on_groups(Operation.DELETE))),
    ApiKey.ELECT_LEADERS: _forwarded(0, 2, "elections.elect_leaders", Operation.ALTER),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Api(
        0,
        1,
        "p44_incremental_alter_configs",
        FORWARDING,
        on_configs(Operation.ALTER_CONFIGS),
        "configuration_control.incremental_alter_configs",
        restricted_by="alter_configs",
        changed=configurations_changed,
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _forwarded(
        0, 1, "reassignments.alter_partition_reassignments", Operation.ALTER
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _forwarded(
        0, 0, "reassignments.list_partition_reassignments", Operation.DESCRIBE
    ),
    ApiKey.OFFSET_DELETE: Api(
        0, 0, "p47_offset_delete", budget=needs(on_groups(Operation.DELETE, "group_id"))
    ),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: Api(0, 1, "p48_describe_client_quotas", DESCRIPTIONS),
    ApiKey.ALTER_CLIENT_QUOTAS: _forwarded(
        0,
        1,
        "client_quota_control.alter_client_quotas",
        Operation.ALTER_CONFIGS,
        changed=quotas_changed,
    ),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: Api(
        0,
        0,
        RULES,
        DESCRIPTIONS,
        needs(on_cluster(Operation.DESCRIBE)),
        DESCRIBED,
        Operation.DESCRIBE,
    ),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _forwarded(
        0,
        0,
        "scram_control.alter_user_scram_credentials",
        Operation.ALTER,
        changed=credentials_changed,
    ),
    ApiKey.VOTE: _of_nodes(0, 2, QUORUM),
    ApiKey.BEGIN_QUORUM_EPOCH: _of_nodes(0, 1, QUORUM),
    ApiKey.END_QUORUM_EPOCH: _of_nodes(0, 1, QUORUM),
    ApiKey.DESCRIBE_QUORUM: _forwarded(0, 2, QUORUM, Operation.DESCRIBE),
    ApiKey.ALTER_PARTITION: _of_nodes(
        2, 3, "replica_reports.alter_partition", link="alter-partition"
    ),
    ApiKey.UPDATE_FEATURES: _forwarded(0, 2, "feature_control.update_features", Operation.ALTER),
    ApiKey.ENVELOPE: _of_nodes(0, 0, BY_LISTENER),
    ApiKey.FETCH_SNAPSHOT: _of_nodes(0, 1, QUORUM),
    ApiKey.DESCRIBE_CLUSTER: Api(
        0,
        2,
        "p60_describe_cluster",
        METADATA,
        controller=DESCRIBED,
        operation=Operation.ALTER,  # more than at a broker, as in Apache Kafka
    ),
    ApiKey.DESCRIBE_PRODUCERS: Api(
        0, 0, "p61_describe_producers", budget=needs(on_topics(Operation.READ))
    ),
    ApiKey.BROKER_REGISTRATION: _of_nodes(0, 4, "ClusterControl.register_broker", link="heartbeat"),
    ApiKey.BROKER_HEARTBEAT: _of_nodes(0, 2, "ClusterControl.heartbeat", link="heartbeat"),
    ApiKey.UNREGISTER_BROKER: _forwarded(
        0, 0, "ClusterControl.unregister_broker", Operation.ALTER, SCALARS
    ),
    ApiKey.DESCRIBE_TRANSACTIONS: Api(
        0, 0, "p65_describe_transactions", budget=needs(on_transactions(Operation.DESCRIBE))
    ),
    ApiKey.LIST_TRANSACTIONS: Api(0, 2, "p66_list_transactions", SEARCHES),
    ApiKey.ALLOCATE_PRODUCER_IDS: _of_nodes(0, 0, "cluster_control.allocate_producer_ids"),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: Api(0, 1, "p68_consumer_group_heartbeat", budget=_READS_GROUP),
    ApiKey.CONSUMER_GROUP_DESCRIBE: Api(
        0, 1, "p69_consumer_group_describe", budget=_DESCRIBES_GROUPS
    ),
    ApiKey.CONTROLLER_REGISTRATION: _of_nodes(0, 0, "cluster_control.register_controller"),
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: _of_nodes(
        0, 0, "replica_reports.assign_replicas_to_directories", link="directory-assignments"
    ),
    ApiKey.LIST_CONFIG_RESOURCES: Api(0, 1, "p74_list_config_resources", DESCRIPTIONS),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: Api(
        0, 0, "p75_describe_topic_partitions", METADATA, _DESCRIBES_TOPICS
    ),
    # A new voter's request waits until it has caught up.
    ApiKey.ADD_RAFT_VOTER: _forwarded(0, 1, QUORUM, Operation.ALTER, SCALARS, link="voters"),
    ApiKey.REMOVE_RAFT_VOTER: _forwarded(0, 0, QUORUM, Operation.ALTER, SCALARS, link="voters"),
    ApiKey.UPDATE_RAFT_VOTER: _of_nodes(0, 0, QUORUM),
}

BROKER_APIS: Final = {api_key: api for api_key, api in APIS.items() if api.broker}
CONTROLLER_APIS: Final = {api_key: api for api_key, api in APIS.items() if api.controller}
FORWARDABLE_APIS: Final = frozenset(
    {api_key for api_key, api in APIS.items() if api.lane is FORWARDING}
    | {ApiKey.ALLOCATE_PRODUCER_IDS}
)
"""What a broker may put into an Envelope: all that Apache Kafka 4.3 lets brokers forward."""
