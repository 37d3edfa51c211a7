"""What administrators ask: topics, configurations, groups, transactions.

Owns the answers and the few rules behind them. Must not know partitions' contents. Invariant: what
changes the cluster is done by the controller, unless brokers forward (as KRaft's do).
"""

from __future__ import annotations

from typing import Any

from moldau.protocol import ApiKey, ErrorCode
from moldau.protocol.messages import p15_describe_groups as groups_15
from moldau.protocol.messages import p16_list_groups as groups_16
from moldau.protocol.messages import p32_describe_configs as configs_32
from moldau.protocol.messages import p42_delete_groups as groups_42
from moldau.protocol.messages import p44_incremental_alter_configs as configs_44
from moldau.protocol.messages import p65_describe_transactions as transactions_65
from moldau.protocol.messages import p66_list_transactions as transactions_66
from moldau.protocol.messages.p19_create_topics import (
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from moldau.protocol.messages.p20_delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from moldau.protocol.messages.p37_create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)
from moldau.protocol.types import ZERO_UUID, topic_name_problem
from tests.fake_broker.context import Context, Handler

_TOPIC = 2
_BROKER = 4
_BY_ID_SINCE = 6
_MISSING_IS_ERROR_SINCE = 6
_SET, _DELETE = 0, 1


def _not_controller(context: Context) -> ErrorCode:
    cluster = context.cluster
    if cluster.settings.forwards_admin or context.node.node_id == cluster.controller_id:
        return ErrorCode.NONE
    return ErrorCode.NOT_CONTROLLER


async def create_topics(context: Context, request: CreateTopicsRequest) -> CreateTopicsResponse:
    """Make topics."""
    response = CreateTopicsResponse()
    for topic in request.topics:
        error = context.refusal("topic", topic.name) or context.refusal("top")
        error = error or _not_controller(context)
        if not error and topic_name_problem(topic.name):
            error = ErrorCode.INVALID_TOPIC_EXCEPTION
        if not error and topic.name in context.cluster.topics:
            error = ErrorCode.TOPIC_ALREADY_EXISTS
        factor = topic.replication_factor
        if not error and factor > len(context.cluster.nodes):
            error = ErrorCode.INVALID_REPLICATION_FACTOR
        result = CreatableTopicResult(
            name=topic.name, error_code=error, error_message=None, configs=None
        )
        response.topics.append(result)
        if error or request.validate_only:
            continue
        count = len(topic.assignments) or topic.num_partitions
        if count < 0:
            count = context.cluster.settings.default_partition_count
        made = context.cluster.create_topic(
            topic.name, count, replication_factor=factor if factor > 0 else None
        )
        made.configs.update({each.name: each.value for each in topic.configs})
        result.topic_id = made.topic_id
        result.num_partitions = count
        result.replication_factor = len(made.partitions[0].replica_ids)
        result.configs = []
        result.error_code = context.afterthought("topic", topic.name)
    return response


async def delete_topics(context: Context, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    """Forget topics."""
    cluster = context.cluster
    asked: list[tuple[str | None, Any]] = [(name, ZERO_UUID) for name in request.topic_names]
    if context.version >= _BY_ID_SINCE:
        asked = [(each.name, each.topic_id) for each in request.topics]
    response = DeleteTopicsResponse()
    for name, topic_id in asked:
        error = context.refusal("topic", name) or context.refusal("top")
        error = error or _not_controller(context)
        if name is None:
            found = cluster.topic_by_id(topic_id)
            unknown = ErrorCode.UNKNOWN_TOPIC_ID
        else:
            found = cluster.topics.get(name)
            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if found is None:
            error = error or unknown
        if found is not None and not error:
            cluster.delete_topic(found.name)
            topic_id, name = found.topic_id, found.name
            error = context.afterthought("topic", name)
        if name is None and context.version < _BY_ID_SINCE:
            name = ""
        response.responses.append(
            DeletableTopicResult(name=name, topic_id=topic_id, error_code=error)
        )
    return response


async def create_partitions(
    context: Context, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    """Give topics more partitions."""
    cluster = context.cluster
    response = CreatePartitionsResponse()
    for topic in request.topics:
        error = context.refusal("topic", topic.name) or context.refusal("top")
        error = error or _not_controller(context)
        found = cluster.topics.get(topic.name)
        if not error and found is None:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if not error and found is not None and topic.count <= len(found.partitions):
            error = ErrorCode.INVALID_PARTITIONS
        if not error and not request.validate_only:
            cluster.grow_topic(topic.name, topic.count)
            cluster.grew()
        response.results.append(CreatePartitionsTopicResult(name=topic.name, error_code=error))
    return response


async def describe_configs(
    context: Context, request: configs_32.DescribeConfigsRequest
) -> configs_32.DescribeConfigsResponse:
    """What a topic is configured with; brokers have nothing."""
    response = configs_32.DescribeConfigsResponse()
    for each in request.resources:
        error, configs = _configs_of(context, each)
        result = configs_32.DescribeConfigsResult(
            error_code=error,
            error_message=None,
            resource_type=each.resource_type,
            resource_name=each.resource_name,
        )
        wanted = each.configuration_keys
        result.configs = [
            configs_32.DescribeConfigsResourceResult(name=name, value=value, config_source=1)
            for name, value in configs.items()
            if wanted is None or name in wanted
        ]
        response.results.append(result)
    return response


def _configs_of(context: Context, resource: Any) -> tuple[ErrorCode, dict[str, str | None]]:
    error = context.refusal("top")
    if error or resource.resource_type == _BROKER:
        return error, {}
    topic = context.cluster.topics.get(resource.resource_name)
    if resource.resource_type != _TOPIC or topic is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, {}
    return ErrorCode.NONE, topic.configs


async def alter_configs(
    context: Context, request: configs_44.IncrementalAlterConfigsRequest
) -> configs_44.IncrementalAlterConfigsResponse:
    """Set and delete single values."""
    response = configs_44.IncrementalAlterConfigsResponse()
    for each in request.resources:
        error, configs = _configs_of(context, each)
        error = error or _not_controller(context)
        for config in () if error or request.validate_only else each.configs:
            if config.config_operation == _SET:
                configs[config.name] = config.value
            elif config.config_operation == _DELETE:
                configs.pop(config.name, None)
        response.responses.append(
            configs_44.AlterConfigsResourceResponse(
                error_code=error,
                error_message=None,
                resource_type=each.resource_type,
                resource_name=each.resource_name,
            )
        )
    return response


async def describe_groups(
    context: Context, request: groups_15.DescribeGroupsRequest
) -> groups_15.DescribeGroupsResponse:
    """Classic groups."""
    response = groups_15.DescribeGroupsResponse()
    for group_id in request.groups:
        error = context.refusal("top") or context.cluster.groups.here(context, group_id)
        group = context.cluster.groups.find(group_id)
        answer = groups_15.DescribedGroup(error_code=error, group_id=group_id)
        response.groups.append(answer)
        if error:
            continue
        if group is None or group.consumer.members:
            answer.group_state = "Dead"
            if context.version >= _MISSING_IS_ERROR_SINCE:
                answer.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            continue
        classic = group.classic
        answer.group_state = classic.state.value
        answer.protocol_type = classic.protocol_type
        answer.protocol_data = classic.protocol or ""
        answer.members = [
            groups_15.DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host="/127.0.0.1",
                member_metadata=member.metadata_for(classic.protocol or ""),
                member_assignment=member.assignment,
            )
            for member in classic.members.values()
        ]
    return response


async def list_groups(
    context: Context, request: groups_16.ListGroupsRequest
) -> groups_16.ListGroupsResponse:
    """The groups that the asked broker coordinates."""
    cluster = context.cluster
    response = groups_16.ListGroupsResponse(error_code=context.refusal("top"))
    if response.error_code:
        return response
    for group in cluster.groups.all():
        is_here = cluster.coordinator_of("group", group.group_id) == context.node.node_id
        by_state = not request.states_filter or group.state_name in request.states_filter
        by_type = not request.types_filter or group.type_name.lower() in {
            each.lower() for each in request.types_filter
        }
        if is_here and by_state and by_type:
            response.groups.append(
                groups_16.ListedGroup(
                    group_id=group.group_id,
                    protocol_type="consumer",
                    group_state=group.state_name,
                    group_type=group.type_name,
                )
            )
    return response


async def delete_groups(
    context: Context, request: groups_42.DeleteGroupsRequest
) -> groups_42.DeleteGroupsResponse:
    """Forget empty groups."""
    groups = context.cluster.groups
    response = groups_42.DeleteGroupsResponse()
    for group_id in request.groups_names:
        error = context.refusal("top") or groups.here(context, group_id)
        group = groups.find(group_id)
        if not error and group is None:
            error = ErrorCode.GROUP_ID_NOT_FOUND
        if not error and group is not None and not group.is_empty:
            error = ErrorCode.NON_EMPTY_GROUP
        if not error:
            groups.delete(group_id)
        response.results.append(groups_42.DeletableGroupResult(group_id=group_id, error_code=error))
    return response


async def describe_transactions(
    context: Context, request: transactions_65.DescribeTransactionsRequest
) -> transactions_65.DescribeTransactionsResponse:
    """Transactional ids."""
    response = transactions_65.DescribeTransactionsResponse()
    transactions = context.cluster.transactions
    for transactional_id in request.transactional_ids:
        error = context.refusal("top")
        if not error and not transactions.is_here(context, transactional_id):
            error = ErrorCode.NOT_COORDINATOR
        found = transactions.find(transactional_id)
        if not error and found is None:
            error = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        answer = transactions_65.TransactionState(
            error_code=error, transactional_id=transactional_id
        )
        response.transaction_states.append(answer)
        if error or found is None:
            continue
        answer.transaction_state = found.state.value
        answer.transaction_timeout_ms = found.timeout_ms
        answer.producer_id = found.producer_id
        answer.producer_epoch = found.epoch
        answer.topics = [
            transactions_65.TopicData(topic=topic, partitions=[index])
            for topic, index in sorted(found.partitions)
        ]
    return response


async def list_transactions(
    context: Context, request: transactions_66.ListTransactionsRequest
) -> transactions_66.ListTransactionsResponse:
    """The transactional ids that the asked broker coordinates."""
    transactions = context.cluster.transactions
    response = transactions_66.ListTransactionsResponse(error_code=context.refusal("top"))
    if response.error_code:
        return response
    response.transaction_states = [
        transactions_66.TransactionState(
            transactional_id=each.transactional_id,
            producer_id=each.producer_id,
            transaction_state=each.state.value,
        )
        for each in transactions.all()
        if transactions.is_here(context, each.transactional_id)
        and (not request.state_filters or each.state.value in request.state_filters)
    ]
    return response


HANDLERS: dict[ApiKey, Handler] = {
    ApiKey.CREATE_TOPICS: create_topics,
    ApiKey.DELETE_TOPICS: delete_topics,
    ApiKey.CREATE_PARTITIONS: create_partitions,
    ApiKey.DESCRIBE_CONFIGS: describe_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: alter_configs,
    ApiKey.DESCRIBE_GROUPS: describe_groups,
    ApiKey.LIST_GROUPS: list_groups,
    ApiKey.DELETE_GROUPS: delete_groups,
    ApiKey.DESCRIBE_TRANSACTIONS: describe_transactions,
    ApiKey.LIST_TRANSACTIONS: list_transactions,
}
