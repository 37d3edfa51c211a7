"""AlterConfigs and IncrementalAlterConfigs: checks and ConfigRecords.

Owns: the rules of changing a resource's dynamic configuration (KIP-133, KIP-226, KIP-339, KIP-714),
and what a change of `min.insync.replicas` does to the eligible leader replicas (KIP-966). Must not:
know which values are valid (`topic_config`, `dynamic_config` and `group_config` of `config` do),
apply values, or elect. Invariants: what is written passes the same validation whichever request
brought it, and a resource changes as a whole or not at all. Every eligible replica has every
committed record. That holds only for the value of `min.insync.replicas` under which the replica
became eligible: with a lower one, the ISR may since have committed without it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Any, Final, TypeAlias, TypeVar

from moldau.config import (
    ConfigError,
    validate_dynamic_broker_config,
    validate_group_config,
    validate_topic_config,
)
from moldau.config.definition import ConfigKey, ConfigType, Values
from moldau.config.table import find_broker_key
from moldau.config.topic_config import topic_key
from moldau.config.values import format_value
from moldau.controller.core.result import (
    MAX_RECORDS_PER_REQUEST,
    Asked,
    ControllerResult,
    Refusal,
    VersionedRecord,
    refusals_to,
)
from moldau.controller.core.state import MIN_INSYNC_REPLICAS, ControllerState
from moldau.metadata.features import partition_record_version
from moldau.metadata.image import ConfigResourceType, TopicImage
from moldau.metadata.image.configs import config_record
from moldau.metadata.steps import Steps, repeated
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p33_alter_configs as legacy
from moldau.protocol.messages import p44_incremental_alter_configs as incremental
from moldau.protocol.messages.p44_incremental_alter_configs import ConfigOperation
from moldau.protocol.metadata_records import ClearElrRecord, ConfigRecord, PartitionChangeRecord
from moldau.protocol.structs import MAX_STRING_BYTES
from moldau.protocol.types import topic_name_problem

Defaults: TypeAlias = Callable[[], Values]
"""The broker values that topics and groups inherit; made when they are first asked for."""

Resource: TypeAlias = legacy.AlterConfigsResource | incremental.AlterConfigsResource
ResponseT = TypeVar(
    "ResponseT", legacy.AlterConfigsResponse, incremental.IncrementalAlterConfigsResponse
)

MAX_CLEARED_PARTITIONS: Final = MAX_RECORDS_PER_REQUEST
"""How many partitions may lose their eligible leaders at once."""


def incremental_alter_configs(
    state: ControllerState, request: incremental.IncrementalAlterConfigsRequest, _asked: Asked
) -> Steps[ControllerResult[incremental.IncrementalAlterConfigsResponse]]:
    """Change single keys of resources; each resource on its own (KIP-339)."""
    return _alter(
        state,
        request,
        incremental.IncrementalAlterConfigsResponse(),
        lambda resource: _after_operations(state, resource),
    )


def legacy_alter_configs(
    state: ControllerState, request: legacy.AlterConfigsRequest, _asked: Asked
) -> Steps[ControllerResult[legacy.AlterConfigsResponse]]:
    """Replace whole configurations: keys that are not named are removed (KIP-133)."""
    return _alter(
        state,
        request,
        legacy.AlterConfigsResponse(),
        lambda resource: {each.name: _text(each.name, each.value) for each in resource.configs},
    )


def _alter(
    state: ControllerState,
    request: legacy.AlterConfigsRequest | incremental.IncrementalAlterConfigsRequest,
    response: ResponseT,
    wanted_config: Callable[[Any], Mapping[str, str]],
) -> Steps[ControllerResult[ResponseT]]:
    outcomes = response.responses
    records: list[VersionedRecord] = []
    named_twice = yield from repeated(
        (each.resource_type, each.resource_name) for each in request.resources
    )
    defaults = cache(lambda: state.broker_defaults())
    for resource in request.resources:
        yield
        outcome = incremental.AlterConfigsResourceResponse(
            error_message=None,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
        outcomes.append(outcome)
        with refusals_to(outcome):
            _check_resource(state, resource, named_twice)
            own: list[VersionedRecord] = _records(
                state, defaults, resource, wanted_config(resource)
            )
            own += clear_eligible_leaders(state, own)
            if not request.validate_only:
                records += own
    if len(records) > MAX_RECORDS_PER_REQUEST:
        most = f"the request makes {len(records)} records, too many for one batch"
        Refusal.too_many(most).tell(*outcomes)
        records = []
    return ControllerResult(response, records)


def _check_resource(
    state: ControllerState, resource: Resource, named_twice: Collection[tuple[int, str]]
) -> None:
    resource_type, name = resource.resource_type, resource.resource_name
    if (resource_type, name) in named_twice:
        raise Refusal.invalid("the resource is named more than once")
    keys = [each.name for each in resource.configs]
    if len(set(keys)) != len(keys):
        raise Refusal.invalid("a key is given more than once")
    if resource_type == ConfigResourceType.TOPIC:
        problem = topic_name_problem(name)
        if problem is not None:
            raise Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
        if state.topic(name) is None:
            raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
    elif resource_type == ConfigResourceType.BROKER:
        _check_broker_name(state, name)
    elif resource_type in (ConfigResourceType.CLIENT_METRICS, ConfigResourceType.GROUP):
        if not name or len(name.encode()) > MAX_STRING_BYTES:
            raise Refusal.invalid("the resource's name is empty or too long")
    else:
        raise Refusal.invalid(
            f"resources of type {resource_type} have no configuration at the controller"
        )


def _check_broker_name(state: ControllerState, name: str) -> None:
    if not name:
        return  # the default of all brokers
    if not (name.isascii() and name.isdigit() and len(name) <= 10):
        raise Refusal.invalid(f"{name[:40]!r} is not a broker id")
    node_id = int(name)
    is_controller = node_id in state.voter_ids or node_id in state.image.cluster.controllers
    if state.broker(node_id) is None and not is_controller:
        raise Refusal(ErrorCode.BROKER_ID_NOT_REGISTERED, f"node {node_id} is not registered")


def _text(key: str, value: str | None) -> str:
    if value is None:
        raise Refusal.invalid(f"{key} has no value")
    if not key or max(len(key.encode()), len(value.encode())) > MAX_STRING_BYTES:
        raise Refusal(ErrorCode.INVALID_CONFIG, f"{key[:80]!r}: name or value too long, or no name")
    return value


def _after_operations(
    state: ControllerState, resource: incremental.AlterConfigsResource
) -> dict[str, str]:
    """What the resource's configuration would be."""
    wanted = dict(state.image.configs.get(resource.resource_type, resource.resource_name))
    for each in resource.configs:
        operation = each.config_operation
        if operation == ConfigOperation.DELETE:
            wanted.pop(each.name, None)
        elif operation == ConfigOperation.SET:
            wanted[each.name] = _text(each.name, each.value)
        elif operation in (ConfigOperation.APPEND, ConfigOperation.SUBTRACT):
            elements = _elements(_text(each.name, each.value))
            current = _list_elements(resource.resource_type, each.name, wanted)
            if operation == ConfigOperation.APPEND:
                known = set(current)
                current += [element for element in elements if element not in known]
            else:
                unwanted = set(elements)
                current = [element for element in current if element not in unwanted]
            wanted[each.name] = _text(each.name, ",".join(current))
        else:
            raise Refusal.invalid(f"there is no operation {operation}")
    return wanted


def _list_elements(resource_type: int, name: str, config: Mapping[str, str]) -> list[str]:
    """What APPEND and SUBTRACT start from: the value that was set, or else the default."""
    key = _declaration(resource_type, name)
    if key is None or key.type is not ConfigType.LIST:
        raise Refusal(ErrorCode.INVALID_CONFIG, f"{name} is not a list: only lists can be added to")
    text = config.get(name)
    if text is None:
        text = format_value(key, key.default_value) or ""
    return _elements(text)


def _declaration(resource_type: int, name: str) -> ConfigKey | None:
    if resource_type == ConfigResourceType.TOPIC:
        try:
            return topic_key(name)
        except ConfigError as error:
            raise Refusal(ErrorCode.INVALID_CONFIG, str(error)) from None
    if resource_type == ConfigResourceType.BROKER:
        return find_broker_key(name)
    return None


def _elements(text: str) -> list[str]:
    return [element.strip() for element in text.split(",") if element.strip()]


def _records(
    state: ControllerState, defaults: Defaults, resource: Resource, wanted: Mapping[str, str]
) -> list[VersionedRecord]:
    resource_type, name = resource.resource_type, resource.resource_name
    current = state.image.configs.get(resource_type, name)
    changed = [key for key in wanted if wanted[key] != current.get(key)]
    removed = [key for key in current if key not in wanted]
    if state.eligible_leader_replicas_enabled:
        check_min_insync_replicas(resource_type, name, changed, removed)
    try:
        _validate(defaults, resource_type, name, wanted, changed)
    except ConfigError as error:
        # Kafka's brokers refuse their own keys as a whole, with another code than a topic's.
        is_broker = resource_type == ConfigResourceType.BROKER
        code = ErrorCode.INVALID_REQUEST if is_broker else ErrorCode.INVALID_CONFIG
        raise Refusal(code, str(error)) from None
    return [
        config_record(resource_type, name, key, wanted.get(key)) for key in (*changed, *removed)
    ]


def _validate(
    defaults: Defaults,
    resource_type: int,
    name: str,
    wanted: Mapping[str, str],
    changed: Sequence[str],
) -> None:
    if resource_type == ConfigResourceType.TOPIC:
        if wanted:
            validate_topic_config(wanted, defaults())
    elif resource_type == ConfigResourceType.BROKER:
        for key in changed:
            validate_dynamic_broker_config(key, wanted[key], cluster_default=not name)
    elif resource_type == ConfigResourceType.GROUP:
        validate_group_config(wanted, defaults())
    else:
        for key in changed:
            validate_client_metrics_config(key, wanted[key])


def check_min_insync_replicas(
    resource_type: int, name: str, changed: Collection[str], removed: Collection[str]
) -> None:
    """One value for the whole cluster must exist, and no broker may have its own.

    Raises Refusal: INVALID_CONFIG.
    """
    if resource_type != ConfigResourceType.BROKER:
        return
    if name and (MIN_INSYNC_REPLICAS in changed or MIN_INSYNC_REPLICAS in removed):
        raise Refusal(
            ErrorCode.INVALID_CONFIG,
            f"a broker cannot have its own {MIN_INSYNC_REPLICAS} "
            "while eligible leader replicas are enabled",
        )
    if not name and MIN_INSYNC_REPLICAS in removed:
        raise Refusal(
            ErrorCode.INVALID_CONFIG,
            f"the cluster-wide {MIN_INSYNC_REPLICAS} cannot be removed "
            "while eligible leader replicas are enabled",
        )


def clear_eligible_leaders(
    state: ControllerState, records: Sequence[VersionedRecord]
) -> list[VersionedRecord]:
    """The records that forget eligible leaders where `records` change `min.insync.replicas`.

    Raises Refusal: POLICY_VIOLATION, too many partitions would change at once.
    """
    cleared: list[VersionedRecord] = []
    if not state.eligible_leader_replicas_enabled:
        return cleared
    for record, _version in records:
        if isinstance(record, ConfigRecord) and record.name == MIN_INSYNC_REPLICAS:
            if record.resource_type == ConfigResourceType.TOPIC:
                topic = state.topic(record.resource_name)
                assert topic is not None, "the resource was checked"
                cleared += _clear(state, [topic], record.resource_name)
            elif record.resource_type == ConfigResourceType.BROKER and not record.resource_name:
                cleared += _clear(state, list(state.image.topics.topics_by_id.values()), "")
    return cleared


def forget_eligible_leaders(state: ControllerState) -> list[VersionedRecord]:
    """The records that forget the eligible leaders of all partitions; none where there are none.

    Raises Refusal: POLICY_VIOLATION, too many partitions would change at once.
    """
    topics = [
        topic
        for topic in state.image.topics.topics_by_id.values()
        if any(partition.elr for partition in topic.partitions.values())
    ]
    return _clear(state, topics, "") if topics else []


def _clear(
    state: ControllerState, topics: Sequence[TopicImage], topic_name: str
) -> list[VersionedRecord]:
    """One record for all, unless that would leave partitions that no replica could ever lead again.

    While no replica is in sync, nothing is committed: the eligible leaders stay eligible then.
    """
    is_stranding = any(
        not partition.isr and partition.elr
        for topic in topics
        for partition in topic.partitions.values()
    )
    if not is_stranding:
        return [(ClearElrRecord(topic_name=topic_name), 0)]
    version = partition_record_version(state.metadata_level)
    records: list[VersionedRecord] = [
        (
            PartitionChangeRecord(
                partition_id=partition_index,
                topic_id=topic.topic_id,
                eligible_leader_replicas=[],
                last_known_elr=[] if partition.last_known_elr else None,
            ),
            version,
        )
        for topic in topics
        for partition_index, partition in topic.partitions.items()
        if partition.isr and partition.elr
    ]
    if len(records) > MAX_CLEARED_PARTITIONS:
        raise Refusal.too_many(
            f"{len(records)} partitions with eligible leaders would change at once, at most "
            f"{MAX_CLEARED_PARTITIONS} may: bring their replicas back first"
        )
    return records


_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,10}")
_SELECTOR: Final = re.compile(
    r"(client_instance_id|client_id|client_software_name"
    r"|client_software_version|client_source_address"
    r"|client_source_port)=.+"
)

_INTERVAL_MS: Final = (100, 3_600_000)


def validate_client_metrics_config(key: str, text: str) -> None:
    """Check one key of a CLIENT_METRICS resource.

    Raises ConfigError: there is no such key, or the value is not one it takes.
    """
    if key == "interval.ms":
        lowest, highest = _INTERVAL_MS
        if not _INTEGER.fullmatch(text.strip()) or not lowest <= int(text) <= highest:
            raise ConfigError(key, text, f"must be a whole number from {lowest} to {highest}")
    elif key == "match":
        for selector in filter(None, (part.strip() for part in text.split(","))):
            if not _SELECTOR.fullmatch(selector):
                raise ConfigError(key, text, "must be a list of client_…=pattern selectors")
    elif key != "metrics":
        raise ConfigError(key, None, "is not a client metrics configuration")
