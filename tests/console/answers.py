"""What the console's API answers in the tests of the page, by path: a small cluster in which names,
keys and values are as hostile as Kafka lets them be.
"""

from __future__ import annotations

from typing import Any, Final

CLUSTER: Final = "MkU3OEVBNTcwNTJENDM2Qk"
TOPIC: Final = "orders.v1"
GROUP: Final = "billing"
HOSTILE_GROUP: Final = "<b>group</b>/\x07"
HTML: Final = "<img src=x onerror=alert(1)>"
NOW_MS: Final = 1_796_000_000_000
MIB: Final = 1 << 20

SESSION: Final = {
    "cluster_id": CLUSTER,
    "is_logged_in": True,
    "problem": None,
    "version": "0.1.0",
    "principal": "User:alice",
    "is_anonymous": False,
    "login": ["password", "token"],
    "request_token": "a-token",
    "is_ours": True,
    "software": "moldau 0.1.0",
    "features": {"metadata.version": 27},
    "has_registry": True,
    "read_only": False,
    "served_from": "node",
    "limits": {"records": 1000, "bytes": MIB, "seconds": 10},
}

LOGGED_OUT: Final = {
    **SESSION,
    "cluster_id": None,
    "is_logged_in": False,
    "is_anonymous": True,
    "request_token": None,
    "principal": "User:ANONYMOUS",
}


def broker(broker_id: int, *, is_reachable: bool = True) -> dict[str, Any]:
    return {
        "broker_id": broker_id,
        "host": f"kafka-{broker_id}",
        "port": 9092,
        "rack": None,
        "is_fenced": False,
        "is_controller": broker_id == 1,
        "leaders": 4,
        "replicas": 12,
        "size_bytes": 3 * MIB,
        "disk_total_bytes": 100 * MIB,
        "disk_usable_bytes": 40 * MIB,
        "is_reachable": is_reachable,
        "listeners": [f"PLAINTEXT://kafka-{broker_id}:9092"],
        "version": "moldau 0.1.0",
        "connections": 3,
        "loop_lag_ms": 0.2,
    }


def overview(*lost: int) -> dict[str, Any]:
    return {
        "health": {
            "status": "degraded" if lost else "healthy",
            "sentence": "Everything is in sync.",
            "problems": [],
        },
        "controller_id": 1,
        "brokers": [broker(each, is_reachable=each not in lost) for each in (1, 2, 3)],
        "counts": {
            "topics": 2,
            "internal_topics": 2,
            "partitions": 12,
            "under_replicated": 0,
            "under_min_isr": 0,
            "offline": 0,
            "groups": 2,
            "transactions_open": 1,
        },
        "rates": {"bytes_in_s": 1e6, "bytes_out_s": 2e6, "messages_in_s": 900, "requests_s": 40},
        "size_bytes": 9 * MIB,
        "certificates": [],
    }


def page(*rows: dict[str, Any]) -> dict[str, Any]:
    return {"data": list(rows), "next": None, "total": len(rows)}


def topic_row(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "topic_id": "AAAA",
        "is_internal": False,
        "partition_count": 2,
        "replication_factor": 3,
        "record_count": 40,
        "size_bytes": MIB,
        "retention_ms": 604_800_000,
        "cleanup_policy": "delete",
        "under_replicated": 0,
        "offline": 0,
        "groups": [{"group_id": HOSTILE_GROUP, "type": "consumer", "lag": 7}],
        "rate_records_s": None,
    }


def config(name: str, value: str | None, *, is_default: bool = True) -> dict[str, Any]:
    source = "DEFAULT_CONFIG" if is_default else "DYNAMIC_TOPIC_CONFIG"
    return {
        "name": name,
        "value": value,
        "is_default": is_default,
        "is_sensitive": value is None,
        "is_read_only": False,
        "source": source,
        "type": "LONG",
        "documentation": f"What it does: {HTML}",
        "synonyms": [{"name": name, "value": value, "source": source}],
    }


CONFIGS: Final = [
    config("retention.ms", "86400000", is_default=False),
    config("segment.bytes", "1073741824"),
    config("ssl.key.password", None),
]


def partition(number: int) -> dict[str, Any]:
    return {
        "partition": number,
        "leader": 1,
        "leader_epoch": 3,
        "replicas": [1, 2, 3],
        "isr": [1, 2],
        "elr": [3],
        "last_known_elr": [],
        "offline_replicas": [],
        "start_offset": 0,
        "end_offset": 20,
        "last_stable_offset": 18,
        "size_bytes": MIB,
        "max_timestamp_ms": NOW_MS,
    }


TOPIC_WHOLE: Final = {
    "name": TOPIC,
    "topic_id": "AAAA",
    "is_internal": False,
    "configs": CONFIGS,
    "partitions": [partition(0), partition(1)],
    "groups": [
        {"group_id": GROUP, "type": "consumer", "state": "STABLE", "members": 1, "lag": 7},
    ],
}


def text(value: str, encoding: str = "utf-8") -> dict[str, Any]:
    return {
        "encoding": encoding,
        "text": value,
        "size_bytes": len(value.encode()),
        "is_truncated": False,
    }


def record(offset: int, value: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "partition": 0,
        "offset": offset,
        "timestamp_ms": NOW_MS + offset,
        "timestamp_type": "create",
        "key": text(f"key-{offset}"),
        "value": value,
        "headers": [{"name": HTML, "value": text("\x1b[31mred")}],
        "key_size": 5,
        "value_size": None if value is None else value["size_bytes"],
        "leader_epoch": 3,
        "is_control": False,
    }


HOSTILE_VALUE: Final = "\u202e<script>alert(2)</script>\x07"
RECORDS: Final = [
    record(0, text('{"number": 1, "user": {"name": "' + HTML + '"}}', "json")),
    record(1, None),
    record(2, text("AAECAwT/", "base64")),
    record(3, text('{"broken": tru')),
    record(4, text(HOSTILE_VALUE)),
]
READ: Final = {
    "records": 5,
    "bytes": 900,
    "seconds": 0.01,
    "is_complete": True,
    "stopped_by": "end",
}
MESSAGES: Final = {
    "records": RECORDS,
    "read": READ,
    "next": None,
    "columns": ["number", "user.name"],
}


def group_row(name: str) -> dict[str, Any]:
    return {
        "group_id": name,
        "type": "consumer",
        "protocol": "consumer",
        "state": "STABLE",
        "coordinator": 1,
        "members": 1,
        "topics": 1,
        "lag": 7,
    }


GROUP_WHOLE: Final = {
    **group_row(GROUP),
    "assignor": "uniform",
    "group_epoch": 3,
    "target_assignment_epoch": 3,
    "members": [],
    "offsets": [
        {
            "topic": TOPIC,
            "partition": 0,
            "committed": 13,
            "start_offset": 0,
            "end_offset": 20,
            "lag": 7,
            "metadata": HTML,
            "member_id": None,
            "leader_epoch": 3,
        }
    ],
    "is_supported": True,
    "note": None,
}

PLAN: Final = {
    "offsets": [{"topic": TOPIC, "partition": 0, "old": 13, "new": 0}],
    "command": f"moldau groups seek {GROUP} --to start --dry-run",
}


def replica(node_id: int) -> dict[str, Any]:
    return {
        "node_id": node_id,
        "directory_id": "BBBB",
        "log_end_offset": 100,
        "lag": 0,
        "last_fetch_ms": NOW_MS,
        "last_caught_up_ms": NOW_MS,
        "is_leader": node_id == 1,
        "endpoints": [{"name": "CONTROLLER", "host": "kafka-1", "port": 9093}],
    }


QUORUM: Final = {
    "leader_id": 1,
    "leader_epoch": 4,
    "high_watermark": 100,
    "cluster_version": {},
    "voters": [replica(1), replica(2), replica(3)],
    "observers": [],
    "elections": [{"epoch": 4, "leader_id": 1, "at_ms": NOW_MS}],
}

METADATA_LOG: Final = {
    "records": [
        {
            "offset": 99,
            "epoch": 4,
            "timestamp_ms": NOW_MS,
            "type": "TopicRecord",
            "version": 0,
            "fields": {"name": TOPIC},
            "summary": f"Topic {TOPIC} is created {HTML}",
        }
    ],
    "next": None,
}

BROKER_WHOLE: Final = {
    **broker(1),
    "log_directories": [
        {
            "path": "/data",
            "error": None,
            "total_bytes": 100 * MIB,
            "usable_bytes": 40 * MIB,
            "partitions": [
                {
                    "topic": TOPIC,
                    "partition": 0,
                    "size_bytes": MIB,
                    "offset_lag": 0,
                    "is_future": False,
                }
            ],
        }
    ],
    "configs": CONFIGS,
    "loggers": [{"name": "moldau.raft", "level": "INFO"}],
}

ACL: Final = {
    "resource_type": "TOPIC",
    "resource_name": HTML,
    "pattern_type": "LITERAL",
    "principal": "User:alice",
    "host": "*",
    "operation": "READ",
    "permission": "ALLOW",
}

TRANSACTION: Final = {
    "transactional_id": HTML,
    "producer_id": 7,
    "producer_epoch": 0,
    "state": "Ongoing",
    "coordinator": 1,
    "timeout_ms": 60_000,
    "start_time_ms": NOW_MS,
    "age_ms": 90_000,
    "partitions": [{"topic": TOPIC, "partition": 0, "start_offset": 18}],
    "is_hanging": False,
}

OWN: Final[dict[str, Any]] = {
    "overview": overview(),
    "topics": page(topic_row(TOPIC), topic_row("other")),
    f"topics/{TOPIC}": TOPIC_WHOLE,
    f"topics/{TOPIC}/producers": {"data": []},
    f"topics/{TOPIC}/messages": MESSAGES,
    "groups": page(group_row(GROUP), group_row(HOSTILE_GROUP)),
    f"groups/{GROUP}": GROUP_WHOLE,
    f"groups/{GROUP}/lag-history": {"step_s": 10, "points": [[NOW_MS, 3], [NOW_MS + 10_000, 7]]},
    f"groups/{GROUP}/reset": PLAN,
    "transactions": page(TRANSACTION),
    "quorum": QUORUM,
    "quorum/log": METADATA_LOG,
    "brokers": page(broker(1), broker(2), broker(3)),
    "brokers/1": BROKER_WHOLE,
    "security/users": [
        {"name": HTML, "mechanisms": [{"mechanism": "SCRAM-SHA-512", "iterations": 4096}]}
    ],
    "security/quotas": [{"entity": {"user": None}, "values": {"producer_byte_rate": 1000.0}}],
    "security/explain": {"is_allowed": True, "because": "An entry allows it.", "rules": []},
    "schemas": page({"subject": "orders-value", "versions": [1], "schema_type": "AVRO"}),
    "schemas/orders-value/versions/latest": {
        "subject": "orders-value",
        "version": 1,
        "id": 1,
        "schema_type": "AVRO",
        "schema": '{"type": "string"}',
    },
    "saved": {"filters": [], "favourites": []},
}
"""The answers by the path behind the cluster's; any other path does not exist."""

V3: Final[dict[str, Any]] = {"acls": {"kind": "KafkaAclList", "data": [ACL]}}
