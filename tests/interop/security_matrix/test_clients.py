"""Python's clients and kcat, each way."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import pytest

from tests.interop.security_matrix import cells
from tests.interop.security_matrix.access import WAYS
from tests.interop.security_matrix.clients import (
    KCAT,
    AioKafka,
    Client,
    Confluent,
    KafkaPython,
    Kcat,
    Moldau,
    context_of,
)
from tests.interop.security_matrix.conftest import IS_KAFKA
from tests.interop.security_matrix.front import FAULTS, Front

pytestmark = pytest.mark.timeout(180)

ROWS = cells.rows("clients", is_kafka=IS_KAFKA)
CLIENTS: dict[str, Client] = {
    "moldau": Moldau(),
    "confluent-kafka": Confluent(),
    "aiokafka": AioKafka(),
    "kafka-python": KafkaPython(),
    "kcat": Kcat(),
}

HAS_KCAT = pytest.mark.skipif(KCAT is None, reason="kcat is not installed")


def _each(columns: Callable[[str], Iterable[str]]) -> list[Any]:
    """Clients and columns, without kcat where there is none."""
    return [
        pytest.param(name, column, marks=HAS_KCAT if name == "kcat" else ())
        for name in CLIENTS
        for column in columns(name)
    ]


@pytest.mark.parametrize(("name", "way"), _each(lambda _: WAYS))
def test_cells(front: Front, name: str, way: str) -> None:
    cells.check(front, CLIENTS[name], ROWS[name], way)


@pytest.mark.parametrize(("name", "fault"), _each(lambda name: cells.faults_of(ROWS[name])))
def test_refusals(front: Front, name: str, fault: str) -> None:
    said = CLIENTS[name].refusal(front.refused(fault), front.topic())
    assert cells.has_parts(said, ROWS[name].refusals[fault]), said


def test_versions_of_tls(front: Front) -> None:
    """What the way "SSL, TLS 1.2" relies on; and that a client of TLS 1.2 alone is served."""
    for way, version, is_served in (
        ("SSL, TLS 1.2", ssl.TLSVersion.TLSv1_3, False),
        ("SSL", ssl.TLSVersion.TLSv1_2, True),
        ("SSL", ssl.TLSVersion.TLSv1_3, True),
    ):
        access = front.access(way)
        context = context_of(access)
        assert context is not None
        context.minimum_version = context.maximum_version = version
        host, _, port = access.bootstrap.rpartition(":")
        with (
            socket.create_connection((host, int(port))) as plain,
            nullcontext() if is_served else pytest.raises(ssl.SSLError, match="PROTOCOL_VERSION"),
            context.wrap_socket(plain, server_hostname=host),
        ):
            pass


def test_the_table_has_every_way_and_refusal() -> None:
    assert cells.columns("ways") == list(WAYS)
    named = [each for each in cells.columns("refusals") if each not in ("topic", "group")]
    assert named == list(FAULTS)
    for name, row in ROWS.items():
        assert list(row.refusals) == ["topic", "group", *cells.faults_of(row)], name
        assert row.gaps.keys() <= WAYS.keys(), name
