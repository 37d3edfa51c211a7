"""The console in a node: its paths, its way into the cluster, what it is called, its bodies."""

from __future__ import annotations

import asyncio
import json

import pytest

from moldau.config import ConfigError, NodeConfig
from moldau.config.listeners import SecurityProtocol
from moldau.metadata.image import MetadataImage
from moldau.metadata.image.values import Endpoint
from moldau.node.http.connections import MAX_AHEAD_BYTES
from moldau.node.http.console import NodeConsole, is_console_path
from moldau.node.settings import check_console
from tests.unit.node.http.site import SETTINGS, served
from tests.virtual.machine import pass_time


def node_config(**changed: str) -> NodeConfig:
    return NodeConfig({**SETTINGS, **{k.replace("__", "."): v for k, v in changed.items()}})


def endpoint(protocol: SecurityProtocol, host: str = "broker.example", port: int = 9) -> Endpoint:
    return Endpoint(host, port, protocol.value)


@pytest.mark.parametrize(
    "target",
    [
        "/",
        "/?x",
        "/console",
        "/console/",
        "/console/a/b?c",
        "/v3/clusters",
        "/openapi.json",
        "/api/v1/session",
        "/api/v1/clusters/x/overview",
        "/console/../metrics",
    ],
)
def test_paths_of_the_console(target: str) -> None:
    assert is_console_path(target)


@pytest.mark.parametrize(
    "target",
    ["/metrics", "/healthz", "/api/v1/cluster", "/api/v1/topics/x", "/consoles", "/v30", "//", "*"],
)
def test_paths_of_the_node(target: str) -> None:
    assert not is_console_path(target)


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        ({}, None),
        ({"moldau__console__enable": "true"}, "moldau.console.enable"),
        ({"moldau__console__enable": "true", "moldau__http__listener": ":1"}, None),
        (
            {
                "moldau__console__enable": "true",
                "moldau__http__listener": ":1",
                "moldau__console__listener": "plaintext",
            },
            None,
        ),
        (
            {
                "moldau__console__enable": "true",
                "moldau__http__listener": ":1",
                "moldau__console__listener": "OTHER",
            },
            "moldau.console.listener",
        ),
    ],
)
def test_keys_that_do_not_fit_are_refused(changed: dict[str, str], key: str | None) -> None:
    config = node_config(**changed)
    if key is None:
        check_console(config)
        return
    with pytest.raises(ConfigError) as refused:
        check_console(config)
    assert refused.value.key == key


SECURITY = {
    "listeners": "CLIENT://:9092,INTERNAL://:9094,WIDE://:9095,CONTROLLER://:9093",
    "listener.security.protocol.map": (
        "CLIENT:SASL_SSL,INTERNAL:SSL,WIDE:PLAINTEXT,CONTROLLER:PLAINTEXT"
    ),
    "inter.broker.listener.name": "INTERNAL",
    "listener.name.client.sasl.enabled.mechanisms": "SCRAM-SHA-256,OAUTHBEARER,GSSAPI",
    "listener.name.client.ssl.truststore.location": "ca.pem",
    "listener.name.client.ssl.truststore.type": "PEM",
}
LISTENERS = {
    "WIDE": endpoint(SecurityProtocol.PLAINTEXT, port=9095),
    "INTERNAL": endpoint(SecurityProtocol.SSL, port=9094),
    "CLIENT": endpoint(SecurityProtocol.SASL_SSL, port=9092),
}


def console_of(
    config: NodeConfig, listeners: dict[str, Endpoint], host: str = "localhost"
) -> NodeConsole:
    return NodeConsole(
        config, lambda: listeners, host, quorum=lambda: None, image=lambda: MetadataImage.EMPTY
    )


async def test_people_log_in_where_any_listener_for_clients_has_sasl() -> None:
    config = NodeConfig({**SETTINGS, **SECURITY})
    settings = console_of(config, LISTENERS)._settings(LISTENERS)
    assert settings.needs_login
    assert settings.logins == ("password", "token")
    assert settings.way.mechanisms == ("SCRAM-SHA-256", "OAUTHBEARER")
    assert settings.way.properties == {
        "bootstrap.servers": "broker.example:9092",
        "security.protocol": "SASL_SSL",
        "ssl.truststore.location": "ca.pem",
        "ssl.truststore.type": "PEM",
    }
    assert settings.served_from == "node"


async def test_the_listener_may_be_chosen() -> None:
    config = NodeConfig({**SETTINGS, **SECURITY, "moldau.console.listener": "wide"})
    settings = console_of(config, LISTENERS)._settings(LISTENERS)
    assert (settings.needs_login, settings.logins) == (False, ())
    assert settings.way.properties == {
        "bootstrap.servers": "broker.example:9095",
        "security.protocol": "PLAINTEXT",
    }


async def test_the_only_listener_is_for_clients_too() -> None:
    listeners = {"PLAINTEXT": endpoint(SecurityProtocol.PLAINTEXT)}
    settings = console_of(node_config(), listeners)._settings(listeners)
    assert not settings.needs_login
    assert settings.way.properties["bootstrap.servers"] == "broker.example:9"


async def test_where_people_need_certificates_none_comes_in() -> None:
    config = node_config(
        listeners="SSL://:9092,CONTROLLER://:9093",
        listener__security__protocol__map="SSL:SSL,CONTROLLER:PLAINTEXT",
        inter__broker__listener__name="SSL",
        listener__name__ssl__ssl__client__auth="required",
    )
    listeners = {"SSL": endpoint(SecurityProtocol.SSL)}
    settings = console_of(config, listeners)._settings(listeners)
    assert settings.needs_login
    assert settings.logins == ()


@pytest.mark.parametrize(
    ("host", "called"),
    [
        ("localhost", {"localhost", "127.0.0.1", "::1"}),
        ("10.0.0.7", {"localhost", "127.0.0.1", "::1", "10.0.0.7"}),
        ("", {"localhost", "127.0.0.1", "::1", "node-7", "broker.example"}),
        ("0.0.0.0", {"localhost", "127.0.0.1", "::1", "node-7", "broker.example"}),
    ],
)
async def test_what_the_listener_is_called(
    monkeypatch: pytest.MonkeyPatch, host: str, called: set[str]
) -> None:
    monkeypatch.setattr("moldau.node.http.console.socket.gethostname", lambda: "Node-7")
    listeners = {"PLAINTEXT": endpoint(SecurityProtocol.PLAINTEXT, "Broker.example")}
    config = node_config(moldau__console__hosts="Console.example,moldau")
    settings = console_of(config, listeners, host)._settings(listeners)
    assert set(settings.names) == called | {"console.example", "moldau"}


def post(body: bytes, *headers: str) -> bytes:
    lines = (
        "POST /api/v1/session HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        *headers,
    )
    return "\r\n".join((*lines, "", "")).encode() + body


async def test_bodies_are_taken_on_paths_of_the_console_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listeners = {"PLAINTEXT": endpoint(SecurityProtocol.PLAINTEXT)}
    console = console_of(node_config(), listeners)
    body = json.dumps({"username": "a", "password": "b"}).encode()
    async with served(monkeypatch, console=console) as site:
        client = await site.client()
        for _ in range(3):  # a connection goes on behind a body that was read
            client.send(post(body, f"Content-Length: {len(body)}"))
            assert (await client.answer()).status == 409, "people do not log in here"
        await pass_time(60_000)
        assert not client.is_closed, "it is idle, and owes no headers"
        client.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
        assert (await client.answer()).status == 413
        await client.closed()


async def test_a_body_may_be_longer_than_what_waits_behind_other_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It comes in parts, each read before the next; the time for an answer begins again with it."""
    listeners = {"PLAINTEXT": endpoint(SecurityProtocol.PLAINTEXT)}
    console = console_of(node_config(), listeners)
    size = MAX_AHEAD_BYTES - 1_000
    settings = {"response_timeout_ms": "3000"}
    async with served(monkeypatch, settings=settings, console=console) as site:
        client = await site.client()
        client.send(post(b"", f"Content-Length: {size}"))
        sent, parts = 0, 8
        for _ in range(parts):
            await pass_time(2_000)
            assert not client.is_closed
            client.send(b" " * (size // parts))
            sent += size // parts
        client.send(b" " * (size - sent))
        assert (await client.answer()).status == 400, "spaces are no JSON"
        client.close()


async def test_a_body_that_does_not_come_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    listeners = {"PLAINTEXT": endpoint(SecurityProtocol.PLAINTEXT)}
    async with served(monkeypatch, console=console_of(node_config(), listeners)) as site:
        client = await site.client()
        client.send(post(b"{", "Content-Length: 100"))
        begun_s = asyncio.get_running_loop().time()
        await client.closed()
        assert asyncio.get_running_loop().time() - begun_s <= 31


async def test_a_broker_that_has_not_registered_has_no_console_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    console = NodeConsole(
        node_config(),
        lambda: None,
        "localhost",
        quorum=lambda: None,
        image=lambda: MetadataImage.EMPTY,
    )
    async with served(monkeypatch, console=console) as site:
        answer = await site.ask("/openapi.json")
        assert answer.status == 503


async def test_without_the_key_its_paths_are_no_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(monkeypatch) as site:
        for path in ("/", "/console/", "/v3/clusters", "/api/v1/session"):
            assert (await site.ask(path)).status == 404
