"""Clients of ours that come by Kerberos to a real node, and what they and others do wrong."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from moldau.client import (
    AclBinding,
    AclOperation,
    AclResourceType,
    Admin,
    AuthenticationFailed,
    BrokerError,
    NewTopic,
)
from moldau.client.sync import Consumer, Producer
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p17_sasl_handshake import SaslHandshakeRequest
from moldau.protocol.messages.p36_sasl_authenticate import SaslAuthenticateRequest
from moldau.runtime.clock import SystemClock
from moldau.runtime.connection import Connection, ConnectionLost
from moldau.runtime.network import AsyncioNetwork
from moldau.sasl.gssapi.client import GssapiClient, KerberosLogin, KeytabTickets, RenewalRules
from moldau.sasl.gssapi.library import KerberosError
from tests.kit.kerberos import HOST, MODULE, REALM, SERVICE
from tests.kit.manual_clock import ManualClock
from tests.kit.waiting import until_async
from tests.system.processes import run_cli
from tests.system.security.kerberized import SESSION_MS, Kerberized, kerberized


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kerberized]:
    with kerberized(tmp_path_factory.mktemp("kerberized")) as running:
        yield running


def cache_settings(cache: Path) -> dict[str, str]:
    return {"sasl_jaas_config": f'{MODULE} required useTicketCache=true ticketCache="{cache}";'}


async def refusal(**settings: Any) -> str:
    async with Admin(**settings) as admin:
        with pytest.raises(AuthenticationFailed) as caught:
            await admin.describe_cluster()
    return str(caught.value)


@pytest.mark.parametrize("listener", ["SASL_PLAINTEXT", "SASL_SSL"])
async def test_a_keytab_and_a_ticket_cache(secured: Kerberized, tmp_path: Path, listener: str):
    async with Admin(**secured.by_keytab(listener=listener)) as admin:
        assert (await admin.describe_cluster()).brokers
    cache = tmp_path / "cache"
    secured.realm.kinit("alice", cache)
    async with Admin(**secured.client(listener, **cache_settings(cache))) as admin:
        assert (await admin.describe_cluster()).brokers


def test_records_go_through(secured: Kerberized):
    settings = secured.by_keytab()
    with Producer(acks="all", **settings) as producer:
        producer.send("through", b"x")
    with Consumer(group_id="g", auto_offset_reset="earliest", **settings) as consumer:
        consumer.subscribe(["through"])
        assert consumer.getone().value == b"x"


def test_commands_take_the_ticket_of_kinit(secured: Kerberized, tmp_path: Path):
    cache, file = tmp_path / "cache", tmp_path / "client.properties"
    address = secured.node.address("SASL_PLAINTEXT")
    file.write_text(
        f"bootstrap.servers={address}\nsecurity.protocol=SASL_PLAINTEXT\n"
        "sasl.mechanism=GSSAPI\nsasl.kerberos.service.name=kafka\n"
    )
    command = ("brokers", "list", "--command-config", file)
    done = run_cli(*command)
    assert done.status != 0
    assert "kinit" in done.errors
    secured.realm.kinit("alice", cache)
    done = run_cli(*command, environ={"KRB5CCNAME": str(cache)})
    assert address in done.output, done.errors


async def test_short_names_are_what_permissions_are_about(secured: Kerberized):
    binding = AclBinding(AclResourceType.TOPIC, "bobs", "User:bob_boss", AclOperation.CREATE)
    async with Admin(**secured.by_keytab()) as admin:
        await admin.create_acls([binding])
    async with Admin(**secured.by_keytab("bob/admin")) as admin:

        async def may_create() -> bool:
            try:
                await admin.create_topics([NewTopic("bobs", partition_count=1)])
            except BrokerError:
                return False
            return True

        await until_async(may_create, what="bob_boss may create the topic", deadline_s=20)
        with pytest.raises(BrokerError, match="AUTHORIZATION"):
            await admin.create_topics([NewTopic("alices", partition_count=1)])


async def test_a_session_is_renewed(secured: Kerberized):
    for _ in range(4):  # on a busy machine it may be too late now and then
        async with Admin(**secured.by_keytab(listener="SASL_SSL")) as admin:
            connection = await admin._client.any_connection()
            end_s = time.monotonic() + 1.4 * SESSION_MS / 1000
            while time.monotonic() < end_s:
                await admin.describe_cluster()
                await asyncio.sleep(0)
            if await admin._client.any_connection() is connection:
                return
    raise AssertionError("no session is renewed")


async def test_what_is_wrong_with_a_client_is_said(secured: Kerberized, tmp_path: Path):
    realm = secured.realm
    told = await refusal(**{**secured.by_keytab(), "sasl_kerberos_service_name": "wrong"})
    assert f"Server wrong/{HOST}@{REALM} not found" in told
    assert "sasl.kerberos.service.name" in told
    told = await refusal(**{**secured.by_keytab(), "sasl_kerberos_principal": "carol"})
    assert f"keytab {secured.alice}: No key table entry found for carol@{REALM}" in told
    told = await refusal(**{**secured.by_keytab(), "sasl_kerberos_keytab": "/no/file"})
    assert "keytab /no/file" in told
    old = tmp_path / "old.keytab"
    realm.add("dave", old)
    realm.change("change_password -randkey dave")
    keytab = {"sasl_kerberos_principal": "dave", "sasl_kerberos_keytab": str(old)}
    told = await refusal(**secured.client(**keytab))
    assert "Preauthentication failed" in told or "export it again" in told
    told = await refusal(**secured.client(**cache_settings(tmp_path / "none")))
    assert "kinit" in told


async def test_an_expired_ticket(secured: Kerberized, tmp_path: Path):
    cache = tmp_path / "cache"
    secured.realm.add("eve", maxlife="1 second")
    secured.realm.kinit("eve", cache)
    settings = secured.client(**cache_settings(cache))
    texts: list[str] = []

    async def is_refused() -> bool:
        try:
            async with Admin(**settings) as admin:
                await admin.describe_cluster()
        except AuthenticationFailed as error:
            texts.append(str(error))
        return bool(texts)

    await until_async(is_refused, what="the ticket's end", deadline_s=20)
    assert "expired" in texts[0]
    assert "kinit" in texts[0]
    # The next login looks into the cache again.
    secured.realm.kinit("alice", cache)
    async with Admin(**settings) as admin:
        assert (await admin.describe_cluster()).brokers


async def test_a_dead_kdc(secured: Kerberized, tmp_path: Path):
    cache = tmp_path / "cache"
    secured.realm.kinit("alice", cache)
    with_ticket = secured.client(**cache_settings(cache))
    async with Admin(**with_ticket) as admin:
        await admin.describe_cluster()
    secured.realm.stop()
    try:
        secured_bob = {**secured.by_keytab("bob/admin"), "sasl_kerberos_principal": "frank"}
        frank = tmp_path / "frank.keytab"
        secured.realm.add("frank", frank)
        told = await refusal(**{**secured_bob, "sasl_kerberos_keytab": str(frank)})
        assert f"Cannot contact any KDC for realm '{REALM}'" in told
        # The node asks no KDC, and this client has its ticket for the node.
        async with Admin(**with_ticket) as admin:
            assert (await admin.describe_cluster()).brokers
    finally:
        secured.realm.start()


async def test_a_silent_kdc_holds_no_other_client_of_the_loop(
    secured: Kerberized, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    keytab = tmp_path / "grace.keytab"
    secured.realm.add("grace", keytab)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        other = secured.realm.config_with_kdc(silent.getsockname()[1])
        async with Admin(**secured.by_keytab()) as good:
            await good.describe_cluster()
            monkeypatch.setenv("KRB5_CONFIG", str(other))
            own = {"sasl_kerberos_principal": "grace", "sasl_kerberos_keytab": str(keytab)}
            async with Admin(**secured.client(**own)) as waiting:
                held = asyncio.create_task(waiting.describe_cluster())
                asked, _ = await asyncio.to_thread(silent.accept)
                with asked:
                    assert (await good.describe_cluster()).brokers
                    assert not held.done()
                    held.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await held


def login(secured: Kerberized) -> KerberosLogin:
    return KerberosLogin(
        "kafka", SystemClock(), "alice", uses_keytab=True, keytab=str(secured.alice)
    )


@asynccontextmanager
async def connected(secured: Kerberized) -> AsyncIterator[Connection]:
    connection = await Connection.connect(
        AsyncioNetwork(), HOST, secured.node.port("SASL_PLAINTEXT"), clock=SystemClock()
    )
    try:
        answer = await connection.send(SaslHandshakeRequest(mechanism="GSSAPI"))
        assert answer.error_code == ErrorCode.NONE
        yield connection
    finally:
        connection.close()


async def test_a_token_that_comes_again_ends_the_connection(secured: Kerberized):
    exchange = GssapiClient(login(secured), HOST)
    token = exchange.first()
    async with connected(secured) as first, connected(secured) as second:
        answer = await first.send(SaslAuthenticateRequest(auth_bytes=token))
        assert answer.error_code == ErrorCode.NONE
        # As Apache Kafka: a client whose token was only sent twice may try again.
        with pytest.raises(ConnectionLost):
            await second.send(SaslAuthenticateRequest(auth_bytes=token))
    assert "replay" in secured.node.log()


@pytest.mark.parametrize("token", [b"", b"x" * 1_000, b"\x60\x82\xff\xff\x06\x09" + bytes(500)])
async def test_garbage_is_refused(secured: Kerberized, token: bytes):
    async with connected(secured) as connection:
        answer = await connection.send(SaslAuthenticateRequest(auth_bytes=token))
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert answer.error_message == "authentication with GSSAPI failed"


async def test_the_choice_of_a_layer(secured: Kerberized):
    """The authorization id is not looked at, as in Apache Kafka; another layer is refused."""
    import gssapi.raw

    for choice, code in (
        (b"\x01\0\0\0mallory", ErrorCode.NONE),
        (b"\x02\0\xff\xff", ErrorCode.SASL_AUTHENTICATION_FAILED),
        (b"\x01", ErrorCode.SASL_AUTHENTICATION_FAILED),
    ):
        async with connected(secured) as connection:
            exchange = GssapiClient(login(secured), HOST)
            message: bytes | None = exchange.first()
            for _ in range(2):
                answer = await connection.send(SaslAuthenticateRequest(auth_bytes=message or b""))
                assert answer.error_code == ErrorCode.NONE
                if answer.auth_bytes and not exchange._is_established:
                    message = exchange.answer(bytes(answer.auth_bytes))
            context = exchange._context
            offer = gssapi.raw.unwrap(context, bytes(answer.auth_bytes)).message
            assert offer == b"\x01\0\0\0"
            signed = gssapi.raw.wrap(context, choice, False, None).message
            answer = await connection.send(SaslAuthenticateRequest(auth_bytes=signed))
            assert answer.error_code == code


async def test_raw_tokens_behind_a_handshake_of_version_0(secured: Kerberized):
    exchange = GssapiClient(login(secured), HOST)
    reader, writer = await asyncio.open_connection(HOST, secured.node.port("SASL_PLAINTEXT"))

    async def ask(frame: bytes) -> bytes:
        writer.write(len(frame).to_bytes(4, "big") + frame)
        size = int.from_bytes(await reader.readexactly(4), "big")
        return await reader.readexactly(size)

    try:
        handshake = b"\0\x11\0\0\0\0\0\x07\xff\xff" + b"\0\x06GSSAPI"
        assert (await ask(handshake))[:6] == b"\0\0\0\x07\0\0"
        message: bytes | None = exchange.first()
        while not exchange.is_complete:
            message = exchange.answer(await ask(message or b""))
        assert await ask(message or b"") == b""
        versions = b"\0\x12\0\0\0\0\0\x08\xff\xff"
        assert (await ask(versions))[:6] == b"\0\0\0\x08\0\0"
    finally:
        writer.close()


async def test_many_at_once(secured: Kerberized):
    async def log_in() -> int:
        async with Admin(**secured.by_keytab()) as admin:
            return len((await admin.describe_cluster()).brokers)

    assert await asyncio.gather(*(log_in() for _ in range(20))) == [1] * 20


def test_a_ticket_that_is_not_valid_yet_is_no_refusal(secured: Kerberized, tmp_path: Path):
    """As Apache Kafka's client: the clocks may come together."""
    cache = tmp_path / "cache"
    secured.realm.kinit("alice", cache, "-s", "1h")
    postdated = KerberosLogin("kafka", SystemClock(), ticket_cache=str(cache))
    with pytest.raises(ConnectionError, match="not yet valid"):
        GssapiClient(postdated, HOST).first()


async def test_a_new_key_of_the_node_is_in_use_at_once(secured: Kerberized, tmp_path: Path):
    """Tickets for the old key stay good while it stands in the keytab."""
    old = tmp_path / "old"
    secured.realm.kinit("alice", old)
    with_old = secured.client(**cache_settings(old))
    async with Admin(**with_old) as admin:
        await admin.describe_cluster()
    secured.realm.change(f"ktadd -k {secured.realm.keytab} {SERVICE}")
    new = tmp_path / "new"
    secured.realm.kinit("alice", new)
    for settings in (secured.client(**cache_settings(new)), with_old):
        async with Admin(**settings) as admin:
            assert (await admin.describe_cluster()).brokers


def test_tickets_of_a_keytab_are_renewed_in_time(secured: Kerberized, tmp_path: Path):
    keytab = tmp_path / "heidi.keytab"
    secured.realm.add("heidi", keytab, maxlife="1 hour")
    tickets = KeytabTickets(str(keytab), "heidi")
    clock, rules = ManualClock(), RenewalRules(0.8, 0.0, 60_000)

    def requests() -> int:
        return (secured.realm.home / "kdc.log").read_text().count("ISSUE:")

    before = requests()
    first = tickets.current(clock, rules)
    assert tickets.current(clock, rules) is first
    assert requests() == before + 1
    secured.realm.stop()
    try:
        clock.advance(0.81 * 3_600_000)
        assert tickets.current(clock, rules) is first, "it is good for a while"
        clock.advance(0.2 * 3_600_000)
        with pytest.raises(KerberosError, match="Cannot contact any KDC"):
            tickets.current(clock, rules)
    finally:
        secured.realm.start()
    before = requests()
    second = tickets.current(clock, rules)
    assert second is not first
    assert requests() == before + 1
    clock.advance(0.79 * 3_600_000)
    assert tickets.current(clock, rules) is second


async def test_the_log_says_why_a_client_is_refused_and_shows_no_token(secured: Kerberized):
    async with connected(secured) as connection:
        await connection.send(SaslAuthenticateRequest(auth_bytes=b"s3cret-token"))
    log = secured.node.log()
    assert "authentication with GSSAPI failed: " in log
    assert "s3cret" not in log
    assert "Traceback" not in log
