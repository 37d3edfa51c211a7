"""Quotas stay in force through changes, snapshots and usage: a checker, and bugs that it finds.

The checker replays random metadata through the broker's loader and asks after every step for the
pause of every client: once of `Quotas`, and once of the definition (all events kept, and the image
searched in KIP-55's order).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from moldau.broker.lifecycle.metadata_loader import MetadataLoader
from moldau.metadata.image import Provenance
from moldau.metadata.image.configs import client_quota_record
from moldau.metadata.quota_entities import QuotaEntity, quota_entity
from moldau.protocol.schema import Message
from moldau.server.quotas.client_quotas import Quotas
from moldau.server.quotas.core.client_quota import Sensors
from moldau.server.quotas.core.limits import ClientLimits
from moldau.server.quotas.core.rates import whole_ms
from tests.kit.manual_clock import ManualClock
from tests.unit.server.quotas.test_rates import PlainRate

KEY = "producer_byte_rate"
USERS = ("a", "b")
CLIENTS = ("x", "y")
ENTITIES: tuple[QuotaEntity, ...] = tuple(
    quota_entity(parts.items())
    for parts in (
        *({"user": user} for user in (*USERS, None)),
        *({"client-id": client} for client in (*CLIENTS, None)),
        *({"user": user, "client-id": c} for user in (*USERS, None) for c in (*CLIENTS, None)),
    )
)
STEPS = 60


class Checker:
    """One broker's quotas beside their definition."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.clock = ManualClock()
        self.loader = MetadataLoader(1)
        self.quotas = Quotas(self.clock)
        self.loader.add_publisher(self.quotas)
        self.offset = 0
        self.used: dict[tuple[str, str], PlainRate] = {}

    def run(self) -> None:
        """Raises AssertionError where the two differ."""
        for _ in range(STEPS):
            self.dice.choice([self.change, self.change, self.snapshot, self.use, self.use])()
            self.clock.advance(self.dice.choice([0.0, 100.0, 1500.0, 7000.0]))
            for user in USERS:
                for client_id in CLIENTS:
                    self.check(user, client_id, 0)

    def provenance(self) -> Provenance:
        self.offset += 1
        return Provenance(self.offset, 1, 0)

    def changes(self, count: int) -> list[Message]:
        values = (*[float(self.dice.randint(1, 500)) for _ in range(count)], None)
        return [
            client_quota_record(self.dice.choice(ENTITIES), KEY, self.dice.choice(values))[0]
            for _ in range(count)
        ]

    def change(self) -> None:
        self.loader.handle_commit(self.changes(self.dice.randint(1, 3)), self.provenance())

    def snapshot(self) -> None:
        """The quotas in force, without some and with others."""
        records = [record for record, _ in self.loader.image.client_quotas.write()]
        kept = [each for each in records if self.dice.random() < 0.8]
        self.loader.handle_snapshot([*kept, *self.changes(1)], self.provenance())

    def use(self) -> None:
        self.check(self.dice.choice(USERS), self.dice.choice(CLIENTS), self.dice.randint(1, 3000))

    def check(self, user: str, client_id: str, amount: int) -> None:
        found = self.quotas.record_produce(f"User:{user}", client_id, amount)
        assert found == self.expected(user, client_id, amount), (user, client_id, amount)

    def expected(self, user: str, client_id: str, amount: int) -> int:
        quotas = self.loader.image.client_quotas.quotas_by_entity
        now_ms = self.clock.monotonic_ms()
        for by_user, by_client in (
            *((user, each) for each in (client_id, None, "")),
            *((None, each) for each in (client_id, None, "")),
            *(("", each) for each in (client_id, None)),
        ):
            parts = {"user": by_user, "client-id": by_client}
            entity = quota_entity((k, name) for k, name in parts.items() if name != "")
            limit = quotas.get(entity, {}).get(KEY)
            if limit is None:
                continue
            who = "" if by_user == "" else user, "" if by_client == "" else client_id
            used = self.used.setdefault(who, PlainRate(11, 1000.0))
            used.events.append((now_ms, amount))
            rate = used.per_second(now_ms)
            span_ms = sum(n for _, n in used.counted(now_ms)) * 1000.0 / rate if rate else 0.0
            return whole_ms((rate - limit) / limit * span_ms) if rate > limit else 0
        return 0


@pytest.mark.parametrize("seed", range(40))
def test_quotas_are_those_of_the_newest_image(seed: int) -> None:
    print(f"seed {seed}")
    Checker(seed).run()


def limits_lost(patch: pytest.MonkeyPatch) -> None:
    """A reload forgets what it does not name."""
    change = ClientLimits.change

    def forgetful(self: ClientLimits, changes: Any) -> None:
        self._by_entity.clear()
        change(self, changes)

    patch.setattr(ClientLimits, "change", forgetful)


def usage_lost(patch: pytest.MonkeyPatch) -> None:
    """A reload begins with new sensors."""
    change = Quotas.change

    def forgetful(self: Quotas, changes: Any) -> None:
        change(self, changes)
        quota = self._produce.quota
        quota.sensors = Sensors(11, 1000.0, 1000)

    patch.setattr(Quotas, "change", forgetful)


def removals_lost(patch: pytest.MonkeyPatch) -> None:
    """A limit that is gone stays in force."""
    change = ClientLimits.change

    def forgetful(self: ClientLimits, changes: Any) -> None:
        there = {
            entity: {key: value for key, value in values.items() if value is not None}
            for entity, values in changes.items()
        }
        change(self, there)

    patch.setattr(ClientLimits, "change", forgetful)


@pytest.mark.parametrize("bug", [limits_lost, usage_lost, removals_lost])
def test_the_checker_finds_injected_bugs(
    bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    found = 0
    for seed in range(10):
        print(f"seed {seed}")
        try:
            Checker(seed).run()
        except AssertionError:
            found += 1
    assert found >= 8, f"{bug.__name__}: found by {found} of 10 seeds"
