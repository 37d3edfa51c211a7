"""Clients of people: how many, for how long, and until their credentials end."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from moldau.client import AuthenticationFailed, ClientClosed, NoBrokerAvailable
from moldau.console import clients as module
from moldau.console.clients import ClientPool, Clients
from moldau.console.people import OWN, Person, Way
from moldau.console.problems import Problem
from moldau.console.sessions import Sessions
from moldau.console.settings import ConsoleSettings
from moldau.console.tries import Tries

WAY = Way({"bootstrap.servers": "localhost:1", "security.protocol": "SASL_PLAINTEXT"}, ("PLAIN",))


def person(name: str) -> Person:
    return Person("password", name, "secret")


ALICE, BOB = person("alice"), person("bob")


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Admins:
    """Stands for the cluster, which takes credentials until it does not."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.asked = 0
        self.answers = asyncio.Event()
        self.answers.set()

    async def describe_cluster(self, **_: Any) -> None:
        self.asked += 1
        await self.answers.wait()
        if self.error is not None:
            raise self.error

    async def close(self) -> None:
        pass


class Cluster:
    """A pool whose people log in at no real cluster."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock, self.admins = Clock(), Admins()
        self.logins: list[Person] = []
        settings = ConsoleSettings(WAY, needs_login=True, now_s=self.clock)
        self.sessions = Sessions(self.clock)
        self.pool = ClientPool(settings, self.sessions, Tries(self.clock))

        async def logged_in(_: ClientPool, person: Person, __: str) -> Clients:
            self.logins.append(person)
            await self.admins.answers.wait()
            return Clients(person, WAY.settings(person, "PLAIN"), self.clock())

        monkeypatch.setattr(ClientPool, "_logged_in", logged_in)
        monkeypatch.setattr(Clients, "fresh_admin", lambda _: self.admins)

    async def visit(self, person: Person) -> Clients:
        async with self.pool.of(person, "10.0.0.1") as clients:
            return clients


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch)


async def test_each_person_has_own_clients(cluster: Cluster) -> None:
    alice = await cluster.visit(ALICE)
    assert await cluster.visit(ALICE) is alice
    assert await cluster.visit(BOB) is not alice
    assert await cluster.visit(Person("password", "alice", "other")) is not alice
    assert [each.name for each in cluster.logins] == ["alice", "bob", "alice"]
    await cluster.pool.close()


async def test_requests_at_once_log_in_once(cluster: Cluster) -> None:
    found = await asyncio.gather(*(cluster.visit(ALICE) for _ in range(5)))
    assert len(set(map(id, found))) == 1
    assert cluster.logins == [ALICE]
    await cluster.pool.close()


async def test_who_waits_longest_makes_room(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_PEOPLE", 3)
    for name in "abc":
        await cluster.visit(person(name))
        cluster.clock.now_s += 1
    await cluster.visit(person("a"))
    await cluster.visit(person("d"))
    assert [each.name for each in cluster.pool._by_person] == ["a", "c", "d"]
    await cluster.pool.close()


async def test_there_are_never_more_people_than_the_limit(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_PEOPLE", 3)
    async with AsyncExitStack() as pinned:
        for name in "abc":
            await pinned.enter_async_context(cluster.pool.of(person(name), "10.0.0.1"))
        with pytest.raises(Problem) as refused:
            await cluster.visit(person("d"))
        assert refused.value.status == 503
    await cluster.visit(person("d"))
    assert len(cluster.pool._by_person) == 3
    await cluster.pool.close()


async def test_clients_that_are_looked_at_again_are_not_closed_for_others(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_PEOPLE", 1)
    alice = await cluster.visit(ALICE)
    cluster.clock.now_s += module.RECHECK_S
    cluster.admins.answers.clear()
    again = asyncio.create_task(cluster.visit(ALICE))
    while not cluster.admins.asked:
        await _yield()
    with pytest.raises(Problem) as refused:
        await cluster.visit(BOB)
    assert refused.value.status == 503
    cluster.admins.answers.set()
    assert await again is alice
    assert cluster.pool._by_person == {ALICE: alice}
    assert not alice.pins
    await cluster.pool.close()


async def test_people_who_are_being_let_in_count(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_PEOPLE", 2)
    cluster.admins.answers.clear()
    entering = [asyncio.create_task(cluster.visit(person(name))) for name in "abc"]
    while len(cluster.logins) < 2:
        await _yield()
    cluster.admins.answers.set()
    found = await asyncio.gather(*entering, return_exceptions=True)
    assert [isinstance(each, Problem) for each in found] == [False, False, True]
    await cluster.visit(person("d"))
    assert len(cluster.pool._by_person) == 2
    await cluster.pool.close()


async def test_a_sweep_that_has_failed_begins_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept: list[bool] = []

    async def sweep(_: ClientPool) -> None:
        swept.append(True)
        raise RuntimeError("a client cannot be closed")

    monkeypatch.setattr(ClientPool, "_sweep", sweep)
    for count in (1, 2):
        await cluster.visit(ALICE)
        while len(swept) < count:
            await _yield()
        assert cluster.pool._sweeping is not None
        assert isinstance(cluster.pool._sweeping.exception(), RuntimeError)
    await cluster.pool.close()


async def test_credentials_in_use_are_shown_again(cluster: Cluster) -> None:
    text, session = cluster.sessions.open(ALICE, "User:alice")
    await cluster.visit(ALICE)
    cluster.clock.now_s += module.RECHECK_S - 1
    await cluster.visit(ALICE)
    assert cluster.admins.asked == 0
    cluster.clock.now_s += 1
    alice = await cluster.visit(ALICE)
    assert cluster.admins.asked == 1
    cluster.clock.now_s += module.RECHECK_S
    cluster.admins.error = NoBrokerAvailable("gone")
    assert await cluster.visit(ALICE) is alice, "that says nothing about the credentials"
    cluster.clock.now_s += module.RECHECK_S
    cluster.admins.error = AuthenticationFailed("no")
    with pytest.raises(Problem) as refused:
        await cluster.visit(ALICE)
    assert refused.value.status == 401
    assert alice.is_refused
    assert session.is_over
    assert cluster.sessions.find(text) is None
    with pytest.raises(ClientClosed):
        await alice.admin.describe_cluster()
    await cluster.pool.close()


async def test_what_is_idle_is_closed_and_what_waits_is_looked_at(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep, whose pauses are none here."""
    turns = 0

    async def pause(_: float) -> None:
        nonlocal turns
        turns += 1
        if turns > 2:
            await asyncio.Event().wait()

    monkeypatch.setattr("moldau.console.clients.asyncio.sleep", pause)
    async with cluster.pool.of(BOB, "10.0.0.1") as bob:
        cluster.clock.now_s += module.IDLE_S
        cluster.admins.error = AuthenticationFailed("no")
        while not bob.is_refused:
            await _yield()
    assert not cluster.pool._by_person
    await cluster.pool.close()


async def _yield() -> None:
    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(future.set_result, None)
    await future


async def test_readers_of_one_person_are_limited(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_CONSUMERS_PER_PERSON", 2)
    clients = await cluster.visit(ALICE)
    async with AsyncExitStack() as readers:
        for _ in range(2):
            await readers.enter_async_context(clients.consumer())
        with pytest.raises(Problem) as refused:
            await readers.enter_async_context(clients.consumer())
        assert refused.value.status == 429
    async with clients.consumer(isolation_level="read_committed") as consumer:
        assert consumer.assignment() == set()
    await cluster.pool.close()


async def test_the_consoles_own_user_needs_no_login() -> None:
    clock = Clock()
    settings = ConsoleSettings(Way({"bootstrap.servers": "localhost:1"}), now_s=clock)
    pool = ClientPool(settings, Sessions(clock), Tries(clock))
    async with pool.of(OWN, "") as clients:
        assert clients.person == OWN
    await pool.close()


@pytest.mark.real
async def test_settings_of_other_clients_do_no_harm() -> None:
    """A file for all of a user's clients has keys that mean something else here."""
    own = {"group.id": "g", "transactional.id": "t", "acks": "0", "enable.auto.commit": "true"}
    clients = Clients(OWN, {**WAY.settings(ALICE, "PLAIN"), **own}, 0.0)
    producer = await clients.producer()
    assert (producer.config.acks, producer.config.transactional_id) == ("all", None)
    async with clients.consumer() as consumer:
        assert consumer._config.group_id is None
        assert consumer._config.enable_auto_commit is False
    await clients.close()
