"""`controller_mutation_rate`: how many partitions a client may create and delete (KIP-599).

Owns: the token buckets, one for all clients that share a limit. Must not: know requests or clocks.
Invariant: there are at most `max_buckets`; the one that was not used for the longest time goes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from moldau.metadata.quota_entities import CONTROLLER_MUTATION_RATE
from moldau.server.quotas.core.client_quota import MAX_SENSORS, SENSOR_LIFE_MS, Who, who_of
from moldau.server.quotas.core.limits import ClientLimit, ClientLimits
from moldau.server.quotas.core.rates import QuotaRate, TokenBucket


@dataclass(slots=True)
class Mutations:
    """What the clients that share a limit may change, and what they changed."""

    limit: float
    bucket: TokenBucket
    rate: QuotaRate
    last_used_ms: float


class MutationQuota:
    """The quota of one request. A strict one refuses what comes when the tokens are used up; the
    other one lets everything happen. Either way the client pauses until the tokens are back.
    """

    __slots__ = ("_is_strict", "_mutations", "_recorded_ms", "_throttle_ms")

    def __init__(self, mutations: Mutations, *, is_strict: bool) -> None:
        self._mutations = mutations
        self._is_strict = is_strict
        self._throttle_ms = 0
        self._recorded_ms = 0.0

    def take(self, count: int, now_ms: float) -> bool:
        """Whether so many partitions may be created or deleted; if so, they are counted.

        The last token suffices for any number: what is taken beyond it is lent.
        """
        mutations = self._mutations
        bucket, limit = mutations.bucket, mutations.limit
        if self._is_strict and self._is_used_up(now_ms):
            return False
        bucket.take(count, limit, now_ms)
        mutations.rate.record(count, now_ms)
        if not self._is_strict:
            self._is_used_up(now_ms)
        return True

    def throttle_ms(self, now_ms: float) -> int:
        """How many milliseconds the client has to pause."""
        return max(round(self._throttle_ms - (now_ms - self._recorded_ms)), 0)

    def _is_used_up(self, now_ms: float) -> bool:
        mutations = self._mutations
        if mutations.bucket.tokens(mutations.limit, now_ms) >= 0:
            return False
        self._throttle_ms = mutations.bucket.throttle_ms(mutations.limit, now_ms)
        self._recorded_ms = now_ms
        return True


class MutationQuotas:
    """The quotas of all clients.

    Args:
        sample_count, window_ms: `controller.quota.window.num` and `.size.seconds`: a bucket holds
            what comes back in all these windows.
    """

    def __init__(
        self, *, sample_count: int, window_ms: float, max_buckets: int = MAX_SENSORS
    ) -> None:
        self.limits = ClientLimits(CONTROLLER_MUTATION_RATE)
        self._sample_count = sample_count
        self._window_ms = window_ms
        self._max_buckets = max_buckets
        self._by_who: dict[Who, Mutations] = {}  # the least recently used first

    def __len__(self) -> int:
        return len(self._by_who)

    def __iter__(self) -> Iterator[tuple[Who, Mutations]]:
        return iter(tuple(self._by_who.items()))

    def of(
        self, user: str, client_id: str, *, is_strict: bool, now_ms: float
    ) -> MutationQuota | None:
        """The quota of a request, None if its client has no limit."""
        found = self.limits.find(user, client_id)
        if found is None:
            return None
        return MutationQuota(self._use(found, now_ms), is_strict=is_strict)

    def _use(self, found: ClientLimit, now_ms: float) -> Mutations:
        who = who_of(found)
        mutations = self._by_who.pop(who, None)
        if mutations is None:
            while self._by_who and (
                len(self._by_who) >= self._max_buckets or self._is_oldest_expired(now_ms)
            ):
                del self._by_who[next(iter(self._by_who))]
            burst_seconds = self._sample_count * self._window_ms / 1000.0
            mutations = Mutations(
                found.limit,
                TokenBucket(burst_seconds, found.limit, now_ms),
                QuotaRate(self._sample_count, self._window_ms),
                now_ms,
            )
        self._by_who[who] = mutations
        mutations.limit, mutations.last_used_ms = found.limit, now_ms
        return mutations

    def _is_oldest_expired(self, now_ms: float) -> bool:
        oldest = next(iter(self._by_who.values()))
        return now_ms - oldest.last_used_ms > SENSOR_LIFE_MS
