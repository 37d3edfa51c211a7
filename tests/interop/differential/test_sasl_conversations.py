"""The same conversations before, during and after authentication with our listener and Apache
Kafka's: every answer is equal field by field, and connections end at the same request.

Texts of errors are each server's own. There are two differences: a user of SCRAM that does not
exist is refused one message later by ours, so that clients cannot tell who exists; and base64 whose
last character has bits to spare is refused by ours.
"""

from __future__ import annotations

import asyncio
import re
import struct
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from moldau.client import ScramMechanism, ScramUpsertion
from moldau.client.sync import Admin
from moldau.protocol.errors import ErrorCode
from moldau.protocol.headers import decode_response, encode_request
from moldau.protocol.messages.p03_metadata import MetadataRequest
from moldau.protocol.messages.p17_sasl_handshake import SaslHandshakeRequest
from moldau.protocol.messages.p18_api_versions import ApiVersionsRequest
from moldau.protocol.messages.p36_sasl_authenticate import SaslAuthenticateRequest
from moldau.protocol.schema import Message
from moldau.sasl.scram import ScramClient
from tests.interop.java.server import KafkaServer
from tests.interop.java.tools import JavaTools, missing
from tests.kit.ports import free_port
from tests.system.security.nodes import PLAIN_MODULE, SCRAM_MODULE, SecuredNode

pytestmark = [pytest.mark.interop, pytest.mark.java]

GOOD, WRONG = b"\0alice\0a-secret", b"\0alice\0wrong"
CLOSED = "closed"
SESSION_MS = 3_600_000
KEYS = {
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    "sasl.server.max.receive.size": "2000",
    "connection.failed.authentication.delay.ms": "10",
}
RENEWED = {**KEYS, "connections.max.reauth.ms": str(SESSION_MS)}


class Both(NamedTuple):
    """Addresses of the SASL listeners; of those whose sessions end."""

    ours: str
    kafka: str


class Talk:
    """One connection, and everything that came back."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._count = 0
        self.heard: list[Any] = []

    async def ask(self, message: Message, version: int) -> Any:
        """The answer, also noted; None when the connection ends instead."""
        self._count += 1
        parts = encode_request(
            message, api_version=version, correlation_id=self._count, client_id="c"
        )
        frame = await self._exchange(b"".join(bytes(part) for part in parts))  # type: ignore[arg-type]
        if frame is None:
            return None
        number, response = decode_response(message.API_KEY, version, frame)
        assert number == self._count
        self.heard.append(_comparable(response))
        return response

    async def choose(self, mechanism: str, version: int = 1) -> Any:
        return await self.ask(SaslHandshakeRequest(mechanism=mechanism), version)

    async def token(self, token: bytes, version: int = 2) -> Any:
        return await self.ask(SaslAuthenticateRequest(auth_bytes=token), version)

    async def raw(self, token: bytes) -> bytes | None:
        frame = await self._exchange(struct.pack(">i", len(token)) + token)
        if frame is not None:
            self.heard.append(_without_nonce(frame))
        return frame

    async def ends(self) -> None:
        """Note whether the connection has ended without another word."""
        async with asyncio.timeout(30):
            try:
                left = await self._reader.read(1)
            except ConnectionError:
                left = b""
        self.heard.append(left or CLOSED)

    async def _exchange(self, data: bytes) -> bytes | None:
        try:
            self._writer.write(data)
            async with asyncio.timeout(30):
                (size,) = struct.unpack(">i", await self._reader.readexactly(4))
                return await self._reader.readexactly(size)
        except (ConnectionError, asyncio.IncompleteReadError):
            self.heard.append(CLOSED)
            return None

    def close(self) -> None:
        self._writer.transport.abort()


def _without_nonce(token: bytes) -> bytes:
    token = re.sub(rb"r=[^,]*", b"r=NONCE", token)
    token = re.sub(rb"v=[^,]*", b"v=SIGNATURE", token)
    return re.sub(rb"s=[^,]*", b"s=SALT", token)


def _comparable(response: Message) -> dict[str, Any]:
    found: dict[str, Any] = {"": type(response).__name__, "error": response.error_code}  # type: ignore[attr-defined]
    if hasattr(response, "mechanisms"):
        found["mechanisms"] = sorted(response.mechanisms)
    if hasattr(response, "auth_bytes"):
        found["token"] = _without_nonce(bytes(response.auth_bytes))
        found["has text"] = bool(response.error_message)
        found["lifetime"] = response.session_lifetime_ms
    return found


async def scram(
    talk: Talk,
    name: str,
    password: str,
    *,
    raw: bool = False,
    sent: Callable[[bytes], bytes] = lambda message: message,
) -> None:
    """`sent` is what is sent in place of each message."""
    exchange = ScramClient("sha256", name, password, "nonce-of-the-client")
    message: bytes | None = exchange.first()
    while message is not None:
        if raw:
            answer = await talk.raw(sent(message))
        else:
            response = await talk.token(sent(message))
            if response is None or response.error_code:
                return
            answer = bytes(response.auth_bytes)
        if answer is None:
            return
        message = exchange.answer(answer)


async def by_plain(talk: Talk) -> None:
    await talk.ask(ApiVersionsRequest(), 0)
    await talk.choose("PLAIN")
    await talk.token(GOOD)
    await talk.ask(MetadataRequest(topics=[]), 12)


async def _plain_versions(talk: Talk) -> None:
    await talk.choose("PLAIN")
    await talk.token(GOOD, 0)
    await talk.ask(ApiVersionsRequest(), 3)


async def _scram(talk: Talk) -> None:
    await talk.choose("SCRAM-SHA-256")
    await scram(talk, "carol", "c-secret")
    await talk.ask(MetadataRequest(topics=[]), 12)


async def _scram_wrong(talk: Talk) -> None:
    await talk.choose("SCRAM-SHA-256")
    await scram(talk, "carol", "wrong")
    await talk.ends()


def _scram_with(before: bytes, after: bytes) -> Callable[[Talk], Awaitable[None]]:
    """A conversation in whose messages a pattern is replaced."""

    async def conversation(talk: Talk) -> None:
        await talk.choose("SCRAM-SHA-256")
        await scram(talk, "carol", "c-secret", sent=lambda each: re.sub(before, after, each))
        await talk.ends()

    return conversation


async def _wrong(talk: Talk) -> None:
    await talk.choose("PLAIN")
    await talk.token(WRONG)
    await talk.ends()


def _token(token: bytes) -> Callable[[Talk], Awaitable[None]]:
    async def conversation(talk: Talk) -> None:
        await talk.choose("PLAIN")
        await talk.token(token)
        await talk.ask(MetadataRequest(topics=[]), 12)

    return conversation


def _asks(*steps: tuple[Message, int]) -> Callable[[Talk], Awaitable[None]]:
    async def conversation(talk: Talk) -> None:
        for message, version in steps:
            if await talk.ask(message, version) is None:
                return
        await talk.ask(MetadataRequest(topics=[]), 12)

    return conversation


async def _raw_plain(talk: Talk) -> None:
    await talk.choose("PLAIN", 0)
    await talk.raw(GOOD)
    await talk.ask(MetadataRequest(topics=[]), 12)


async def _raw_wrong(talk: Talk) -> None:
    await talk.choose("PLAIN", 0)
    await talk.raw(WRONG)


async def _raw_scram(talk: Talk) -> None:
    await talk.choose("SCRAM-SHA-256", 0)
    await scram(talk, "carol", "c-secret", raw=True)
    await talk.ask(MetadataRequest(topics=[]), 12)


async def _raw_in_place_of_a_request(talk: Talk) -> None:
    await talk.choose("PLAIN", 1)
    await talk.raw(GOOD)


async def _too_large(talk: Talk) -> None:
    await talk.choose("PLAIN")
    await talk.token(GOOD.ljust(3_000, b"x"))


async def _large_afterwards(talk: Talk) -> None:
    await by_plain(talk)
    await talk.token(bytes(3_000))
    await talk.ask(MetadataRequest(topics=[]), 12)


async def _renewed(talk: Talk) -> None:
    for _ in range(2):
        await talk.choose("PLAIN")
        await talk.token(GOOD)
    await talk.choose("PLAIN")  # within a second of the last time
    await talk.ask(MetadataRequest(topics=[]), 12)


async def _renewed_by_scram(talk: Talk) -> None:
    for _ in range(2):
        await talk.choose("SCRAM-SHA-256")
        await scram(talk, "carol", "c-secret")
    await talk.ask(MetadataRequest(topics=[]), 12)


async def _renewed_as_another_user(talk: Talk) -> None:
    await by_plain(talk)
    await talk.choose("PLAIN")
    await talk.token(b"\0bob\0b-secret")
    await talk.ends()


async def _renewed_with_another_mechanism(talk: Talk) -> None:
    await by_plain(talk)
    await talk.choose("SCRAM-SHA-256")
    await talk.token(b"n,,n=carol,r=nonce")


async def _renewed_wrongly(talk: Talk) -> None:
    await by_plain(talk)
    await talk.choose("PLAIN")
    await talk.token(WRONG)
    await talk.ends()


async def _renewed_with_an_unknown_mechanism(talk: Talk) -> None:
    await by_plain(talk)
    await talk.choose("GSSAPI")
    await talk.ends()


async def _request_while_renewing(talk: Talk) -> None:
    await by_plain(talk)
    await talk.choose("PLAIN")
    await talk.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
    await talk.ends()


HANDSHAKE = SaslHandshakeRequest(mechanism="PLAIN")
TOKEN = SaslAuthenticateRequest(auth_bytes=GOOD)
CONVERSATIONS: dict[str, Callable[[Talk], Awaitable[None]]] = {
    "PLAIN": by_plain,
    "PLAIN, old versions": _plain_versions,
    "PLAIN, wrong": _wrong,
    "SCRAM": _scram,
    "SCRAM, wrong": _scram_wrong,
    "SCRAM, a proof that is no base64": _scram_with(rb",p=..", b",p=%%"),
    "SCRAM, a proof without its padding": _scram_with(rb"=$", b""),
    "SCRAM, a binding of another channel": _scram_with(rb"c=biws", b"c=eSws"),
    "SCRAM, a binding that is no base64": _scram_with(rb"c=biws", b"c=b"),
    "token of two parts": _token(b"\0alice"),
    "no password": _token(b"\0alice\0"),
    "no name": _token(b"\0\0a-secret"),
    "empty token": _token(b""),
    "another authorization id": _token(b"bob\0alice\0a-secret"),
    "own authorization id": _token(b"alice\0alice\0a-secret"),
    "garbage": _token(b"\xff\xfe"),
    "unknown mechanism": _asks((SaslHandshakeRequest(mechanism="GSSAPI"), 1)),
    "unknown mechanism, version 0": _asks((SaslHandshakeRequest(mechanism=""), 0)),
    "Metadata first": _asks(),
    "token first": _asks((TOKEN, 2)),
    "ApiVersions twice": _asks((ApiVersionsRequest(), 0), (ApiVersionsRequest(), 0)),
    "ApiVersions after the handshake": _asks((HANDSHAKE, 1), (ApiVersionsRequest(), 0)),
    "two handshakes": _asks((HANDSHAKE, 1), (HANDSHAKE, 1)),
    "handshake afterwards": _asks((HANDSHAKE, 1), (TOKEN, 2), (HANDSHAKE, 1)),
    "handshake of version 0 afterwards": _asks((HANDSHAKE, 1), (TOKEN, 2), (HANDSHAKE, 0)),
    "token afterwards": _asks((HANDSHAKE, 1), (TOKEN, 2), (TOKEN, 2)),
    "raw PLAIN": _raw_plain,
    "raw PLAIN, wrong": _raw_wrong,
    "raw SCRAM": _raw_scram,
    "raw in place of a request": _raw_in_place_of_a_request,
    "too large": _too_large,
    "large afterwards": _large_afterwards,
}
RENEWALS: dict[str, Callable[[Talk], Awaitable[None]]] = {
    "sessions with an end": by_plain,
    "renewed": _renewed,
    "renewed by SCRAM": _renewed_by_scram,
    "as another user": _renewed_as_another_user,
    "with another mechanism": _renewed_with_another_mechanism,
    "wrongly": _renewed_wrongly,
    "with an unknown mechanism": _renewed_with_an_unknown_mechanism,
    "another request": _request_while_renewing,
}


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaTools]:
    reason = missing()
    if reason:
        pytest.skip(reason)
    path = tmp_path_factory.mktemp("java") / "java.log"
    with path.open("wb") as errors, JavaTools(errors) as running:
        yield running


def running(java: JavaTools, home: Path, keys: dict[str, str]) -> Iterator[Both]:
    """Both nodes with the same users."""
    (home / "ours").mkdir()
    ours = SecuredNode(home / "ours", keys)
    kafka = KafkaServer(java, home / "kafka")
    properties = home / "kafka" / "server.properties"
    text = properties.read_text()
    address = f"127.0.0.1:{free_port()}"
    users = f'{PLAIN_MODULE} required user_alice="a-secret" user_bob="b-secret";'
    prefix = "listener.name.sasl_plaintext"
    more = {
        **keys,
        "listener.security.protocol.map": (
            "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT"
        ),
        f"{prefix}.plain.sasl.jaas.config": users,
        f"{prefix}.scram-sha-256.sasl.jaas.config": f"{SCRAM_MODULE} required;",
    }
    text = re.sub("^(listeners=.*)$", rf"\1,SASL_PLAINTEXT://{address}", text, flags=re.MULTILINE)
    properties.write_text(text + "".join(f"{key}={value}\n" for key, value in more.items()))
    with ours, kafka:
        for bootstrap in (ours.address("PLAINTEXT"), kafka.bootstrap_server):
            with Admin(bootstrap) as admin:
                carol = ScramUpsertion("carol", "c-secret", ScramMechanism.SCRAM_SHA_256)
                assert admin.alter_user_scram_credentials([carol]) == {"carol": None}
        yield Both(ours.address("SASL_PLAINTEXT"), address)


@pytest.fixture(scope="module")
def lasting(java: JavaTools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    yield from running(java, tmp_path_factory.mktemp("lasting"), KEYS)


@pytest.fixture(scope="module")
def ending(java: JavaTools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    yield from running(java, tmp_path_factory.mktemp("ending"), RENEWED)


async def heard(address: str, conversation: Callable[[Talk], Awaitable[None]]) -> list[Any]:
    host, _, port = address.rpartition(":")
    talk = Talk(*await asyncio.open_connection(host, int(port)))
    try:
        await conversation(talk)
    finally:
        talk.close()
    return talk.heard


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", CONVERSATIONS)
async def test_conversations(lasting: Both, name: str) -> None:
    ours = await heard(lasting.ours, CONVERSATIONS[name])
    kafka = await heard(lasting.kafka, CONVERSATIONS[name])
    assert ours == kafka
    assert ours


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", RENEWALS)
async def test_sessions_that_end(ending: Both, name: str) -> None:
    ours = await heard(ending.ours, RENEWALS[name])
    kafka = await heard(ending.kafka, RENEWALS[name])
    assert ours == kafka
    assert ours


async def test_scram_users_that_do_not_exist(lasting: Both) -> None:
    async def conversation(talk: Talk) -> None:
        await talk.choose("SCRAM-SHA-256")
        await scram(talk, "no-such-user", "x")
        await talk.ends()

    ours = await heard(lasting.ours, conversation)
    kafka = await heard(lasting.kafka, conversation)
    assert [each for each in ours if each != ours[1]] == kafka
    assert ours[1]["token"] == b"r=NONCE,s=SALT,i=4096"


SPARE = bytes.maketrans(b"AEIMQUYcgkosw048", b"BFJNRVZdhlptx159")


async def test_base64_that_no_encoder_writes(lasting: Both) -> None:
    """Java takes a right proof whose last character has bits to spare."""

    def sent(message: bytes) -> bytes:
        is_final = b",p=" in message
        return message[:-2] + message[-2:-1].translate(SPARE) + b"=" if is_final else message

    async def conversation(talk: Talk) -> None:
        await talk.choose("SCRAM-SHA-256")
        await scram(talk, "carol", "c-secret", sent=sent)

    ours = await heard(lasting.ours, conversation)
    kafka = await heard(lasting.kafka, conversation)
    assert (ours[:-1], len(ours)) == (kafka[:-1], len(kafka))
    assert kafka[-1]["error"] == ErrorCode.NONE
    assert ours[-1]["error"] == ErrorCode.SASL_AUTHENTICATION_FAILED
