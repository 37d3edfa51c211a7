"""Who may change key and trust stores at the controller, and the lines about who changed what."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from moldau.protocol.access_control import Operation, ResourceType
from moldau.protocol.envelope import encode_envelope
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p33_alter_configs as p33
from moldau.protocol.messages import p44_incremental_alter_configs as p44
from moldau.protocol.messages.p44_incremental_alter_configs import ConfigOperation
from moldau.protocol.messages.p58_envelope import EnvelopeResponse
from moldau.runtime.connection import Connection
from tests.kit.envelopes import decode_enveloped_response
from tests.unit.controller.harness import ControllerBench, Deny

ALTER = (Operation.ALTER, ResourceType.CLUSTER)
BROKER = 4
LOCATION = "listener.name.internal.ssl.truststore.location"
INLINE = "listener.name.internal.ssl.truststore.certificates"
OTHER = "log.retention.ms"
MALLORY = "User:mallory"

Ask = Callable[..., Awaitable[Any]]


@pytest.fixture
async def bench() -> AsyncIterator[ControllerBench]:
    """Where `User:mallory` may do everything but ALTER the cluster, and broker 1 is registered."""
    made = await ControllerBench.start(authorizer=Deny(ALTER, principal=MALLORY))
    await made.join(await made.connect())
    yield made
    await made.close()


@pytest.fixture
async def connection(bench: ControllerBench) -> Connection:
    return await bench.connect()


async def asked(
    connection: Connection, request: Any, api_version: int, principal: str = MALLORY
) -> tuple[int, str | None]:
    """Error and message of the request's one resource, sent through a broker."""
    envelope = encode_envelope(
        request,
        api_version=api_version,
        correlation_id=7,
        client_id="c",
        principal=principal,
        client_host="10.1.2.3",
    )
    answer = await connection.send(envelope)
    assert isinstance(answer, EnvelopeResponse)
    response: Any = decode_enveloped_response(
        answer, api_key=request.API_KEY, api_version=api_version, correlation_id=7
    )
    [result] = response.responses
    return result.error_code, result.error_message


def incremental(
    key: str, value: str | None, *, name: str = "1", validate_only: bool = False
) -> p44.IncrementalAlterConfigsRequest:
    operation = ConfigOperation.DELETE if value is None else ConfigOperation.SET
    change = p44.AlterableConfig(name=key, config_operation=operation, value=value)
    resource = p44.AlterConfigsResource(resource_type=BROKER, resource_name=name, configs=[change])
    return p44.IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)


def legacy(**values: str) -> p33.AlterConfigsRequest:
    configs = [p33.AlterableConfig(name=key, value=value) for key, value in values.items()]
    resource = p33.AlterConfigsResource(resource_type=BROKER, resource_name="1", configs=configs)
    return p33.AlterConfigsRequest(resources=[resource])


async def test_stores_of_listeners_ask_for_alter_on_the_cluster(connection: Connection) -> None:
    for key in (LOCATION, INLINE, "listener.name.internal.ssl.keystore.key"):
        for value in ("/x", None):
            for validate_only in (False, True):
                request = incremental(key, value, validate_only=validate_only)
                error, message = await asked(connection, request, 1)
                assert error == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
                assert message is not None
                assert "need ALTER" in message
        assert (await asked(connection, incremental(key, "/x", name=""), 1))[0] == 31
    assert (await asked(connection, incremental(OTHER, "5000"), 1))[0] == ErrorCode.NONE
    assert (await asked(connection, incremental(LOCATION, "/x"), 1, "User:admin"))[0] == 0


async def test_the_old_request_asks_for_alter_by_what_it_takes_away(
    connection: Connection,
) -> None:
    """It replaces the whole configuration."""
    assert (await asked(connection, legacy(**{OTHER: "5000"}), 2))[0] == ErrorCode.NONE
    assert (await asked(connection, legacy(**{LOCATION: "/x"}), 2))[0] == 31
    assert (await asked(connection, legacy(**{LOCATION: "/x"}), 2, "User:admin"))[0] == 0
    assert (await asked(connection, legacy(**{OTHER: "5000"}), 2))[0] == 31, "it would go"
    unchanged = legacy(**{LOCATION: "/x", OTHER: "5000"})
    assert (await asked(connection, unchanged, 2))[0] == ErrorCode.NONE
    assert (await asked(connection, legacy(**{LOCATION: "/y", OTHER: "5000"}), 2))[0] == 31


async def test_a_change_is_a_line_with_its_client_and_without_values(
    connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "listener.name.internal.ssl.key.password"
    with caplog.at_level(logging.INFO, "moldau.audit"):
        await asked(connection, incremental(secret, "s3cret"), 1, "User:admin")
        await asked(connection, incremental(secret, "s3cret"), 1)  # refused
        await asked(connection, incremental(OTHER, "1", validate_only=True), 1)
        await asked(connection, incremental(OTHER, "nonsense"), 1)
        await asked(connection, incremental(OTHER, "1"), 1)
    lines = [each.getMessage() for each in caplog.records if each.name == "moldau.audit"]
    assert lines == [
        "Principal = User:admin from host = 10.1.2.3 on listener = CONTROLLER changed the "
        f"configuration of BROKER:1: SET {secret}",
        "Principal = User:mallory from host = 10.1.2.3 on listener = CONTROLLER changed the "
        f"configuration of BROKER:1: SET {OTHER}",
    ]
    assert "s3cret" not in caplog.text
