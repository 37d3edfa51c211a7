"""Passwords of HTTP clients: what a check costs, what is remembered, how many there may be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from moldau.metadata.image import MetadataDelta, MetadataImage, Provenance
from moldau.metadata.scram_secret import scram_secret_record
from moldau.metadata.scram_users import InventedUsers
from moldau.node.http import passwords
from moldau.node.http.passwords import PasswordChecks, TooManyTries
from moldau.protocol.metadata_records import UserScramCredentialRecord
from moldau.protocol.schema import Message
from moldau.protocol.scram import salted_password, scram_keys
from tests.kit.manual_clock import ManualClock

SALT = b"salt"
NAMES = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}


class Cluster:
    """Users and their passwords, checked on a manual clock."""

    def __init__(self) -> None:
        self.image = MetadataImage.EMPTY
        self.clock = ManualClock()
        self.checks = PasswordChecks(lambda: self.image, self.clock.monotonic_ms)

    def add(self, name: str, password: str, mechanism: int = 2, iterations: int = 4_096) -> None:
        salted = salted_password(NAMES[mechanism], password, SALT, iterations)
        keys = scram_keys(NAMES[mechanism], salted, SALT, iterations)
        self.replay(UserScramCredentialRecord(name=name, mechanism=mechanism, **keys._asdict()))

    def replay(self, *records: Message) -> None:
        delta = MetadataDelta(self.image)
        for record in records:
            delta.replay(record)
        self.image = delta.apply(Provenance())


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    yield made
    made.checks.close()


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Mechanism and iterations of every check that is worked out."""
    seen: list[tuple[int, int]] = []
    real = passwords._stored_key

    def counted(cost: tuple[int, int], password: str, salt: bytes) -> bytes:
        seen.append(tuple(cost))
        return real(cost, password, salt)  # type: ignore[arg-type]

    monkeypatch.setattr(passwords, "_stored_key", counted)
    return seen


@pytest.mark.parametrize("mechanism", [1, 2])
async def test_right_and_wrong(cluster: Cluster, mechanism: int) -> None:
    cluster.add("alice", "pässword", mechanism)
    assert await cluster.checks.is_right("alice", "pässword", "h")
    assert not await cluster.checks.is_right("alice", "password", "h")
    assert not await cluster.checks.is_right("Alice", "pässword", "h")
    assert not await cluster.checks.is_right("", "", "h")


async def test_a_right_password_is_worked_out_once_and_a_wrong_one_each_time(
    cluster: Cluster, costs: list[tuple[int, int]]
) -> None:
    cluster.add("alice", "a")
    for _ in range(30):
        assert await cluster.checks.is_right("alice", "a", "h")
    assert costs == [(2, 4_096)]
    for _ in range(3):
        assert not await cluster.checks.is_right("alice", "b", "h")
    assert len(costs) == 4
    cluster.add("alice", "b")
    assert not await cluster.checks.is_right("alice", "a", "h")
    assert await cluster.checks.is_right("alice", "b", "h")
    cluster.image = MetadataImage.EMPTY
    assert not await cluster.checks.is_right("alice", "b", "h")


async def test_a_name_that_does_not_exist_costs_what_others_cost(
    cluster: Cluster, costs: list[tuple[int, int]]
) -> None:
    assert not await cluster.checks.is_right("nobody", "x", "h0")
    assert costs == [(2, 4_096)], "without any user"
    cluster.add("dear", "x", 1, 8_192)
    del costs[:]
    for number in range(6):
        assert not await cluster.checks.is_right(f"nobody{number}", "x", f"h{number}")
    assert costs == [(1, 8_192)] * 6
    cluster.add("cheap", "x", 2, 4_096)
    seen = set()
    for number in range(30):
        del costs[:]
        cluster.clock.advance(1_000)
        for _ in range(2):
            assert not await cluster.checks.is_right(f"nobody{number}", "x", f"h{number}")
        assert costs[0] == costs[1], "a name always costs the same"
        seen.add(costs[0])
    assert seen == {(1, 8_192), (2, 4_096)}


async def test_a_name_costs_the_same_at_every_node_and_as_its_login_with_scram(
    costs: list[tuple[int, int]],
) -> None:
    made = [Cluster(), Cluster()]
    for cluster in made:
        cluster.replay(scram_secret_record("of the cluster")[0])
        for number in range(3):
            cluster.add(f"dear{number}", "x", 1, 8_192)
            cluster.add(f"cheap{number}", "x", 2, 4_096 + number)
    for number in range(20):
        del costs[:]
        name = f"nobody{number}"
        for cluster in made:
            assert not await cluster.checks.is_right(name, "x", name)
        assert costs[0] == costs[1]
        mechanism, iterations = costs[0]
        invented = InventedUsers(lambda: made[0].image)
        assert invented.keys(NAMES[mechanism], name).iterations == iterations
    for cluster in made:
        cluster.checks.close()


async def test_tries_are_limited_by_host_and_altogether(cluster: Cluster) -> None:
    cluster.add("alice", "a")
    assert await cluster.checks.is_right("alice", "a", "h")

    async def tries(host: str) -> int:
        count = 0
        while True:
            try:
                assert not await cluster.checks.is_right("alice", "wrong", host)
            except TooManyTries:
                return count
            count += 1

    assert await tries("h") == 10
    assert await cluster.checks.is_right("alice", "a", "h"), "it is remembered"
    assert await tries("other") == 10
    assert await cluster.checks.is_right("alice", "a", "h")
    cluster.clock.advance(1_000)
    assert await tries("h") == 2
    assert sum([await tries(f"h{n}") for n in range(30)]) == 100 - 20 + 20 - 2
    cluster.clock.advance(60_000)
    assert await tries("h") == 10
    assert len(cluster.checks._by_host) < 50


async def test_passwords_that_were_right_are_remembered_up_to_a_limit(
    cluster: Cluster, costs: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passwords, "MAX_REMEMBERED", 2)
    for name in "abc":
        cluster.add(name, name)
    for name in "abac":  # the third goes in for b, which was used least lately
        assert await cluster.checks.is_right(name, name, "h")
    assert len(costs) == 3
    assert len(cluster.checks._remembered) == 2
    for name in "ac":
        assert await cluster.checks.is_right(name, name, "h")
    assert len(costs) == 3
    assert await cluster.checks.is_right("b", "b", "h")
    assert len(costs) == 4


async def test_a_remembered_password_is_of_one_name_alone(
    cluster: Cluster, costs: list[tuple[int, int]]
) -> None:
    cluster.add("a b", "c")
    cluster.add("a", "x")
    assert await cluster.checks.is_right("a b", "c", "h")
    assert not await cluster.checks.is_right("a", "b c", "h")
    assert len(costs) == 2


async def test_hosts_are_known_up_to_a_limit(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passwords, "MAX_HOSTS", 2)
    monkeypatch.setattr(cluster.checks, "_all", passwords._Tries(1_000_000.0, 0.0))
    cluster.add("alice", "a")

    async def tries(host: str, most: int) -> int:
        for count in range(most):
            try:
                assert not await cluster.checks.is_right("alice", "wrong", host)
            except TooManyTries:
                return count
        return most

    assert await tries("one", 11) == 10
    assert await tries("two", 1) == 1
    assert await tries("one", 1) == 0, "it was asked for lately"
    assert await tries("three", 1) == 1, "goes in for two"
    assert list(cluster.checks._by_host) == ["one", "three"]
    assert await tries("two", 11) == 10, "which has rested"


async def test_tries_come_back_with_time_up_to_a_burst(cluster: Cluster) -> None:
    tries = passwords._Tries(2.0, 1_000.0)
    for _ in range(10):
        assert tries.has_one(1_000.0)
        tries.change(-1)
    assert not tries.has_one(1_000.0)
    assert not tries.has_one(1_499.0)
    assert tries.has_one(1_500.0)
    tries.change(-1)
    assert not tries.has_one(1_500.0)
    assert tries.has_one(100_000.0)
    for _ in range(10):
        assert tries.has_one(100_000.0)
        tries.change(-1)
    assert not tries.has_one(100_000.0)


async def test_a_right_password_gives_its_try_back(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passwords, "MAX_REMEMBERED", 0)
    cluster.add("alice", "a")
    for _ in range(30):
        assert await cluster.checks.is_right("alice", "a", "h")
    assert cluster.checks._all._left == 100


async def test_of_two_mechanisms_the_stronger_one_counts(
    cluster: Cluster, costs: list[tuple[int, int]]
) -> None:
    cluster.add("alice", "old", 1)
    assert await cluster.checks.is_right("alice", "old", "h")
    cluster.add("alice", "new", 2)
    assert await cluster.checks.is_right("alice", "new", "h")
    assert not await cluster.checks.is_right("alice", "old", "h")
    assert [mechanism for mechanism, _ in costs] == [1, 2, 2]


def test_what_waits_at_the_end_is_not_worked_out() -> None:
    cluster = Cluster()
    ended = []

    class Worker:
        def shutdown(self, *, wait: bool, cancel_futures: bool) -> None:
            ended.append((wait, cancel_futures))

    cluster.checks._worker.shutdown()
    cluster.checks._worker = Worker()  # type: ignore[assignment]
    cluster.checks.close()
    assert ended == [(False, True)]


async def test_how_dear_names_are_is_counted_once_for_the_users_there_are(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    real = passwords._find

    def counted(credentials: passwords.Credentials, user: str) -> Any:
        asked.append(user)
        return real(credentials, user)

    monkeypatch.setattr(passwords, "_find", counted)
    for name in "abc":
        cluster.add(name, name)
    for name in ("x", "y", "z"):
        assert not await cluster.checks.is_right(name, "wrong", name)
    assert sorted(asked) == sorted("abcxyz")
    assert cluster.checks._worker._max_workers == 1, "one check at a time, of all clients"
