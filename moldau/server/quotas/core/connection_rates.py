"""How many connections per second a node takes, from everywhere and from each address (KIP-612).

Owns: the rates of both (`max.connection.creation.rate`). Must not: know sockets or clocks.
Invariants: connections that may come are taken in the order they came on their listener; what an
address is refused does not count for the others; at most `max_addresses` addresses have rates.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from moldau.addresses import canonical_address
from moldau.metadata.quota_entities import CONNECTION_CREATION_RATE, IP
from moldau.server.quotas.core.client_quota import MAX_SENSORS, SENSOR_LIFE_MS
from moldau.server.quotas.core.limits import QuotaChanges
from moldau.server.quotas.core.rates import QuotaRate

UNLIMITED: Final = 2**31 - 1
DEFAULT_SAMPLE_COUNT: Final = 11
DEFAULT_WINDOW_MS: Final = 1000.0
DEFAULT_MAX_WAITING: Final = 50
MAX_ENDING: Final = 1_000
"""Refused connections that wait for their end, which may be as many as a window has room for; more
are closed at once.
"""


class Admission(NamedTuple):
    """What becomes of a connection: it is taken, or closed, after so many milliseconds."""

    wait_ms: float
    is_taken: bool


AT_ONCE: Final = Admission(0.0, True)
TOO_MANY_WAIT: Final = Admission(0.0, False)


class _AddressRate:
    __slots__ = ("last_used_ms", "rate")

    def __init__(self, rate: QuotaRate) -> None:
        self.rate = rate
        self.last_used_ms = 0.0


class ConnectionRates:
    """States of a listener: free, or connections wait in line, each until the pause of the one
    before is over and its own as well.

    Args:
        sample_count, window_ms: `quota.window.num` and `quota.window.size.seconds`; no pause is
            longer than a window.
    """

    def __init__(
        self,
        *,
        sample_count: int = DEFAULT_SAMPLE_COUNT,
        window_ms: float = DEFAULT_WINDOW_MS,
        max_addresses: int = MAX_SENSORS,
    ) -> None:
        self.node_limit = UNLIMITED
        """`max.connection.creation.rate`, which does not hold for `unlimited_listener`."""
        self.unlimited_listener = ""
        self._sample_count = sample_count
        self._window_ms = window_ms
        self._max_addresses = max_addresses
        self._limits: dict[str | None, float] = {}
        self._node_rate = QuotaRate(sample_count, window_ms)
        self._by_address: dict[str, _AddressRate] = {}  # the least recently used first
        self._waiting: dict[str, deque[float]] = {}  # when they are taken, by listener
        self._ending: deque[float] = deque()  # when they are closed, at the latest
        self.max_waiting = DEFAULT_MAX_WAITING
        """`socket.listen.backlog.size`: connections that wait on a listener; more are closed."""

    @property
    def is_limited(self) -> bool:
        return bool(self._limits) or self.node_limit < UNLIMITED

    @property
    def address_count(self) -> int:
        return len(self._by_address)

    def change(self, changes: QuotaChanges) -> None:
        """Take over changed quotas of addresses; the address None is the default."""
        for entity, values in changes.items():
            parts = dict(entity)
            if IP not in parts or CONNECTION_CREATION_RATE not in values:
                continue
            name, limit = parts[IP], values[CONNECTION_CREATION_RATE]
            address = None if name is None else canonical_address(name)
            if limit is None:
                self._limits.pop(address, None)
            else:
                self._limits[address] = limit

    def admit(self, listener_name: str, host: str, now_ms: float) -> Admission:
        """What becomes of a connection that comes now from that address, in its canonical form."""
        if self._limits:
            refused_ms = self._address_throttle_ms(host, now_ms)
            if refused_ms:
                return self._end_later(refused_ms, now_ms)
        if self.node_limit >= UNLIMITED or listener_name == self.unlimited_listener:
            return AT_ONCE
        waiting = self._waiting.setdefault(listener_name, deque())
        while waiting and waiting[0] <= now_ms:
            waiting.popleft()
        if len(waiting) >= self.max_waiting:
            return TOO_MANY_WAIT
        begin_ms = waiting[-1] if waiting else now_ms
        self._node_rate.record(1.0, begin_ms)
        begin_ms += min(self._node_rate.throttle_ms(self.node_limit, begin_ms), self._window_ms)
        if begin_ms > now_ms:
            waiting.append(begin_ms)
        return Admission(begin_ms - now_ms, True)

    def _end_later(self, refused_ms: float, now_ms: float) -> Admission:
        ending = self._ending
        while ending and ending[0] <= now_ms:
            ending.popleft()
        if len(ending) >= MAX_ENDING:
            return TOO_MANY_WAIT
        ending.append(now_ms + self._window_ms)  # no pause is longer
        return Admission(refused_ms, False)

    def _address_throttle_ms(self, address: str, now_ms: float) -> float:
        """After how many milliseconds its connection is closed; 0 if it may come."""
        limit = self._limits.get(address)
        if limit is None:
            limit = self._limits.get(None)
        if limit is None:
            return 0.0
        rate = self._rate_of(address, now_ms)
        rate.record(1.0, now_ms)
        throttle_ms = min(rate.throttle_ms(limit, now_ms), self._window_ms)
        if throttle_ms:
            rate.record(-1.0, now_ms)
        return throttle_ms

    def _rate_of(self, address: str, now_ms: float) -> QuotaRate:
        known = self._by_address.pop(address, None)
        if known is None:
            while self._by_address and (
                len(self._by_address) >= self._max_addresses or self._is_oldest_expired(now_ms)
            ):
                del self._by_address[next(iter(self._by_address))]
            known = _AddressRate(QuotaRate(self._sample_count, self._window_ms))
        self._by_address[address] = known
        known.last_used_ms = now_ms
        return known.rate

    def _is_oldest_expired(self, now_ms: float) -> bool:
        oldest = next(iter(self._by_address.values()))
        return now_ms - oldest.last_used_ms > SENSOR_LIFE_MS
