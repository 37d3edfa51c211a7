"""One key's quota: what each client used, and the throttle time, how long it has to pause.

Owns: the sensors, one for all clients that share a limit. Must not: know requests, connections or
clocks. Invariants: there are at most `max_sensors`, and none that was not used for SENSOR_LIFE_MS
when another one is; the limits in force are those of the last change, and a change of limits leaves
what was used as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeAlias

from moldau.server.quotas.core.limits import ClientLimit, ClientLimits
from moldau.server.quotas.core.rates import QuotaRate, SampledTotal

SENSOR_LIFE_MS: Final = 3_600_000.0
"""A sensor that was not used for so long is forgotten, as in Kafka."""

MAX_SENSORS: Final = 10_000
"""Beyond it the sensor that was not used for the longest time is forgotten: a client that sends
with ever new client ids cannot make a node hold more.
"""

AVERAGE_SAMPLES: Final = 2
AVERAGE_WINDOW_MS: Final = 30_000.0

Who: TypeAlias = tuple[str, str]
"""The user and the client id that a sensor is for; one of them may be ABSENT."""


MAX_WHO_CHARACTERS: Final = 1_000


def who_of(found: ClientLimit) -> Who:
    """Whose sensor is used. Very long client ids, which cost the memory of the node, share those of
    their beginnings.
    """
    return found.user[:MAX_WHO_CHARACTERS], found.client_id[:MAX_WHO_CHARACTERS]


class Sensor:
    """What the clients that share a limit used, and how long they were made to pause."""

    __slots__ = ("last_used_ms", "limit", "rate", "throttle_count", "throttle_total")

    def __init__(self, sample_count: int, window_ms: float) -> None:
        self.rate = QuotaRate(sample_count, window_ms)
        self.limit = 0.0
        self.last_used_ms = 0.0
        self.throttle_total: SampledTotal | None = None
        self.throttle_count: SampledTotal | None = None

    def throttled(self, throttle_ms: float, now_ms: float) -> None:
        if self.throttle_total is None or self.throttle_count is None:
            self.throttle_total = SampledTotal(AVERAGE_SAMPLES, AVERAGE_WINDOW_MS)
            self.throttle_count = SampledTotal(AVERAGE_SAMPLES, AVERAGE_WINDOW_MS)
        self.throttle_total.record(throttle_ms, now_ms)
        self.throttle_count.record(1.0, now_ms)

    def average_throttle_ms(self, now_ms: float) -> float:
        """The average of the pauses in the last minute; 0 when there were none."""
        if self.throttle_total is None or self.throttle_count is None:
            return 0.0
        count = self.throttle_count.total(now_ms)
        return self.throttle_total.total(now_ms) / count if count else 0.0


class Sensors:
    """The sensors in use, the least recently used first."""

    __slots__ = ("_by_who", "_is_news", "_max_sensors", "_sample_count", "_window_ms")

    def __init__(self, sample_count: int, window_ms: float, max_sensors: int) -> None:
        self._sample_count = sample_count
        self._window_ms = window_ms
        self._max_sensors = max_sensors
        self._by_who: dict[Who, Sensor] = {}
        self._is_news: dict[Who, bool] = {}

    @property
    def least_span_ms(self) -> float:
        """The shortest span that a rate is taken over."""
        return max(self._sample_count - 1, 1) * self._window_ms

    def __len__(self) -> int:
        return len(self._by_who)

    def __iter__(self) -> Iterator[tuple[Who, Sensor]]:
        return iter(self._by_who.items())

    def get(self, who: Who) -> Sensor | None:
        return self._by_who.get(who)

    def use(self, found: ClientLimit, now_ms: float) -> Sensor:
        """The sensor of the clients that share this limit, from now on if there was none."""
        who = who_of(found)
        sensor = self._by_who.pop(who, None)
        if sensor is None:
            sensor = Sensor(self._sample_count, self._window_ms)
            self._is_news[who] = True
            if len(self._by_who) >= self._max_sensors:
                self._forget(next(iter(self._by_who)))
        self._by_who[who] = sensor
        sensor.last_used_ms = now_ms
        sensor.limit = found.limit
        self._expire(now_ms)
        return sensor

    def take_news(self) -> dict[Who, bool]:
        """Who has got a sensor (True) or lost it (False) since this was last asked."""
        news, self._is_news = self._is_news, {}
        return news

    @property
    def has_news(self) -> bool:
        return bool(self._is_news)

    def _expire(self, now_ms: float) -> None:
        while True:
            who, oldest = next(iter(self._by_who.items()))
            if now_ms - oldest.last_used_ms <= SENSOR_LIFE_MS:
                return
            self._forget(who)

    def _forget(self, who: Who) -> None:
        del self._by_who[who]
        self._is_news[who] = False


class ClientQuota:
    """The quota of one key. Amounts are in the key's unit; their rate is per second.

    Args:
        sample_count, window_ms: `quota.window.num` and `quota.window.size.seconds`.
        max_throttle_ms: no pause is longer; None for what the rate asks for.
    """

    __slots__ = ("_max_throttle_ms", "limits", "sensors")

    def __init__(
        self,
        key: str,
        *,
        sample_count: int,
        window_ms: float,
        max_throttle_ms: float | None = None,
        max_sensors: int = MAX_SENSORS,
    ) -> None:
        self.limits = ClientLimits(key)
        self.sensors = Sensors(sample_count, window_ms, max_sensors)
        self._max_throttle_ms = max_throttle_ms

    def record(
        self, user: str, client_id: str, amount: float, now_ms: float, *, is_used: bool = True
    ) -> int:
        """Note what a client used; returns how many milliseconds it has to pause, 0 for none.

        Args:
            is_used: False for what the client only gets if it has not to pause.
        """
        found = self.limits.find(user, client_id)
        if found is None:
            return 0
        sensor = self.sensors.use(found, now_ms)
        sensor.rate.record(amount, now_ms)
        throttle_ms = sensor.rate.throttle_ms(sensor.limit, now_ms)
        if throttle_ms and not is_used:
            sensor.rate.record(-amount, now_ms)
        if self._max_throttle_ms is None:
            return throttle_ms
        return min(throttle_ms, round(self._max_throttle_ms))

    def throttled(self, user: str, client_id: str, throttle_ms: float, now_ms: float) -> None:
        """Note a pause that this quota imposes."""
        found = self.limits.find(user, client_id)
        if found is not None:
            self.sensors.use(found, now_ms).throttled(throttle_ms, now_ms)

    def take_back(self, user: str, client_id: str, amount: float, now_ms: float) -> None:
        """Forget an amount that was recorded at the same time and is not used after all."""
        found = self.limits.find(user, client_id)
        if found is not None:
            self.sensors.use(found, now_ms).rate.record(-amount, now_ms)

    def most_at_once(self, user: str, client_id: str) -> float | None:
        """An amount above it is throttled even if it is the only one; None for no limit."""
        found = self.limits.find(user, client_id)
        if found is None:
            return None
        return found.limit * self.sensors.least_span_ms / 1000.0
