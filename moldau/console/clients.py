"""Clients of the cluster, each for one person, with that person's own credentials.

Owns the connections, how many of them there are, and when they are opened, looked at again and
closed. Must not decide who may do what: the brokers' authorizer, quotas and audit log do.
Invariants: no client serves two people; credentials that the cluster does not take any more end
everything that was opened with them, within `RECHECK_S` while it is of use; what is idle is closed.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from moldau import client
from moldau.client import (
    Admin,
    AdminConfig,
    AuthenticationFailed,
    AuthorizationFailed,
    ClientConfig,
    ConfigResource,
    ConfigResourceType,
    ConfigurationError,
    KafkaError,
)
from moldau.console.looks import Looks
from moldau.console.people import OWN, Person
from moldau.console.problems import RETRY, Problem
from moldau.console.sessions import Sessions
from moldau.console.settings import ConsoleSettings
from moldau.console.tries import Tries
from moldau.protocol.errors import LocalProtocolError

if TYPE_CHECKING:
    from moldau.client import Consumer, Producer

IDLE_S: Final = 60.0
"""Connections of a person who asks for nothing are closed after that."""
RECHECK_S: Final = 30.0
"""Credentials in use are shown to the cluster once more after that."""
SWEEP_S: Final = 10.0
CHECK_TIMEOUT_MS: Final = 10_000
CLOSE_TIMEOUT_MS: Final = 1_000
MAX_PEOPLE: Final = 100
MAX_CONSUMERS_PER_PERSON: Final = 160
CLIENT_ID: Final = "moldau-console"
OWN_KEY: Final = "moldau.log.level"
"""A key that only our nodes have."""

_TIMES: Final = {
    "client.id": CLIENT_ID,
    "request.timeout.ms": "10000",
    "default.api.timeout.ms": "15000",
}
_OF_CONSUMERS: Final = {
    "enable.auto.commit": "false",
    "auto.offset.reset": "none",
    "fetch.max.bytes": "4194304",
    "max.partition.fetch.bytes": "1048576",
}
_OF_PRODUCERS: Final = {
    "acks": "all",
    "buffer.memory": "16777216",
    "delivery.timeout.ms": "20000",
    "linger.ms": "2",
    "max.block.ms": "10000",
}
_OUT_OF_THE_WAY: Final = frozenset(
    {"group.id", "group.instance.id", "transactional.id", "isolation.level", "key.serializer"}
)
"""Settings of a file for other clients that would have the console's do what they do."""

Config = TypeVar("Config", bound=ClientConfig)


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """What does not change while a cluster lives; `is_ours`: its nodes are of this project."""

    cluster_id: str
    is_ours: bool


class Clients:
    """One person's clients.

    Args:
        settings: of the client, with the person's credentials.
        now_s: when the cluster has taken these.

    Attributes:
        pins: requests that use them.
        is_refused: the cluster does not take the credentials any more.
        looks: what it has lately answered.
    """

    def __init__(self, person: Person, settings: Mapping[str, Any], now_s: float) -> None:
        self.person = person
        self.pins = 0
        self.used_s = self.checked_s = now_s
        self.is_refused = False
        self.looks = Looks()
        self._settings = settings
        self.admin = Admin(config=_config(AdminConfig, settings))
        self._producer: Producer[bytes, bytes] | None = None
        self._producer_lock = asyncio.Lock()
        self._consumers: set[Consumer[bytes, bytes]] = set()
        self._facts: ClusterFacts | None = None

    def fresh_admin(self) -> Admin:
        """One with connections of its own, which shows the credentials again."""
        return Admin(config=_config(AdminConfig, self._settings))

    async def producer(self) -> Producer[bytes, bytes]:
        """The person's producer of bytes, which all requests share."""
        async with self._producer_lock:
            if self._producer is None:
                settings = {**self._settings, **_OF_PRODUCERS}
                # Imported when the first record is produced: most people only look.
                config = _config(client.ProducerConfig, settings)
                made: Producer[bytes, bytes] = client.Producer(config=config)
                self._producer = await made.__aenter__()
            return self._producer

    @asynccontextmanager
    async def consumer(self, **settings: str) -> AsyncIterator[Consumer[bytes, bytes]]:
        """A consumer without a group, for one reader.

        Args:
            settings: keys of the consumer, with underscores.

        Raises:
            Problem: the person reads from too many places at once.
        """
        if len(self._consumers) >= MAX_CONSUMERS_PER_PERSON:
            raise Problem(429, "too many readers of one person at once", *RETRY)
        own = {key.replace("_", "."): value for key, value in settings.items()}
        config = _config(client.ConsumerConfig, {**self._settings, **_OF_CONSUMERS}, own)
        consumer: Consumer[bytes, bytes] = client.Consumer(config=config)
        self._consumers.add(consumer)
        try:
            yield consumer
        finally:
            self._consumers.discard(consumer)
            await consumer.close(CLOSE_TIMEOUT_MS)

    async def facts(self) -> ClusterFacts:
        """Raises: KafkaError: the cluster does not answer."""
        if self._facts is None:
            cluster = await self.admin.describe_cluster()
            broker_id = str(cluster.brokers[0].node_id) if cluster.brokers else ""
            self._facts = ClusterFacts(cluster.cluster_id, await self._is_ours(broker_id))
        return self._facts

    async def _is_ours(self, broker_id: str) -> bool:
        resource = ConfigResource(ConfigResourceType.BROKER, broker_id)
        try:
            found = await self.admin.describe_configs([resource], keys=[OWN_KEY])
        except (AuthorizationFailed, LocalProtocolError):
            return False
        return OWN_KEY in found.get(resource, {})

    async def close(self) -> None:
        """Close all connections; who still uses one gets `ClientClosed`."""
        producer, self._producer = self._producer, None
        closing = [each.close(CLOSE_TIMEOUT_MS) for each in self._consumers]
        if producer is not None:
            closing.append(producer.close(CLOSE_TIMEOUT_MS))
        await asyncio.gather(*closing, self.admin.close())


@dataclass(eq=False)
class ClientPool:
    """The clients of all people, and what shows that their credentials are good."""

    settings: ConsoleSettings
    sessions: Sessions
    tries: Tries
    _by_person: dict[Person, Clients] = field(default_factory=dict)
    _locks: weakref.WeakValueDictionary[Person, asyncio.Lock] = field(
        default_factory=weakref.WeakValueDictionary
    )
    _entering: int = 0
    """People who are being let in."""
    _sweeping: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def of(self, person: Person, address: str) -> AsyncIterator[Clients]:
        """The person's clients, which stay open until the end of the block.

        Args:
            address: where the person is.

        Raises:
            Problem: the cluster does not take the credentials, or there are too many people.
            KafkaError: it does not answer.
        """
        lock = self._locks.setdefault(person, asyncio.Lock())
        async with lock:
            clients = await self._pinned(person, address)
        if self._sweeping is None or self._sweeping.done():
            self._sweeping = asyncio.create_task(self._sweep())
        try:
            yield clients
        finally:
            clients.pins -= 1
            clients.used_s = self.settings.now_s()

    async def drop(self, person: Person) -> None:
        """Close everything that was opened for a person."""
        clients = self._by_person.pop(person, None)
        if clients is not None:
            await clients.close()

    async def close(self) -> None:
        """Close everything."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait([self._sweeping])
        for person in [*self._by_person]:
            await self.drop(person)

    async def _pinned(self, person: Person, address: str) -> Clients:
        """The person's clients, which stay open from before they are looked at."""
        clients = self._by_person.get(person)
        if clients is None:
            clients = await self._let_in(person, address)
            clients.pins += 1
            return clients
        clients.pins += 1
        try:
            if await self._is_still_good(clients):
                return clients
            raise Problem(401, "login needed: the cluster does not take the credentials any more")
        except BaseException:
            clients.pins -= 1
            raise

    async def _let_in(self, person: Person, address: str) -> Clients:
        self._entering += 1
        try:
            await self._make_room()
            clients = self._by_person[person] = await self._logged_in(person, address)
        finally:
            self._entering -= 1
        return clients

    async def _make_room(self) -> None:
        """Close whose clients have been idle longest. Raises: Problem: there are none such."""
        while len(self._by_person) + self._entering > MAX_PEOPLE:
            idle = [each for each in self._by_person.values() if not each.pins]
            if not idle:
                raise Problem(503, "too many people are served at once", *RETRY)
            await self.drop(min(idle, key=lambda each: each.used_s).person)

    async def _logged_in(self, person: Person, address: str) -> Clients:
        way, now_s = self.settings.way, self.settings.now_s()
        if person == OWN:
            return Clients(person, way.settings(person, ""), now_s)
        mechanisms = way.mechanisms_for(person)
        if not mechanisms:
            raise Problem(401, f"login needed: people do not come in with a {person.kind} here")
        self.tries.take(address)
        for mechanism in mechanisms:
            try:
                clients = Clients(person, way.settings(person, mechanism), now_s)
            except ConfigurationError:
                raise _wrong(person) from None  # text that cannot be a name or a password
            is_in = False
            try:
                await clients.admin.describe_cluster(timeout_ms=CHECK_TIMEOUT_MS)
                is_in = True
            except AuthenticationFailed:
                continue
            finally:
                if not is_in:
                    await clients.close()
            self.tries.give_back(address)
            return clients
        raise _wrong(person)

    async def _is_still_good(self, clients: Clients) -> bool:
        """Whether the cluster takes the credentials, if it was not asked lately."""
        now_s = self.settings.now_s()
        if clients.person == OWN or now_s - clients.checked_s < RECHECK_S:
            return True
        clients.checked_s = now_s
        admin = clients.fresh_admin()
        try:
            await admin.describe_cluster(timeout_ms=CHECK_TIMEOUT_MS)
        except AuthenticationFailed:
            clients.is_refused = True
            self.sessions.end_of(clients.person)
            await self.drop(clients.person)
            return False
        except (KafkaError, LocalProtocolError):
            return True  # it says nothing about them; what is asked for shows why
        finally:
            await admin.close()
        return True

    async def _sweep(self) -> None:
        """Close what is idle, and look at the credentials of those who wait for something."""
        while True:
            await asyncio.sleep(SWEEP_S)
            self.sessions.sweep()
            now_s = self.settings.now_s()
            for clients in [*self._by_person.values()]:
                if clients.pins:
                    await self._is_still_good(clients)
                elif now_s - clients.used_s >= IDLE_S:
                    await self.drop(clients.person)


def _wrong(person: Person) -> Problem:
    what = "token" if person.kind == "token" else "name or the password"
    return Problem(401, f"the {what} is not accepted")


def _config(
    kind: type[Config], settings: Mapping[str, Any], own: Mapping[str, str] | None = None
) -> Config:
    """The settings that this kind of client has. Raises: ConfigurationError."""
    known = {
        key: value
        for key, value in settings.items()
        if key.replace(".", "_") in kind.KEYS and key not in _OUT_OF_THE_WAY
    }
    return kind.from_properties({**known, **_TIMES, **(own or {})})
