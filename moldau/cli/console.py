"""`moldau console`: the console beside any Kafka cluster, from this machine.

Must not know what the console serves. Invariant: where others can reach it, they do not act with
the rights of its own user.
"""

from __future__ import annotations

import asyncio
import ipaddress
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, Final

from moldau import client
from moldau.cli.options import ClientOptions
from moldau.cli.output import fail, refusing, say, warn
from moldau.config.listeners import host_and_port
from moldau.config.validators import BIND_ADDRESS

if TYPE_CHECKING:
    from aiohttp import web

    from moldau.console.people import Way
    from moldau.console.settings import ConsoleSettings

DEFAULT_LISTEN: Final = "localhost:8090"
MAX_LOG_LINES: Final = 100
BACKLOG: Final = 256
SHUTDOWN_S: Final = 2.0
CHECK_MS: Final = 10_000
_REGISTRY: Final = "schema.registry."
_OF_USERS: Final = (
    "sasl.username",
    "sasl.jaas.config",
    "ssl.keystore.location",
    "ssl.keystore.key",
)


def console(
    access: ClientOptions,
    listen: Annotated[str, "--listen HOST:PORT", "Where browsers find it."] = DEFAULT_LISTEN,
    login: Annotated[
        bool, "People log in with their own names and passwords, or tokens, of the cluster."
    ] = False,
    name: Annotated[
        list[str] | None, "--name HOST", "What browsers call it, too; may be repeated."
    ] = None,
    read_only: Annotated[bool, "Refuse everything that changes something."] = False,
) -> None:
    """Serve the console of a Kafka cluster, until Ctrl-C.

    All who reach it act with the rights of the given settings, unless they log in (--login).
    """
    if find_spec("aiohttp") is None:
        fail("the console needs aiohttp: pip install 'moldau[server]'")
    if not listen or not BIND_ADDRESS.accepts(listen):
        fail(f"--listen {listen!r} is not HOST:PORT", status=2)
    host, _, port = listen.rpartition(":")
    settings = console_settings(
        access.properties(), host.strip("[]"), login=login, names=name or [], read_only=read_only
    )
    with refusing(client.KafkaError, status=1), asyncio.Runner() as runner:
        runner.run(_serve(settings, host.strip("[]"), int(port)))


def console_settings(
    properties: dict[str, Any], host: str, *, login: bool, names: list[str], read_only: bool
) -> ConsoleSettings:
    """The settings of a console on this machine; exits with status 2 when they cannot be."""
    from moldau.console.guard import LOOPBACK_NAMES
    from moldau.console.people import Way
    from moldau.console.settings import ConsoleSettings
    from moldau.node.http.connections import line_of

    registry = {key: value for key, value in properties.items() if key.startswith(_REGISTRY)}
    own = {key: value for key, value in properties.items() if key not in registry}
    with refusing(client.ConfigurationError):
        client.AdminConfig.resolve(None, _served(own), {})
    mechanisms = _mechanisms(own) if login else ()
    if login and not mechanisms:
        protocol = own.get("security.protocol", "PLAINTEXT")
        fail(f"--login: with security.protocol={protocol} there is no login", status=2)
    if not login and not is_loopback(host) and any(key in own for key in _OF_USERS):
        fail(
            f"--listen {host or '*'}: all who reach it would act with the rights of the settings; "
            "add --login, or listen on localhost",
            status=2,
        )
    called = {*LOOPBACK_NAMES, host.lower(), *(each.lower() for each in names)} - {""}
    return ConsoleSettings(
        Way(own, mechanisms),
        login,
        names=frozenset(called),
        is_read_only=read_only,
        registry=registry,
        line_of=line_of,
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _served(properties: dict[str, Any]) -> dict[str, Any]:
    known = client.AdminConfig.KEYS
    return {key: value for key, value in properties.items() if key.replace(".", "_") in known}


def _mechanisms(properties: dict[str, Any]) -> tuple[str, ...]:
    """What people log in by, at a cluster with these settings."""
    from moldau.console.people import BEARER, PASSWORD_MECHANISMS, SCRAM

    if not str(properties.get("security.protocol", "")).upper().startswith("SASL_"):
        return ()
    given = properties.get("sasl.mechanism")
    if given is None:
        return SCRAM
    return tuple(each for each in (*PASSWORD_MECHANISMS, BEARER) if each == str(given).upper())


async def _serve(settings: ConsoleSettings, host: str, port: int) -> None:
    from aiohttp import web

    from moldau.console.application import Console
    from moldau.node.http.connections import (
        ClientLines,
        HttpConnection,
        HttpConnections,
        HttpLimits,
    )
    from moldau.runtime.ports import Ports
    from moldau.runtime.stop_signals import StopSignals

    await _check(settings.way, needs_login=settings.needs_login)
    signals, stopped = StopSignals(), asyncio.Event()
    signals.install()
    ports, made = Ports.of_machine(), Console(settings)
    server = web.Server(partial(_receive, made), handler_cancellation=True)
    connections = HttpConnections(HttpLimits(), ClientLines(ports.clock, MAX_LOG_LINES))
    try:
        listener = await ports.network.listen(
            lambda: HttpConnection(connections, server), host, port, backlog=BACKLOG
        )
    except OSError as error:
        fail(f"--listen {host_and_port(host, port)}: {error.strerror or error}")
    try:
        say(f"console: http://{host_and_port(host or 'localhost', listener.port)}/console/")
        if not is_loopback(host):
            warn("others can reach it, without TLS: let a proxy with TLS stand before it")
        with signals.waking(asyncio.get_running_loop(), stopped.set):
            await stopped.wait()
    finally:
        listener.close()
        await made.close()
        await server.shutdown(SHUTDOWN_S)
        connections.close()


async def _receive(made: Any, request: web.BaseRequest) -> web.StreamResponse:
    from moldau.node.http.connections import begin

    begin(request)
    answer: web.StreamResponse = await made(request)
    return answer


async def _check(way: Way, *, needs_login: bool) -> None:
    """Raises: KafkaError: the cluster cannot be reached, or does not let the console in."""
    if needs_login:
        return
    async with client.Admin(config=_served(dict(way.properties))) as admin:
        await admin.describe_cluster(timeout_ms=CHECK_MS)
