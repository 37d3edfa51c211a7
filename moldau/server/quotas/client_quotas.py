"""The quotas of a node's listeners: what requests used, and how long clients pause (KIP-219).

Owns: the quotas of bytes, of time and of connections, kept at what the newest image says, and their
metrics. Must not: know what requests mean. Invariant: usage is recorded once per request, before
its response leaves; the response names the pause (the throttle time, by `core.client_quota`), and
the server does not read from the connection for that long. Only what a limit holds for is measured:
without quotas there is nothing to do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from moldau.metadata.quota_entities import (
    CONSUMER_BYTE_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
)
from moldau.server.quotas.core.client_quota import ClientQuota, Sensor, Who
from moldau.server.quotas.core.connection_rates import (
    DEFAULT_SAMPLE_COUNT,
    DEFAULT_WINDOW_MS,
    ConnectionRates,
)
from moldau.server.quotas.core.limits import QuotaChanges

if TYPE_CHECKING:
    from moldau.metadata.image import MetadataDelta, MetadataImage
    from moldau.runtime.clock import Clock
    from moldau.runtime.telemetry.metrics import Registry

PERCENT_PER_MS: Final = 0.1
"""One millisecond of each second is a tenth of a percent."""


class _MeasuredQuota:
    """One key's quota and its metrics, under Kafka's names."""

    __slots__ = ("_clock", "_prefix", "_rate_name", "_registry", "quota")

    def __init__(
        self,
        quota: ClientQuota,
        clock: Clock,
        registry: Registry | None,
        *,
        kind: str,
        rate_name: str,
    ) -> None:
        self.quota = quota
        self._clock = clock
        self._registry = registry
        self._prefix = f"kafka.server:type={kind},name="
        self._rate_name = rate_name

    def record(
        self, principal: str, client_id: str | None, amount: float, *, is_used: bool = True
    ) -> int:
        """How many milliseconds the client has to pause after having used this, too."""
        quota = self.quota
        if not quota.limits:
            return 0
        user, client = user_of(principal), client_id or ""
        now_ms = self._clock.monotonic_ms()
        throttle_ms = quota.record(user, client, amount, now_ms, is_used=is_used)
        if throttle_ms:
            quota.throttled(user, client, throttle_ms, now_ms)
        if quota.sensors.has_news:
            self._tell_metrics()
        return throttle_ms

    def _tell_metrics(self) -> None:
        for who, is_there in self.quota.sensors.take_news().items():
            sensor = self.quota.sensors.get(who)
            if self._registry is None:
                continue
            if is_there and sensor is not None:
                self._add_gauges(self._registry, who, sensor)
            else:
                for name in (self._rate_name, "throttle-time"):
                    self._registry.remove(self._prefix + name, **labels_of(who))

    def _add_gauges(self, registry: Registry, who: Who, sensor: Sensor) -> None:
        read: tuple[tuple[str, Callable[[float], float]], ...] = (
            (self._rate_name, sensor.rate.per_second),
            ("throttle-time", sensor.average_throttle_ms),
        )
        for name, function in read:
            registry.gauge(
                self._prefix + name, partial(_read, function, self._clock), **labels_of(who)
            )


def _read(function: Callable[[float], float], clock: Clock) -> float:
    return function(clock.monotonic_ms())


class Quotas:
    """The client quotas of the listeners of one loop. A metadata publisher.

    Args:
        registry: gets the metrics; None for none.
        sample_count, window_ms: `quota.window.num` and `quota.window.size.seconds`.
    """

    def __init__(
        self,
        clock: Clock,
        registry: Registry | None = None,
        *,
        sample_count: int = DEFAULT_SAMPLE_COUNT,
        window_ms: float = DEFAULT_WINDOW_MS,
    ) -> None:
        def measured(
            key: str, kind: str, rate_name: str, max_throttle_ms: float | None = None
        ) -> _MeasuredQuota:
            quota = ClientQuota(
                key,
                sample_count=sample_count,
                window_ms=window_ms,
                max_throttle_ms=max_throttle_ms,
            )
            return _MeasuredQuota(quota, clock, registry, kind=kind, rate_name=rate_name)

        self.clock = clock
        self._produce = measured(PRODUCER_BYTE_RATE, "Produce", "byte-rate")
        self._fetch = measured(CONSUMER_BYTE_RATE, "Fetch", "byte-rate")
        self._request = measured(REQUEST_PERCENTAGE, "Request", "request-time", window_ms)
        self.connection_rates = ConnectionRates(sample_count=sample_count, window_ms=window_ms)
        self.limits_requests = False
        """Whether the time of requests has to be measured."""
        self.limits_fetches = False
        """Whether fetches have to ask."""

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        changes = delta.client_quotas_delta.changes
        if changes:
            self.change(changes)

    def change(self, changes: QuotaChanges) -> None:
        """Take over changed quotas; what was used stays as it is."""
        for each in (self._produce, self._fetch, self._request):
            each.quota.limits.change(changes)
        self.connection_rates.change(changes)
        self.limits_requests = bool(self._request.quota.limits)
        self.limits_fetches = self.limits_requests or bool(self._fetch.quota.limits)

    def record_produce(self, principal: str, client_id: str | None, size_bytes: int) -> int:
        """A Produce request of `size_bytes` came in; returns the pause in milliseconds."""
        return self._produce.record(principal, client_id, size_bytes)

    def record_fetch(self, principal: str, client_id: str | None, size_bytes: int) -> int:
        """`size_bytes` of record batches are about to go out; after any pause but 0, which is in
        milliseconds, they must not: the client gets an empty answer, and they do not count.
        """
        return self._fetch.record(principal, client_id, size_bytes, is_used=False)

    def take_back_fetch(self, principal: str, client_id: str | None, size_bytes: int) -> None:
        """What was just recorded does not go out after all."""
        quota = self._fetch.quota
        now_ms = self.clock.monotonic_ms()
        quota.take_back(user_of(principal), client_id or "", size_bytes, now_ms)

    def most_fetched(self, principal: str, client_id: str | None) -> float | None:
        """The most bytes that one fetch may get without a pause; None for no limit."""
        return self._fetch.quota.most_at_once(user_of(principal), client_id or "")

    def record_request(self, principal: str, client_id: str | None, time_ms: float) -> int:
        """A request has held the loop for `time_ms`; returns the pause in milliseconds, which is
        one window at most (KIP-124).
        """
        return self._request.record(principal, client_id, time_ms * PERCENT_PER_MS)


def user_of(principal: str) -> str:
    """The name that quotas know a principal by: `alice` of `User:alice`."""
    return principal.partition(":")[2]


def labels_of(who: Who) -> dict[str, str]:
    """The labels of a sensor's metrics; Kafka percent-encodes the user."""
    user, client_id = who
    return {"user": quote(user, safe="-._~"), "client_id": client_id}
