"""Options that every command about a running cluster takes, and the way into the client.

Owns `--bootstrap-server`, `--command-config` and the turning of a `KafkaError` into one line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

import typer

from moldau.cli.output import fail
from moldau.client import Admin, AdminConfig, ClientConfig, ConfigurationError, KafkaError
from moldau.config import ConfigError

Result = TypeVar("Result")

BootstrapServer = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-server",
        "-b",
        envvar="MOLDAU_BOOTSTRAP_SERVER",
        help="HOST:PORT of one or more brokers, separated by commas.  [default: localhost:9092]",
        show_default=False,
    ),
]
BootstrapController = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-controller",
        help="HOST:PORT of one or more controllers, to ask these instead of brokers.",
        show_default=False,
    ),
]
CommandConfig = Annotated[
    str | None,
    typer.Option("--command-config", help="A file with client properties, as Kafka's tools take."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
TimeoutMs = Annotated[
    int, typer.Option("--timeout-ms", min=1, help="Give up after this many milliseconds.")
]

DEFAULT_BOOTSTRAP_SERVER = "localhost:9092"
DEFAULT_TIMEOUT_MS = 15_000


def client_config(
    bootstrap_server: str | None,
    command_config: str | None,
    timeout_ms: int,
    bootstrap_controller: str | None = None,
) -> ClientConfig:
    """The client's configuration from a command's options; exits with status 2 when it is wrong."""
    try:
        if command_config is not None:
            config = AdminConfig.from_file(command_config, bootstrap_server, bootstrap_controller)
        elif bootstrap_controller is not None:
            config = AdminConfig(bootstrap_controllers=bootstrap_controller)
        else:
            config = AdminConfig(bootstrap_server or DEFAULT_BOOTSTRAP_SERVER)
        return AdminConfig.resolve(
            None,
            config,
            {
                "request_timeout_ms": min(config.request_timeout_ms, timeout_ms),
                "default_api_timeout_ms": timeout_ms,
            },
        )
    except (ConfigurationError, ConfigError) as error:
        fail(str(error), status=2)


def with_admin(
    bootstrap_server: str | None,
    command_config: str | None,
    timeout_ms: int,
    work: Callable[[Admin], Awaitable[Result]],
    bootstrap_controller: str | None = None,
) -> Result:
    """Run `work` with an admin client; a `KafkaError` becomes one line and status 1, settings that
    cannot be used status 2.

    Controllers, when they are given, are asked instead of brokers.
    """
    config = client_config(bootstrap_server, command_config, timeout_ms, bootstrap_controller)

    async def run() -> Result:
        async with Admin(config=config) as admin:
            return await work(admin)

    try:
        return asyncio.run(run())
    except ConfigurationError as error:  # what only shows when the settings are put to use
        fail(str(error), status=2)
    except KafkaError as error:
        fail(str(error))


def key_values(pairs: list[str], option: str) -> dict[str, str]:
    """`k=v` arguments as a dict; exits with status 2 for one without `=`."""
    values: dict[str, str] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            fail(f"{option} {pair!r} is not KEY=VALUE", status=2)
        values[key] = value
    return values
