"""Counts and times of requests, by API, under Kafka's RequestMetrics names.

Owns the instruments of each API that was asked for. Must not slow requests down: three additions
each.
"""

from __future__ import annotations

from typing import NamedTuple

from moldau.protocol.api_keys import api_name
from moldau.runtime.telemetry import Counter, Histogram, Registry
from moldau.server.request import Request

PREFIX = "kafka.network:type=RequestMetrics,name="


class _Instruments(NamedTuple):
    requests: Counter
    local_time_ms: Histogram
    total_time_ms: Histogram
    request_bytes: Counter
    response_bytes: Counter


class RequestMetrics:
    """Implements the server's `RequestObserver`."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._by_api: dict[int, _Instruments] = {}

    def request_completed(
        self, request: Request, response_bytes: int, local_ms: float, total_ms: float
    ) -> None:
        """Count one answered request; times in milliseconds."""
        instruments = self._by_api.get(request.api_key) or self._of(request.api_key)
        instruments.requests.value += 1
        instruments.local_time_ms.observe(local_ms)
        instruments.total_time_ms.observe(total_ms)
        instruments.request_bytes.value += request.size_bytes
        instruments.response_bytes.value += response_bytes

    def _of(self, api_key: int) -> _Instruments:
        name = api_name(api_key)
        registry = self._registry
        instruments = self._by_api[api_key] = _Instruments(
            registry.counter(f"{PREFIX}RequestsPerSec", request=name),
            registry.histogram(f"{PREFIX}LocalTimeMs", request=name),
            registry.histogram(f"{PREFIX}TotalTimeMs", request=name),
            registry.counter(f"{PREFIX}RequestBytes", request=name),
            registry.counter(f"{PREFIX}ResponseBytes", request=name),
        )
        return instruments
