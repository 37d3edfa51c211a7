"""controller_mutation_rate: strict and permissive quotas, shared, replaced and bounded."""

from __future__ import annotations

from moldau.server.quotas.core.client_quota import SENSOR_LIFE_MS
from moldau.server.quotas.core.mutation_quota import MutationQuota, MutationQuotas

KEY = "controller_mutation_rate"


def make(limit: float = 2.0, max_buckets: int = 100) -> MutationQuotas:
    quotas = MutationQuotas(sample_count=11, window_ms=1000.0, max_buckets=max_buckets)
    quotas.limits.change({(("user", None),): {KEY: limit}})
    return quotas


def of(
    quotas: MutationQuotas, user: str = "a", *, strict: bool = True, at: float = 0.0
) -> MutationQuota:
    quota = quotas.of(user, "app", is_strict=strict, now_ms=at)
    assert quota is not None
    return quota


def test_without_a_limit_there_is_no_quota() -> None:
    quotas = MutationQuotas(sample_count=11, window_ms=1000.0)
    assert quotas.of("a", "app", is_strict=True, now_ms=0.0) is None
    assert not len(quotas)


def test_a_strict_quota_refuses_when_the_tokens_are_used_up() -> None:
    quotas = make()
    quota = of(quotas)
    assert quota.take(22, 0.0)
    assert quota.take(10, 0.0), "with none left, but none lent either"
    assert quota.throttle_ms(0.0) == 0, "what was granted costs no pause"
    assert not quota.take(1, 0.0)
    assert quota.throttle_ms(0.0) == 5000
    assert quota.throttle_ms(3000.0) == 2000
    again = of(quotas, at=4999.0)
    assert not again.take(1, 4999.0)
    assert again.take(1, 5000.0)


def test_a_permissive_quota_grants_everything_and_pauses() -> None:
    quota = of(make(), strict=False)
    assert quota.take(22, 0.0)
    assert quota.throttle_ms(0.0) == 0
    assert quota.take(10, 0.0)
    assert quota.throttle_ms(0.0) == 5000
    assert quota.take(10, 0.0)
    assert quota.throttle_ms(0.0) == 10_000


def test_a_pause_is_as_long_as_what_is_left_of_it() -> None:
    quota = of(make(), at=1_000.0)
    assert quota.take(32, 1_000.0)
    assert not quota.take(1, 2_000.0)
    assert [quota.throttle_ms(each) for each in (2_000.0, 5_000.0, 6_000.0, 9_000.0)] == [
        *(4_000, 1_000),
        *(0, 0),
    ]


def test_each_user_has_tokens_of_its_own_and_a_new_limit_counts() -> None:
    quotas = make()
    assert of(quotas).take(30, 0.0)
    assert not of(quotas).take(1, 0.0)
    assert of(quotas, "b").take(1, 0.0)
    quotas.limits.change({(("user", "a"),): {KEY: 100.0}})
    assert of(quotas, at=1000.0).take(1, 1000.0)


def test_buckets_are_forgotten_after_an_hour_and_have_a_limit() -> None:
    quotas = make(max_buckets=3)
    for name in ("a", "b", "a", "c", "d"):
        of(quotas, name)
    assert [user for (user, _), _ in quotas] == ["a", "c", "d"]
    of(quotas, "e", at=SENSOR_LIFE_MS + 1)
    assert [user for (user, _), _ in quotas] == ["e"]


def test_a_bucket_is_kept_for_an_hour_after_its_last_use() -> None:
    quotas, begun_ms = make(), SENSOR_LIFE_MS
    of(quotas, "a", at=begun_ms)
    of(quotas, "b", at=begun_ms + SENSOR_LIFE_MS)
    assert [user for (user, _), _ in quotas] == ["a", "b"]
    of(quotas, "c", at=begun_ms + SENSOR_LIFE_MS + 1)
    assert [user for (user, _), _ in quotas] == ["b", "c"]


def test_the_rate_of_what_was_granted_is_measured() -> None:
    quotas = make()
    quota = of(quotas)
    assert quota.take(30, 0.0)
    assert not quota.take(5, 0.0)
    ((_, mutations),) = quotas
    assert mutations.rate.total(0.0) == 30
