"""DescribeConfigs v1–v4: effective values of topics, brokers, groups and loggers, with where
they come from.

Behaviour: synonyms when asked for (KIP-226), types and documentation from v3 on (KIP-569);
sensitive values are never shown; for a broker the broker asked must be the one named, "" gives the
cluster's dynamic defaults; an answer has a limit of entries. Known gaps: client metrics resources
are refused until that part exists.
"""

from __future__ import annotations

from collections.abc import Collection

from moldau.broker.api.config_resources import known_loggers, logger_level, refusal
from moldau.broker.api.services import BrokerServices
from moldau.config import ConfigSource, ConfigType, DescribedConfig
from moldau.metadata.descriptions import DescribedEntries
from moldau.protocol.access_control import Operation
from moldau.protocol.messages import p32_describe_configs as p32
from moldau.runtime.slices import LoopSlices
from moldau.server.request import RequestContext


async def answer(
    services: BrokerServices, context: RequestContext, request: p32.DescribeConfigsRequest
) -> p32.DescribeConfigsResponse:
    response = p32.DescribeConfigsResponse()
    slices = LoopSlices(services.clock)
    configs = services.metadata.image.configs
    entries = DescribedEntries(request, services.node_config, configs, _loggers)
    for resource in request.resources:
        refused = refusal(services, context, Operation.DESCRIBE_CONFIGS, resource)
        response.results.append(entries.result(resource, refused))
        if slices.is_over:
            await slices.next()
    return response


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
