"""What clients may create and delete at the active controller, as the newest image says (KIP-599).

Owns: the token buckets of this controller (`server.quotas.core.mutation_quota`), and their metrics.
Must not: decide about topics. Invariant: a quota counts from the first request after it was
committed. Another controller that becomes active begins with full buckets, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from moldau.metadata.image import MetadataImage
from moldau.metadata.image.configs import ClientQuotasImage
from moldau.runtime.clock import Clock
from moldau.runtime.telemetry.metrics import Registry
from moldau.server.quotas.client_quotas import labels_of, user_of
from moldau.server.quotas.core.client_quota import Who
from moldau.server.quotas.core.limits import QuotaChanges
from moldau.server.quotas.core.mutation_quota import MutationQuota, MutationQuotas, Mutations
from moldau.server.request import Sender

METRICS: Final = "kafka.server:type=ControllerMutation,name="


class ControllerMutationQuotas:
    """The quotas of all clients of one controller.

    Args:
        image: the committed metadata.
        sample_count, window_ms: `controller.quota.window.num` and `.size.seconds`.
    """

    def __init__(
        self,
        image: Callable[[], MetadataImage],
        clock: Clock,
        registry: Registry | None = None,
        *,
        sample_count: int,
        window_ms: float,
    ) -> None:
        self._image = image
        self._clock = clock
        self.now_ms = clock.monotonic_ms
        self._registry = registry
        self._quotas = MutationQuotas(sample_count=sample_count, window_ms=window_ms)
        self._seen = ClientQuotasImage()
        self._told: set[Who] = set()

    def of(self, strict_since: int | None, sender: Sender) -> MutationQuota | None:
        """The quota of one request of that sender; None for no limit, and for APIs that change no
        partitions.

        Args:
            strict_since: of the API's row. In older versions everything is done, and the client
                pauses.
        """
        if strict_since is None:
            return None
        self._follow()
        if not self._quotas.limits:
            return None
        version = sender.api_version
        quota = self._quotas.of(
            user_of(sender.principal),
            sender.client_id or "",
            is_strict=version is None or version >= strict_since,
            now_ms=self.now_ms(),
        )
        self._tell_metrics()
        return quota

    def _follow(self) -> None:
        """Take over what has changed in the image since the last request."""
        quotas = self._image().client_quotas
        if quotas is self._seen:
            return
        self._quotas.limits.change(_differences(self._seen, quotas))
        self._seen = quotas

    def _tell_metrics(self) -> None:
        registry = self._registry
        if registry is None:
            return
        there = dict(self._quotas)
        for who in self._told - there.keys():
            for name in ("tokens", "mutation-rate"):
                registry.remove(METRICS + name, **labels_of(who))
        for who in there.keys() - self._told:
            mutations = there[who]
            for name, read in (("tokens", _tokens), ("mutation-rate", _rate)):
                gauge = partial(read, mutations, self._clock)
                registry.gauge(METRICS + name, gauge, **labels_of(who))
        self._told = set(there)


def _differences(before: ClientQuotasImage, after: ClientQuotasImage) -> QuotaChanges:
    old, new = before.quotas_by_entity, after.quotas_by_entity
    changes: dict[tuple[tuple[str, str | None], ...], dict[str, float | None]] = {}
    for entity, values in old.items():
        if new.get(entity) is not values:
            changes[entity] = dict.fromkeys(values)
    for entity, values in new.items():
        if old.get(entity) is not values:
            changes.setdefault(entity, {}).update(values)
    return changes


def _tokens(mutations: Mutations, clock: Clock) -> float:
    return mutations.bucket.tokens(mutations.limit, clock.monotonic_ms())


def _rate(mutations: Mutations, clock: Clock) -> float:
    return mutations.rate.per_second(clock.monotonic_ms())
