"""DescribeClientQuotas v0–v1 (KIP-546): the client quotas that a filter matches, from this broker's
image.

Behaviour: DESCRIBE_CONFIGS on the cluster is asked for; an answer is built from one image.
Known gaps: none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from moldau.broker.api.services import BrokerServices
from moldau.metadata.image.configs import ClientQuotasImage
from moldau.metadata.quota_entities import ENTITY_TYPES, IP, QuotaEntity
from moldau.metadata.steps import Steps
from moldau.protocol.access_control import Operation
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p48_describe_client_quotas as p48
from moldau.runtime.slices import completed
from moldau.server.config_permissions import Problem
from moldau.server.request import RequestContext
from moldau.text import short_name

EXACT: Final = 0
DEFAULT: Final = 1
SPECIFIED: Final = 2


def _matcher(request: p48.DescribeClientQuotasRequest) -> Callable[[QuotaEntity], bool] | Problem:
    """Whether an entity has what the filter wants: these names (None is the default), and any name
    of these types. A strict filter matches no entity that has further types. A problem if the
    filter makes no sense.
    """
    names: dict[str, str | None] = {}
    types: set[str] = set()
    for component in request.components:
        kind, match = component.entity_type, component.match
        error, problem = _check(component, is_repeated=kind in names or kind in types)
        if problem:
            return error, problem
        if component.match_type == SPECIFIED:
            types.add(kind)
        else:
            names[kind] = match
    if (IP in names or IP in types) and len(names) + len(types) > 1:
        return ErrorCode.INVALID_REQUEST, "ip is not combined with user or client-id"

    def matches(entity: QuotaEntity) -> bool:
        parts = dict(entity)
        if request.strict and len(parts) != len(names) + len(types):
            return False
        return types <= parts.keys() and all(
            kind in parts and parts[kind] == name for kind, name in names.items()
        )

    return matches


def _check(component: p48.ComponentData, *, is_repeated: bool) -> Problem:
    kind, match_type = component.entity_type, component.match_type
    shown = short_name(kind)
    error, problem = ErrorCode.INVALID_REQUEST, ""
    if not kind:
        problem = "an entity type is empty"
    elif is_repeated:
        problem = f"{shown} is in the filter twice"
    elif kind not in ENTITY_TYPES:
        error = ErrorCode.UNSUPPORTED_VERSION
        problem = f"entity type {shown!r} is none of {', '.join(ENTITY_TYPES)}"
    elif match_type not in (EXACT, DEFAULT, SPECIFIED):
        problem = f"match type {match_type} is unknown"
    elif (match_type == EXACT) != (component.match is not None):
        problem = f"{shown}: a name goes with match type 0, and only there"
    return error, problem


async def answer(
    services: BrokerServices, context: RequestContext, request: p48.DescribeClientQuotasRequest
) -> p48.DescribeClientQuotasResponse:
    if not context.authorized_cluster(Operation.DESCRIBE_CONFIGS):
        return p48.DescribeClientQuotasResponse(
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            error_message="describing client quotas is not allowed",
            entries=None,
        )
    quotas = services.metadata.image.client_quotas
    return await completed(services.clock, described_quotas(quotas, request))


def described_quotas(
    quotas: ClientQuotasImage, request: p48.DescribeClientQuotasRequest
) -> Steps[p48.DescribeClientQuotasResponse]:
    """The entities that the request's filter matches, with their quotas; of an empty filter all, or
    none if it is strict.
    """
    matches = _matcher(request)
    if isinstance(matches, tuple):
        error, problem = matches
        return p48.DescribeClientQuotasResponse(
            error_code=error, error_message=problem, entries=None
        )
    entries: list[p48.EntryData] = []
    for entity, values in quotas.quotas_by_entity.items():
        yield
        if matches(entity):
            entries.append(
                p48.EntryData(
                    entity=[p48.EntityData(entity_type=k, entity_name=n) for k, n in entity],
                    values=[p48.ValueData(key=key, value=value) for key, value in values.items()],
                )
            )
    return p48.DescribeClientQuotasResponse(entries=entries)
