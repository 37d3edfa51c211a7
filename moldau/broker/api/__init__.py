"""The table of served APIs: which versions are advertised, and which module answers them.

Owns the list that ApiVersions sends and the request router dispatches by: an API or a version is
in it only when it is fully served, so what is not advertised cannot be reached either. Must not
import a handler before its first request (start-up). Invariant: every row names a module of this
package with a `handle` (plain function, answers through its context, now or later; a generator if
a request may have many parts, which yields after each so that others get their turn) or an `answer`
(coroutine that returns the response). What only travels on to the active controller, which
authorises and decides it, has the row's module `forwarding`.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Final, NamedTuple

from moldau.broker.api.lanes import DESCRIPTIONS, FORWARDING, LOOKUPS, METADATA, SEARCHES
from moldau.protocol.access_control import Operation
from moldau.protocol.api_keys import ApiKey
from moldau.server.decoding import (
    BULK_BYTES,
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
from moldau.server.request_router import Handler, Route

if TYPE_CHECKING:
    from moldau.broker.api.services import BrokerServices

FORWARDED: Final = "forwarding"
TOKENS: Final = "delegation_tokens"
"""Forwarded, too, once it is clear that the client may ask about delegation tokens."""


class ServedApi(NamedTuple):
    """One row: the handler's module inside this package, the versions it serves (inclusive), the
    lane of what is answered by a coroutine, and the budget of what is not small when it is decoded,
    with the rights that a sender needs for it.
    """

    module: str
    min_version: int
    max_version: int
    lane: Lane | None = None
    budget: Budget = SCALARS


BROKER_APIS: Final[dict[ApiKey, ServedApi]] = {
    ApiKey.PRODUCE: ServedApi("p00_produce", 3, 13, budget=needs(on_topics(Operation.WRITE))),
    ApiKey.FETCH: ServedApi(
        "p01_fetch",
        4,
        18,
        budget=needs(
            on_topics(Operation.READ), on_cluster(Operation.CLUSTER_ACTION), max_bytes=BULK_BYTES
        ),
    ),
    ApiKey.LIST_OFFSETS: ServedApi(
        "p02_list_offsets",
        1,
        11,
        LOOKUPS,
        needs(on_topics(Operation.DESCRIBE), max_bytes=BULK_BYTES),
    ),
    ApiKey.METADATA: ServedApi(
        "p03_metadata", 0, 13, METADATA, needs(on_topics(Operation.DESCRIBE))
    ),
    ApiKey.OFFSET_COMMIT: ServedApi(
        "p08_offset_commit",
        2,
        10,
        budget=needs(on_groups(Operation.READ, "group_id"), max_bytes=BULK_BYTES),
    ),
    ApiKey.OFFSET_FETCH: ServedApi(
        "p09_offset_fetch", 1, 10, budget=needs(on_groups(Operation.DESCRIBE, "group_id"))
    ),
    ApiKey.FIND_COORDINATOR: ServedApi(
        "p10_find_coordinator",
        0,
        6,
        budget=needs(on_groups(Operation.DESCRIBE), on_transactions(Operation.DESCRIBE)),
    ),
    ApiKey.JOIN_GROUP: ServedApi(
        "p11_join_group", 0, 9, budget=needs(on_groups(Operation.READ, "group_id"))
    ),
    ApiKey.HEARTBEAT: ServedApi("p12_heartbeat", 0, 4),
    ApiKey.LEAVE_GROUP: ServedApi(
        "p13_leave_group", 0, 5, budget=needs(on_groups(Operation.READ, "group_id"))
    ),
    ApiKey.SYNC_GROUP: ServedApi(
        "p14_sync_group", 0, 5, budget=needs(on_groups(Operation.READ, "group_id"))
    ),
    ApiKey.DESCRIBE_GROUPS: ServedApi(
        "p15_describe_groups", 0, 6, budget=needs(on_groups(Operation.DESCRIBE))
    ),
    ApiKey.LIST_GROUPS: ServedApi("p16_list_groups", 0, 5),
    ApiKey.SASL_HANDSHAKE: ServedApi("p17_sasl_handshake", 0, 1),
    ApiKey.API_VERSIONS: ServedApi("p18_api_versions", 0, 4),
    ApiKey.CREATE_TOPICS: ServedApi(
        FORWARDED,
        2,
        7,
        FORWARDING,
        needs(on_cluster(Operation.CREATE), on_topics(Operation.CREATE)),
    ),
    ApiKey.DELETE_TOPICS: ServedApi(
        FORWARDED,
        1,
        6,
        FORWARDING,
        needs(on_cluster(Operation.DELETE), on_topics(Operation.DELETE)),
    ),
    ApiKey.DELETE_RECORDS: ServedApi(
        "p21_delete_records", 0, 2, budget=needs(on_topics(Operation.DELETE))
    ),
    ApiKey.INIT_PRODUCER_ID: ServedApi("p22_init_producer_id", 0, 6),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: ServedApi(
        "p23_offset_for_leader_epoch",
        2,
        4,
        budget=needs(
            on_topics(Operation.DESCRIBE),
            on_cluster(Operation.CLUSTER_ACTION),
            max_bytes=BULK_BYTES,
        ),
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: ServedApi(
        "p24_add_partitions_to_txn",
        0,
        5,
        budget=needs(
            on_transactions(Operation.WRITE, "v3_and_below_transactional_id"),
            on_cluster(Operation.CLUSTER_ACTION),
        ),
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: ServedApi("p25_add_offsets_to_txn", 0, 4),
    ApiKey.END_TXN: ServedApi("p26_end_txn", 0, 5),
    ApiKey.WRITE_TXN_MARKERS: ServedApi(
        "p27_write_txn_markers",
        1,
        2,
        budget=needs(
            on_cluster(Operation.CLUSTER_ACTION), on_cluster(Operation.ALTER), max_bytes=BULK_BYTES
        ),
    ),
    ApiKey.TXN_OFFSET_COMMIT: ServedApi(
        "p28_txn_offset_commit",
        0,
        5,
        budget=needs(on_transactions(Operation.WRITE, "transactional_id")),
    ),
    ApiKey.DESCRIBE_ACLS: ServedApi("p29_describe_acls", 1, 3, DESCRIPTIONS),
    ApiKey.CREATE_ACLS: ServedApi(FORWARDED, 1, 3, FORWARDING, needs(on_cluster(Operation.ALTER))),
    ApiKey.DELETE_ACLS: ServedApi(FORWARDED, 1, 3, FORWARDING, needs(on_cluster(Operation.ALTER))),
    ApiKey.DESCRIBE_CONFIGS: ServedApi(
        "p32_describe_configs", 1, 4, DESCRIPTIONS, on_configs(Operation.DESCRIBE_CONFIGS)
    ),
    ApiKey.ALTER_CONFIGS: ServedApi(
        "p33_alter_configs", 0, 2, FORWARDING, on_configs(Operation.ALTER_CONFIGS)
    ),
    ApiKey.DESCRIBE_LOG_DIRS: ServedApi(
        "p35_describe_log_dirs", 1, 5, DESCRIPTIONS, needs(on_cluster(Operation.DESCRIBE))
    ),
    ApiKey.SASL_AUTHENTICATE: ServedApi("p36_sasl_authenticate", 0, 2),
    ApiKey.CREATE_PARTITIONS: ServedApi(
        FORWARDED, 0, 3, FORWARDING, needs(on_topics(Operation.ALTER))
    ),
    ApiKey.CREATE_DELEGATION_TOKEN: ServedApi(TOKENS, 1, 3, FORWARDING),
    ApiKey.RENEW_DELEGATION_TOKEN: ServedApi(TOKENS, 1, 2, FORWARDING),
    ApiKey.EXPIRE_DELEGATION_TOKEN: ServedApi(TOKENS, 1, 2, FORWARDING),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: ServedApi(
        "p41_describe_delegation_token", 1, 3, DESCRIPTIONS
    ),
    ApiKey.DELETE_GROUPS: ServedApi(
        "p42_delete_groups", 0, 2, budget=needs(on_groups(Operation.DELETE))
    ),
    ApiKey.ELECT_LEADERS: ServedApi(
        FORWARDED, 0, 2, FORWARDING, needs(on_cluster(Operation.ALTER))
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: ServedApi(
        "p44_incremental_alter_configs", 0, 1, FORWARDING, on_configs(Operation.ALTER_CONFIGS)
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: ServedApi(
        FORWARDED, 0, 1, FORWARDING, needs(on_cluster(Operation.ALTER))
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: ServedApi(
        FORWARDED, 0, 0, FORWARDING, needs(on_cluster(Operation.DESCRIBE))
    ),
    ApiKey.OFFSET_DELETE: ServedApi(
        "p47_offset_delete", 0, 0, budget=needs(on_groups(Operation.DELETE, "group_id"))
    ),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: ServedApi("p48_describe_client_quotas", 0, 1, DESCRIPTIONS),
    ApiKey.ALTER_CLIENT_QUOTAS: ServedApi(
        FORWARDED, 0, 1, FORWARDING, needs(on_cluster(Operation.ALTER_CONFIGS))
    ),
    ApiKey.DESCRIBE_QUORUM: ServedApi(
        FORWARDED, 0, 2, FORWARDING, needs(on_cluster(Operation.DESCRIBE))
    ),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: ServedApi(
        "p50_describe_user_scram_credentials",
        0,
        0,
        DESCRIPTIONS,
        needs(on_cluster(Operation.DESCRIBE)),
    ),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: ServedApi(
        FORWARDED, 0, 0, FORWARDING, needs(on_cluster(Operation.ALTER))
    ),
    ApiKey.UPDATE_FEATURES: ServedApi(
        FORWARDED, 0, 2, FORWARDING, needs(on_cluster(Operation.ALTER))
    ),
    ApiKey.DESCRIBE_CLUSTER: ServedApi("p60_describe_cluster", 0, 2, METADATA),
    ApiKey.DESCRIBE_PRODUCERS: ServedApi(
        "p61_describe_producers", 0, 0, budget=needs(on_topics(Operation.READ))
    ),
    ApiKey.UNREGISTER_BROKER: ServedApi(FORWARDED, 0, 0, FORWARDING),
    ApiKey.DESCRIBE_TRANSACTIONS: ServedApi(
        "p65_describe_transactions", 0, 0, budget=needs(on_transactions(Operation.DESCRIBE))
    ),
    ApiKey.LIST_TRANSACTIONS: ServedApi("p66_list_transactions", 0, 2, SEARCHES),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: ServedApi(
        "p68_consumer_group_heartbeat", 0, 1, budget=needs(on_groups(Operation.READ, "group_id"))
    ),
    ApiKey.CONSUMER_GROUP_DESCRIBE: ServedApi(
        "p69_consumer_group_describe", 0, 1, budget=needs(on_groups(Operation.DESCRIBE))
    ),
    ApiKey.LIST_CONFIG_RESOURCES: ServedApi("p74_list_config_resources", 0, 1, DESCRIPTIONS),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: ServedApi(
        "p75_describe_topic_partitions", 0, 0, METADATA, needs(on_topics(Operation.DESCRIBE))
    ),
    ApiKey.ADD_RAFT_VOTER: ServedApi(FORWARDED, 0, 1, FORWARDING),
    ApiKey.REMOVE_RAFT_VOTER: ServedApi(FORWARDED, 0, 0, FORWARDING),
}


def load_handler_module(served: ServedApi) -> ModuleType:
    return import_module(f"moldau.broker.api.{served.module}")


def broker_routes(services: BrokerServices) -> dict[int, Route]:
    """The table for a request router; `services` is what handlers work with."""
    return {
        int(api_key): Route(
            served.min_version,
            served.max_version,
            partial(_load_handler, services, served),
            served.lane,
            budget=served.budget,
        )
        for api_key, served in BROKER_APIS.items()
    }


def _load_handler(services: BrokerServices, served: ServedApi) -> Handler:
    module = load_handler_module(served)
    handle, answer = getattr(module, "handle", None), getattr(module, "answer", None)
    return Handler(handle and partial(handle, services), answer and partial(answer, services))
