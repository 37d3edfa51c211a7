"""What Confluent documents of its REST v3: the keys, types and statuses of answers, as facts.

From api/v3/openapi.yaml of confluentinc/kafka-rest, commit 0290ff86, and its examples. Owns the
notation: `name:type`, in which s is text, i a whole number, b true or false, R a link to something
related, S a synonym, and […] a list; a `?` behind a name: it may be absent; a 0 behind a type: it
may be null.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

_CONFIG: Final = "name:s value?:s0 is_default:b is_read_only:b is_sensitive:b source:s synonyms:[S]"
_CONSUMER: Final = "consumer_group_id:s consumer_id:s"
_PARTITION: Final = "topic_name:s partition_id:i"
ERROR, REPORT, REPORTED = "error", "report", "reported"
LISTS: Final = "List"
FIELDS: Final = {
    "KafkaCluster": "controller?:R acls:R brokers:R broker_configs:R consumer_groups:R topics:R "
    "partition_reassignments:R",
    "KafkaBroker": "broker_id:i host?:s0 port?:i0 rack?:s0 configs:R partition_replicas:R",
    "KafkaBrokerConfig": f"broker_id:i {_CONFIG}",
    "KafkaClusterConfig": f"config_type:s {_CONFIG}",
    "KafkaTopicConfig": f"topic_name:s {_CONFIG}",
    "KafkaTopic": "topic_name:s is_internal:b replication_factor:i partitions_count:i partitions:R "
    "configs:R partition_reassignments:R authorized_operations?:[s]",
    "KafkaPartition": f"{_PARTITION} leader?:R replicas:R reassignment:R",
    "KafkaReplica": f"{_PARTITION} broker_id:i is_leader:b is_in_sync:b broker:R",
    "KafkaReassignment": f"{_PARTITION} adding_replicas:[i] removing_replicas:[i] replicas:R",
    "KafkaConsumerGroup": "consumer_group_id:s is_simple:b partition_assignor:s state:s "
    "coordinator:R consumers:R lag_summary:R",
    "KafkaConsumer": f"{_CONSUMER} instance_id?:s0 client_id:s assignments:R",
    "KafkaConsumerAssignment": f"{_CONSUMER} {_PARTITION} partition:R lag:R",
    "KafkaConsumerLag": f"{_CONSUMER} {_PARTITION} current_offset:i log_end_offset:i lag:i "
    "instance_id?:s0 client_id:s",
    "KafkaConsumerGroupLagSummary": "consumer_group_id:s max_lag_consumer_id:s "
    "max_lag_instance_id?:s0 max_lag_client_id:s max_lag_topic_name:s max_lag_partition_id:i "
    "max_lag:i total_lag:i max_lag_consumer:R max_lag_partition:R",
    "KafkaAcl": "resource_type:s resource_name:s pattern_type:s principal:s host:s operation:s "
    "permission:s",
}
"""What each kind of resource has, beside what all have."""
_OTHERS: Final = {
    ERROR: "error_code:i message:s0",
    REPORT: "error_code:i cluster_id:s topic_name:s partition_id:i offset:i timestamp?:s0 "
    "key?:D0 value?:D0",
    REPORTED: "size:i type?:s0 subject?:s0 schema_id?:i0 schema_version?:i0",
    "S": "name:s value?:s0 source:s",
    "R": "related:s",
    "metadata": "self:s resource_name?:s0",
    "metadata of a list": "self:s next?:s0",
}
_PLAIN: Final = {"s": str, "i": int, "b": bool}
_INNER: Final = {"D": REPORTED, "S": "S", "R": "R"}
_SHARED: Final = ("kind", "metadata", "cluster_id")


def complaints(document: Any, shape: str) -> Iterator[str]:
    """Where an answer has another shape than the documented one.

    Args:
        shape: a kind of resource, such a kind with `List` behind it, or one of the others.
    """
    if shape in _OTHERS:
        yield from _complaints(document, _OTHERS[shape], "")
    elif shape.endswith(LISTS):
        yield from _of_list(document, shape)
    else:
        yield from _of_resource(document, shape, "")


def _of_list(document: Any, shape: str) -> Iterator[str]:
    if not isinstance(document, Mapping) or set(document) != {"kind", "metadata", "data"}:
        yield f"a list has kind, metadata and data: {_keys(document)}"
        return
    if document["kind"] != shape:
        yield f"kind is {document['kind']}"
    yield from _complaints(document["metadata"], _OTHERS["metadata of a list"], "metadata.")
    if not document["data"]:
        yield "data is empty, so that nothing of it is seen"
    for each in document["data"]:
        yield from _of_resource(each, shape.removesuffix(LISTS), "data.")


def _of_resource(document: Any, kind: str, where: str) -> Iterator[str]:
    if not isinstance(document, Mapping) or not set(_SHARED) <= set(document):
        yield f"{where}a resource has kind, metadata and cluster_id: {_keys(document)}"
        return
    if document["kind"] != kind or not isinstance(document["cluster_id"], str):
        yield f"{where}kind is {document['kind']}"
    yield from _complaints(document["metadata"], _OTHERS["metadata"], f"{where}metadata.")
    own = {name: value for name, value in document.items() if name not in _SHARED}
    yield from _complaints(own, FIELDS[kind], where)


def _complaints(document: Any, fields: str, where: str) -> Iterator[str]:
    if not isinstance(document, Mapping):
        yield f"{where} is no object"
        return
    documented = dict(each.split(":") for each in fields.split())
    types = {name.removesuffix("?"): kind for name, kind in documented.items()}
    for name in documented:
        if not name.endswith("?") and name not in document:
            yield f"{where}{name} is missing"
    for name, value in document.items():
        if name not in types:
            yield f"{where}{name} is not documented"
        else:
            yield from _of_type(value, types[name], f"{where}{name}")


def _of_type(value: Any, kind: str, where: str) -> Iterator[str]:
    if value is None:
        if not kind.endswith("0"):
            yield f"{where} is null"
        return
    kind = kind.removesuffix("0")
    if kind.startswith("["):
        if not isinstance(value, list):
            yield f"{where} is no list"
            return
        for each in value:
            yield from _of_type(each, kind[1:-1], f"{where}[]")
    elif kind in _INNER:
        yield from _complaints(value, _OTHERS[_INNER[kind]], f"{where}.")
    elif type(value) is not _PLAIN[kind]:
        yield f"{where} is {type(value).__name__}"


def _keys(document: Any) -> str:
    return ", ".join(document) if isinstance(document, Mapping) else type(document).__name__
