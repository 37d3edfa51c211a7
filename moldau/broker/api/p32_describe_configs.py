"""DescribeConfigs v1–v4: effective values of topics, brokers, groups and loggers, with where
they come from.

Behaviour: synonyms when asked for (KIP-226), types and documentation from v3 on (KIP-569);
sensitive values are never shown; for a broker the broker asked must be the one named, "" gives the
cluster's dynamic defaults; an answer has a limit of entries. Known gaps: client metrics resources
are refused until that part exists.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from moldau.broker.api.config_resources import known_loggers, logger_level, refusal
from moldau.broker.api.services import BrokerServices
from moldau.config import ConfigSource, ConfigType, DescribedConfig
from moldau.metadata.descriptions import DescribedEntries, description
from moldau.metadata.image import ConfigResourceType
from moldau.protocol.access_control import Operation
from moldau.protocol.messages.p32_describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from moldau.runtime.slices import LoopSlices
from moldau.server.request import RequestContext


async def answer(
    services: BrokerServices, context: RequestContext, request: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    response = DescribeConfigsResponse()
    slices = LoopSlices(services.clock)
    entries = DescribedEntries(request)
    for resource in request.resources:
        response.results.append(_describe(services, context, entries, resource))
        if slices.is_over:
            await slices.next()
    return response


def _describe(
    services: BrokerServices,
    context: RequestContext,
    entries: DescribedEntries,
    resource: DescribeConfigsResource,
) -> DescribeConfigsResult:
    resource_type, name = resource.resource_type, resource.resource_name
    result = DescribeConfigsResult(
        error_message="", resource_type=resource_type, resource_name=name
    )
    refused = refusal(services, context, Operation.DESCRIBE_CONFIGS, resource_type, name)
    if refused is not None:
        result.error_code, result.error_message = refused
        return result
    # An empty list means all keys, as null does.
    keys = frozenset(resource.configuration_keys or ()) or None
    if resource_type == ConfigResourceType.BROKER_LOGGER:
        entries.fill(result, (resource_type, keys), partial(_loggers, keys))
    else:
        configs = services.metadata.image.configs
        entries.fill(result, *description(services.node_config, configs, resource_type, name, keys))
    return result


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
