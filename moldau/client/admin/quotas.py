"""Admin calls about client quotas.

Owns the translation between typed values and messages. Invariant: as in `admin`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeAlias

from moldau.client.admin.arguments import check_several
from moldau.client.cluster.cluster_client import ClusterClient, raise_for
from moldau.client.errors import BrokerError, error_for
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p48_describe_client_quotas as describe
from moldau.protocol.messages import p49_alter_client_quotas as alter

QuotaEntity: TypeAlias = tuple[tuple[str, str | None], ...]
"""Whom a quota is for: pairs of "user", "client-id" or "ip" and a name, None for the default."""

_EXACT, _DEFAULT, _ANY = 0, 1, 2


class QuotaCalls:
    """The part of `Admin` that deals with quotas (KIP-546)."""

    _client: ClusterClient

    async def describe_client_quotas(
        self,
        entity: Mapping[str, str | None] | None = None,
        *,
        any_of: Collection[str] = (),
        strict: bool = False,
        timeout_ms: float | None = None,
    ) -> dict[QuotaEntity, dict[str, float]]:
        """Quotas by whom they are for, and by key: producer_byte_rate and consumer_byte_rate in
        bytes per second, request_percentage, controller_mutation_rate, connection_creation_rate.

        Args:
            entity: only quotas of these, such as {"user": "alice"}; None names the default.
            any_of: types that must be there, with any name.
            strict: only quotas for exactly these types.
        """
        check_several(any_of)
        components = [
            describe.ComponentData(
                entity_type=kind, match_type=_DEFAULT if name is None else _EXACT, match=name
            )
            for kind, name in (entity or {}).items()
        ]
        components += [
            describe.ComponentData(entity_type=kind, match_type=_ANY, match=None) for kind in any_of
        ]
        request = describe.DescribeClientQuotasRequest(components=components, strict=strict)

        async def attempt() -> dict[QuotaEntity, dict[str, float]]:
            response = await self._client.ask_any(request)
            raise_for(response.error_code, response.error_message, "describe client quotas")
            return {
                tuple((each.entity_type, each.entity_name) for each in entry.entity): {
                    value.key: value.value for value in entry.values
                }
                for entry in response.entries or ()
            }

        return await self._client.retry(
            attempt, what="describe client quotas", timeout_ms=timeout_ms
        )

    async def alter_client_quotas(
        self,
        changes: Mapping[QuotaEntity, Mapping[str, float | None]],
        *,
        validate_only: bool = False,
        timeout_ms: float | None = None,
    ) -> dict[QuotaEntity, BrokerError | None]:
        """Set quotas, or take them away with None; the outcome by whom they are for.

        Args:
            changes: such as {(("user", "alice"),): {"producer_byte_rate": 1e6}}.
            validate_only: only say what would come of it.
        """
        request = alter.AlterClientQuotasRequest(
            entries=[
                alter.EntryData(
                    entity=[
                        alter.EntityData(entity_type=kind, entity_name=name)
                        for kind, name in entity
                    ],
                    ops=[
                        alter.OpData(key=key, value=value or 0.0, remove=value is None)
                        for key, value in values.items()
                    ],
                )
                for entity, values in changes.items()
            ],
            validate_only=validate_only,
        )

        async def attempt() -> dict[QuotaEntity, BrokerError | None]:
            response = await self._client.ask_controller(request)
            outcome: dict[QuotaEntity, BrokerError | None] = {}
            for entry in response.entries:
                entity = tuple((each.entity_type, each.entity_name) for each in entry.entity)
                error = None
                if entry.error_code != ErrorCode.NONE:
                    error = error_for(entry.error_code, entry.error_message, f"quotas of {entity}")
                    if error.code is ErrorCode.NOT_CONTROLLER:
                        raise error
                outcome[entity] = error
            return outcome

        return await self._client.retry(attempt, what="alter client quotas", timeout_ms=timeout_ms)
