"""DescribeClientQuotas v0–v1 (KIP-546): the client quotas that a filter matches, from this broker's
image.

Behaviour: DESCRIBE_CONFIGS on the cluster is asked for; an answer is built from one image.
Known gaps: none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from moldau.broker.api.services import BrokerServices
from moldau.metadata.image.configs import ClientQuotasImage
from moldau.metadata.quota_entities import ENTITY_TYPES, IP, QuotaEntity
from moldau.metadata.steps import Steps
from moldau.protocol.access_control import Operation
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p48_describe_client_quotas as p48
from moldau.runtime.slices import completed
from moldau.server.request import RequestContext
from moldau.text import short_name

EXACT: Final = 0
DEFAULT: Final = 1
SPECIFIED: Final = 2


class FilterRefused(Exception):
    """The filter makes no sense; `error` and the text are for the client."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error


@dataclass(slots=True)
class QuotaFilter:
    """What an entity must have: these names (None is the default), and any name of these types.

    A strict one matches no entity that has further types.
    """

    strict: bool = False
    names: dict[str, str | None] = field(default_factory=dict)
    types: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, request: p48.DescribeClientQuotasRequest) -> QuotaFilter:
        """Raises: FilterRefused."""
        wanted = cls(request.strict)
        for component in request.components:
            wanted._add(component)
        if wanted._has(IP) and len(wanted.names) + len(wanted.types) > 1:
            raise FilterRefused(
                ErrorCode.INVALID_REQUEST, "ip is not combined with user or client-id"
            )
        return wanted

    def matches(self, entity: QuotaEntity) -> bool:
        parts = dict(entity)
        if self.strict and len(parts) != len(self.names) + len(self.types):
            return False
        return self.types <= parts.keys() and all(
            kind in parts and parts[kind] == name for kind, name in self.names.items()
        )

    def _has(self, kind: str) -> bool:
        return kind in self.names or kind in self.types

    def _add(self, component: p48.ComponentData) -> None:
        kind, match = component.entity_type, component.match
        shown = short_name(kind)
        if not kind:
            raise FilterRefused(ErrorCode.INVALID_REQUEST, "an entity type is empty")
        if self._has(kind):
            raise FilterRefused(ErrorCode.INVALID_REQUEST, f"{shown} is in the filter twice")
        if kind not in ENTITY_TYPES:
            raise FilterRefused(
                ErrorCode.UNSUPPORTED_VERSION,
                f"entity type {shown!r} is none of {', '.join(ENTITY_TYPES)}",
            )
        if component.match_type not in (EXACT, DEFAULT, SPECIFIED):
            raise FilterRefused(
                ErrorCode.INVALID_REQUEST, f"match type {component.match_type} is unknown"
            )
        if (component.match_type == EXACT) != (match is not None):
            raise FilterRefused(
                ErrorCode.INVALID_REQUEST, f"{shown}: a name goes with match type 0, and only there"
            )
        if component.match_type == SPECIFIED:
            self.types.add(kind)
        else:
            self.names[kind] = match


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
    try:
        wanted = QuotaFilter.of(request)
    except FilterRefused as refusal:
        return p48.DescribeClientQuotasResponse(
            error_code=refusal.error, error_message=str(refusal), entries=None
        )
    entries: list[p48.EntryData] = []
    for entity, values in quotas.quotas_by_entity.items():
        yield
        if wanted.matches(entity):
            entries.append(
                p48.EntryData(
                    entity=[p48.EntityData(entity_type=k, entity_name=n) for k, n in entity],
                    values=[p48.ValueData(key=key, value=value) for key, value in values.items()],
                )
            )
    return p48.DescribeClientQuotasResponse(entries=entries)
