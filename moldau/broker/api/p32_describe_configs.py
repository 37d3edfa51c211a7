"""DescribeConfigs v1–v4: effective values of topics, brokers, groups and loggers, with where
they come from.

Behaviour: synonyms when asked for (KIP-226), types and documentation from v3 on (KIP-569);
sensitive values are never told; for a broker the broker asked must be the one named, "" gives the
cluster's dynamic defaults. Known gaps: client metrics resources are refused until that part exists.
"""

from __future__ import annotations

from collections.abc import Collection

from moldau.broker.authorizer import Operation
from moldau.broker.config_resources import (
    authorized_for,
    known_loggers,
    logger_level,
    problem,
)
from moldau.broker.request_context import RequestContext
from moldau.broker.services import BrokerServices
from moldau.config import (
    ConfigSource,
    ConfigType,
    DescribedConfig,
    describe_broker_config,
    describe_cluster_default_config,
    describe_group_config,
    describe_topic_config,
)
from moldau.metadata.config_entries import config_entry
from moldau.metadata.image import ConfigResourceType
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p32_describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from moldau.runtime.slices import LoopSlices


async def answer(
    services: BrokerServices, context: RequestContext, request: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    """Describe each resource; what is wrong with one does not touch the others. One that is named
    again has the same result: a request may repeat it 30,000 times.
    """
    response = DescribeConfigsResponse()
    slices = LoopSlices(services.clock)
    results: dict[object, DescribeConfigsResult] = {}
    for resource in request.resources:
        keys = frozenset(resource.configuration_keys or ()) or None
        asked = (resource.resource_type, resource.resource_name, keys)
        result = results.get(asked)
        if result is None:
            result = results[asked] = _describe(services, context, request, resource, keys)
        response.results.append(result)
        if slices.is_over:
            await slices.next()
    return response


def _describe(
    services: BrokerServices,
    context: RequestContext,
    request: DescribeConfigsRequest,
    resource: DescribeConfigsResource,
    keys: Collection[str] | None,
) -> DescribeConfigsResult:
    """`keys` None means all, as an empty list in the request does."""
    resource_type, name = resource.resource_type, resource.resource_name
    refused = authorized_for(context, Operation.DESCRIBE_CONFIGS, resource_type, name) or problem(
        services, resource_type, name
    )
    if refused is not None:
        return DescribeConfigsResult(
            error_code=refused[0],
            error_message=refused[1],
            resource_type=resource_type,
            resource_name=name,
        )
    if resource_type == ConfigResourceType.BROKER_LOGGER:
        described = _loggers(keys)
    else:
        described = _described(services, resource_type, name, keys)
    return DescribeConfigsResult(
        error_code=ErrorCode.NONE,
        error_message="",
        resource_type=resource_type,
        resource_name=name,
        configs=[config_entry(request, config) for config in described],
    )


def _described(
    services: BrokerServices, resource_type: int, name: str, keys: Collection[str] | None
) -> list[DescribedConfig]:
    configs = services.metadata.image.configs
    defaults = configs.get(ConfigResourceType.BROKER, "")
    if resource_type == ConfigResourceType.BROKER and name == "":
        return [
            config
            for config in describe_cluster_default_config(defaults)
            if keys is None or config.name in keys
        ]
    own = configs.get(ConfigResourceType.BROKER, str(services.broker_id))
    if resource_type == ConfigResourceType.BROKER:
        return describe_broker_config(services.node_config, defaults, own, keys)
    if resource_type == ConfigResourceType.GROUP:
        overrides = configs.get(ConfigResourceType.GROUP, name)
        return describe_group_config(services.node_config, defaults, own, overrides, keys)
    overrides = configs.get(ConfigResourceType.TOPIC, name)
    return describe_topic_config(services.node_config, defaults, own, overrides, keys)


def _loggers(keys: Collection[str] | None) -> list[DescribedConfig]:
    described = []
    for name in known_loggers():
        if keys is None or name in keys:
            level, is_own = logger_level(name)
            source = (
                ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG if is_own else ConfigSource.DEFAULT_CONFIG
            )
            described.append(
                DescribedConfig(
                    name=name,
                    value=level,
                    source=source,
                    read_only=False,
                    sensitive=False,
                    synonyms=(),
                    type=ConfigType.STRING,
                    documentation="level of this logger",
                )
            )
    return described
