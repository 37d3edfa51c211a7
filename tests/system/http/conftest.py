"""A node with an HTTP listener, and the plainest of HTTP clients."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from moldau.testing import Cluster
from tests.interop.topics import TopicMaker
from tests.kit.waiting import until


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        """The body as JSON."""
        assert self.headers["content-type"].startswith("application/json")
        return json.loads(self.body)


class Http:
    """Asks one address, a connection each time."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)

    def ask(self, path: str, method: str = "GET", body: bytes | None = None) -> Answer:
        connection = http.client.HTTPConnection(*self._address, timeout=20)
        try:
            connection.request(method, path, body)
            response = connection.getresponse()
            headers = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, headers, response.read())
        finally:
            connection.close()


def http_of(cluster: Cluster) -> Http:
    """The HTTP listener of a node that was configured to take any port, found in its log."""

    def find() -> re.Match[str] | None:
        return re.search(r"HTTP listener on ([\d.]+):(\d+)", cluster.node().log_path.read_text())

    found = until(find, what="the node logs its HTTP address")
    assert found is not None
    return Http(found[1], int(found[2]))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A node whose logs are JSON."""
    config = {"moldau.http.listener": "127.0.0.1:0", "moldau.log.format": "json"}
    with Cluster(config=config) as running:
        yield running


@pytest.fixture(scope="module")
def topics(cluster: Cluster) -> Iterator[TopicMaker]:
    with TopicMaker(cluster.bootstrap_server) as maker:
        yield maker


@pytest.fixture(scope="module")
def listener(cluster: Cluster) -> Http:
    """The node's HTTP listener."""
    return http_of(cluster)
