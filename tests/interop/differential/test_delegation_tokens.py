"""The same requests about delegation tokens to our node and to Apache Kafka's, by the same users in
every version: answers are equal but for ids, secrets and the time of day, which are compared by
their distance from the token's issue.
"""

from __future__ import annotations

import asyncio
import re
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from moldau.client import (
    AclBinding,
    AclOperation,
    AclResourceType,
    ScramMechanism,
    ScramUpsertion,
)
from moldau.client.sync import Admin
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p03_metadata import MetadataRequest
from moldau.protocol.messages.p38_create_delegation_token import (
    CreateDelegationTokenRequest,
    TokenPrincipal,
)
from moldau.protocol.messages.p39_renew_delegation_token import RenewDelegationTokenRequest
from moldau.protocol.messages.p40_expire_delegation_token import ExpireDelegationTokenRequest
from moldau.protocol.messages.p41_describe_delegation_token import DescribeDelegationTokenRequest
from moldau.sasl.scram import ScramClient
from tests.interop.differential.test_sasl_conversations import Talk
from tests.interop.java.server import KafkaServer
from tests.interop.java.tools import JavaTools, missing
from tests.kit.ports import free_port
from tests.kit.waiting import until, until_async
from tests.system.security.nodes import AUTHORIZER, PLAIN_MODULE, SCRAM_MODULE, SecuredNode

pytestmark = [pytest.mark.interop, pytest.mark.java, pytest.mark.timeout(120)]

USERS = {"alice": "a-secret", "bob": "b-secret", "eve": "e-secret"}
PLAIN_USERS = " ".join(f'user_{name}="{password}"' for name, password in USERS.items())
BY_TOKEN = "by a token"
DAY_MS, WEEK_MS = 86_400_000, 604_800_000
KEYS = {
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
        f"{PLAIN_MODULE} required {PLAIN_USERS};"
    ),
    "delegation.token.secret.key": "the-key",
    "authorizer.class.name": AUTHORIZER,
    "super.users": "User:ANONYMOUS;User:alice",
    "connection.failed.authentication.delay.ms": "10",
}


class Addresses(NamedTuple):
    """The addresses of one node."""

    plaintext: str
    sasl: str


class Pair(NamedTuple):
    ours: Addresses
    kafka: Addresses


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    reason = missing()
    if reason:
        pytest.skip(reason)
    home = tmp_path_factory.mktemp("tokens")
    with (home / "java.log").open("wb") as errors, JavaTools(errors) as java:
        yield from _running(java, home)


def _running(java: JavaTools, home: Path) -> Iterator[Pair]:
    (home / "ours").mkdir()
    ours = SecuredNode(home / "ours", KEYS)
    kafka = KafkaServer(java, home / "kafka")
    address = f"127.0.0.1:{free_port()}"
    properties = home / "kafka" / "server.properties"
    prefix = "listener.name.sasl_plaintext"
    more = {
        **KEYS,
        "listener.security.protocol.map": (
            "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT"
        ),
        f"{prefix}.scram-sha-256.sasl.jaas.config": f"{SCRAM_MODULE} required;",
        f"{prefix}.scram-sha-512.sasl.jaas.config": f"{SCRAM_MODULE} required;",
    }
    text = re.sub(
        "^(listeners=.*)$",
        rf"\1,SASL_PLAINTEXT://{address}",
        properties.read_text(),
        flags=re.MULTILINE,
    )
    properties.write_text(text + "".join(f"{key}={value}\n" for key, value in more.items()))
    with ours, kafka:
        found = Pair(
            Addresses(ours.address("PLAINTEXT"), ours.address("SASL_PLAINTEXT")),
            Addresses(kafka.bootstrap_server, address),
        )
        for node in found[:2]:
            with Admin(node.plaintext) as admin:
                carol = ScramUpsertion("carol", "c-secret", ScramMechanism.SCRAM_SHA_256)
                assert admin.alter_user_scram_credentials([carol]) == {"carol": None}
                bindings = [
                    AclBinding(
                        AclResourceType.USER, "User:dave", "User:bob", AclOperation.CREATE_TOKENS
                    ),
                    AclBinding(
                        AclResourceType.USER, "User:alice", "User:bob", AclOperation.DESCRIBE_TOKENS
                    ),
                ]
                admin.create_acls(bindings)
                until(lambda admin=admin: len(admin.describe_acls()) == 2, what="the rules")
        yield found


class Client:
    """One connection to one node; tokens are known by the names that the conversation gives."""

    def __init__(self, talk: Talk, stranger: Talk, viewer: Talk) -> None:
        """`stranger` is a connection of a user to whom no token belongs, `viewer` of one who sees
        all: by them it is known when the controller and the broker have seen a change.
        """
        self.talk = talk
        self._stranger = stranger
        self._viewer = viewer
        self.hmacs: dict[str, bytes] = {}
        self.ids: dict[str, str] = {}
        self.heard: list[Any] = []

    async def _settle(self, name: str, *, is_there: bool) -> None:
        """Wait until both have seen that a token exists, or is gone."""
        renewal = RenewDelegationTokenRequest(hmac=self.hmacs[name], renew_period_ms=-1)
        question = DescribeDelegationTokenRequest(owners=None)

        async def is_seen() -> bool:
            told = await self._stranger.ask(renewal, 2)
            shown = {each.token_id for each in (await self._viewer.ask(question, 3)).tokens}
            mismatch = told.error_code == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
            return (mismatch, self.ids[name] in shown) == (is_there, is_there)

        await until_async(is_seen, what=f"token {name} is there: {is_there}")

    async def by_token(self, name: str, password: bytes | None = None, more: str = "") -> None:
        """Log in by SCRAM with a token."""
        secret = self.hmacs[name] if password is None else password
        exchange = ScramClient(
            "sha512",
            self.ids[name],
            b64encode(secret).decode(),
            "nonce-of-the-client",
            {"tokenauth": "true"},
        )
        await self.talk.choose("SCRAM-SHA-512")
        message: bytes | None = exchange.first()
        while message is not None:
            response = await self.talk.token(message)
            if response is None or response.error_code:
                self.heard.append("refused")
                return
            message = exchange.answer(bytes(response.auth_bytes))
        self.heard.append(("session", round(response.session_lifetime_ms / 60_000)))

    async def ask(self, message: Any, version: int, name: str = "") -> Any:
        response = await self.talk.ask(message, version)
        if response is None:
            self.heard.append("closed")
            return None
        if name and not response.error_code:
            self.hmacs[name] = bytes(response.hmac)
            self.ids[name] = response.token_id
            await self._settle(name, is_there=True)
        self.heard.append(self._comparable(response))
        return response

    async def create(self, name: str = "t", version: int = 3, **fields: Any) -> Any:
        return await self.ask(CreateDelegationTokenRequest(**fields), version, name)

    async def renew(self, name: str, period_ms: int = -1, version: int = 2) -> Any:
        hmac = self.hmacs.get(name, b"no such token")
        return await self.ask(
            RenewDelegationTokenRequest(hmac=hmac, renew_period_ms=period_ms), version
        )

    async def expire(self, name: str, period_ms: int = -1, version: int = 2) -> Any:
        hmac = self.hmacs.get(name, b"no such token")
        response = await self.ask(
            ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=period_ms), version
        )
        if response is not None and not response.error_code and period_ms < 0:
            await self._settle(name, is_there=False)
        return response

    async def describe(self, owners: list[str] | None = None, version: int = 3) -> Any:
        named = None if owners is None else principals(*owners)
        return await self.ask(DescribeDelegationTokenRequest(owners=named), version)

    def _comparable(self, message: Any) -> Any:
        """Ids and secrets by name, times in minutes from now."""
        names = {found: name for name, found in [*self.ids.items(), *self.hmacs.items()]}
        if isinstance(message, list):
            return [self._comparable(each) for each in message]
        if not hasattr(message, "spec"):
            return message
        shown: dict[str, Any] = {"": type(message).__name__}
        for field in message.spec().fields:
            value = getattr(message, field.name)
            if "timestamp" in field.name and value > 0:
                value = round((value - time.time() * 1_000) / 60_000)
            elif field.name in ("token_id", "hmac"):
                key = bytes(value) if field.name == "hmac" else value
                value = names.get(key, "another" if key else key)
            elif field.name in ("tokens", "renewers"):
                value = sorted(self._comparable(value), key=str)
            shown[field.name] = self._comparable(value)
        return shown


def principals(*texts: str) -> list[TokenPrincipal]:
    pairs = (text.partition(":") for text in texts)
    return [TokenPrincipal(principal_type=kind, principal_name=name) for kind, _, name in pairs]


def other(owner: str) -> dict[str, str]:
    kind, _, name = owner.partition(":")
    return {"owner_principal_type": kind, "owner_principal_name": name}


async def _create_in_every_version(client: Client) -> None:
    for version in (1, 2, 3):
        await client.create(f"t{version}", version, renewers=principals("User:bob", "User:x"))
        await client.expire(f"t{version}", version=min(version, 2))


async def _lifetimes(client: Client) -> None:
    for lifetime_ms in (-1, 0, 3_600_000, 2 * DAY_MS, 2 * WEEK_MS, 2**63 - 1, -(2**63)):
        await client.create("t", max_lifetime_ms=lifetime_ms)
        for period_ms in (-1, 0, 60_000, 3 * DAY_MS, 2**63 - 1):
            await client.renew("t", period_ms)
        for period_ms in (60_000, 2 * DAY_MS, 2**62):
            await client.expire("t", period_ms)
            await client.renew("t")
        await client.expire("t")


async def _wrong_renewers(client: Client) -> None:
    for renewer in ("Group:x", ":x", "user:x"):
        await client.create("t", renewers=principals("User:a", renewer))


async def _odd_principals(client: Client) -> None:
    for renewers in ((), ("User:",), ("User:a", "User:a"), ("User:a:b",)):
        await client.create("t", renewers=principals(*renewers))
        await client.expire("t")
    for owner in ("User:", "Group:x", ":x", "User:x:y"):
        await client.create("o", **other(owner))
    await client.create("n", owner_principal_type=None, owner_principal_name=None)
    await client.expire("n")


async def _tokens_that_are_not(client: Client) -> None:
    for version in (1, 2):
        await client.renew("no such token", version=version)
        await client.expire("no such token", version=version)
    await client.create("t")
    await client.expire("t")
    await client.renew("t")
    await client.expire("t")


async def _own_name(client: Client) -> None:
    await client.create("t", **other("User:bob"))
    await client.renew("t")
    await client.expire("t")


async def _for_others(client: Client) -> None:
    await client.create("dave", **other("User:dave"))
    await client.create("alice", **other("User:alice"))
    await client.renew("dave")
    await client.expire("dave")
    await client.describe(["User:dave"])


async def _described(client: Client) -> None:
    for version in (1, 2, 3):
        await client.describe([], version)
    await client.create("t", renewers=principals("User:carol"))
    for version in (1, 2, 3):
        await client.describe(["User:bob"], version)
        await client.describe(["User:carol"], version)
        await client.describe(["User:nobody"], version)
        await client.describe(None, version)
    await client.expire("t")


async def _everything(client: Client) -> None:
    await client.create("t")
    await client.renew("t")
    await client.expire("t")
    await client.describe(None)


CONVERSATIONS: dict[str, tuple[str, Callable[[Client], Awaitable[None]]]] = {
    "every version": ("alice", _create_in_every_version),
    "lifetimes": ("alice", _lifetimes),
    "wrong renewers": ("alice", _wrong_renewers),
    "odd principals": ("alice", _odd_principals),
    "tokens that are not": ("alice", _tokens_that_are_not),
    "one's own name": ("bob", _own_name),
    "for others": ("bob", _for_others),
    "described": ("bob", _described),
    "on a plaintext listener": ("", _everything),
}


@asynccontextmanager
async def clients(address: Addresses, *users: str) -> AsyncIterator[list[Client]]:
    """Logged in, each on its own connection; "" for the PLAINTEXT listener."""
    talks = [await _talk(address, user) for user in ("eve", "alice", *users)]
    try:
        yield [Client(talk, *talks[:2]) for talk in talks[2:]]
    finally:
        for talk in talks:
            talk.close()


async def _talk(address: Addresses, user: str) -> Talk:
    host, _, port = (address.sasl if user else address.plaintext).rpartition(":")
    talk = Talk(*await asyncio.open_connection(host, int(port)))
    if user in USERS:
        await talk.choose("PLAIN")
        await talk.token(f"\0{user}\0{USERS[user]}".encode())
    return talk


async def _conversation(
    address: Addresses, user: str, conversation: Callable[[Client], Awaitable[None]]
) -> list[Any]:
    async with clients(address, user) as [client]:
        await conversation(client)
        return client.heard


@pytest.mark.parametrize("name", CONVERSATIONS)
async def test_requests(pair: Pair, name: str) -> None:
    user, conversation = CONVERSATIONS[name]
    ours = await _conversation(pair.ours, user, conversation)
    kafka = await _conversation(pair.kafka, user, conversation)
    assert ours == kafka
    assert ours


async def _with_a_token(
    address: Addresses, conversation: Callable[[Client], Awaitable[None]]
) -> list[Any]:
    """A conversation with a token t of bob's, which is made on another connection."""
    async with clients(address, "bob", BY_TOKEN) as [made, client]:
        await made.create("t", max_lifetime_ms=3_600_000)
        client.hmacs, client.ids = made.hmacs, made.ids
        await conversation(client)
        await made.expire("t")
        return client.heard


async def _used(client: Client) -> None:
    await client.by_token("t")
    await client.ask(MetadataRequest(topics=[]), 9)
    await _everything(client)


async def _wrong_secret(client: Client) -> None:
    await client.by_token("t", b"wrong")


@pytest.mark.parametrize("conversation", [_used, _wrong_secret])
async def test_logging_in_with_a_token(pair: Pair, conversation: Any) -> None:
    ours = await _with_a_token(pair.ours, conversation)
    kafka = await _with_a_token(pair.kafka, conversation)
    for heard in (ours, kafka):
        for answer in heard:
            if isinstance(answer, dict) and answer[""] == "MetadataResponse":
                answer.clear()
    assert ours == kafka
    assert ours
