"""Greedy clients of the HTTP listener in their own process, beside probes."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from moldau.testing import Cluster
from tests.system.http.conftest import Http
from tests.system.http.greedy import SENDS

PROBE_TIMEOUT_S = 6
"""As the chart's probes have it."""
PROBES = 10
ALL_HOSTS = tuple(f"127.0.1.{number}" for number in range(1, 21))
OWN_HOST = ("127.0.0.1", "127.0.1.1")
"""Where the probes come from, and another."""


@contextmanager
def attacked(port: int, kind: str, hosts: tuple[str, ...]) -> Iterator[None]:
    """While the attacker has all its connections."""
    command = [sys.executable, "-m", "tests.system.http.greedy", str(port), kind, *hosts]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as attacker:
        try:
            assert attacker.stdout is not None
            assert attacker.stdout.readline() == b"ready\n"
            yield
        finally:
            attacker.kill()


def probe(address: tuple[str, int], path: str) -> int:
    connection = http.client.HTTPConnection(*address, timeout=PROBE_TIMEOUT_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("kind", "hosts"),
    [(kind, ALL_HOSTS) for kind in SENDS] + [(kind, OWN_HOST) for kind in ("half", "pipelined")],
    ids=[*SENDS, "half-from-probes-address", "pipelined-from-probes-address"],
)
def test_probes_are_answered_beside_greedy_clients(
    cluster: Cluster, listener: Http, kind: str, hosts: tuple[str, ...]
):
    with attacked(listener._address[1], kind, hosts):
        statuses = [
            probe(listener._address, path)
            for _ in range(PROBES)
            for path in ("/healthz", "/readyz")
        ]
        assert statuses == [200] * 2 * PROBES
        assert listener.ask("/metrics").status == 200
    assert listener.ask("/readyz").status == 200
    if kind.startswith("half") and hosts is ALL_HOSTS:
        log = cluster.node().log_path.read_text()
        lines = [json.loads(line) for line in log.splitlines()]
        cut = "cut, as its address takes too many connections"
        named = {line["host"] for line in lines if line.get("problem") == cut}
        assert named
        assert named <= set(ALL_HOSTS)
