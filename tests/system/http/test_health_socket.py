"""`moldau server health` beside a node: answered without the network, and not by a stuck node."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from moldau.testing import Cluster
from tests.system.http.conftest import http_of
from tests.system.http.greedy import SENDS
from tests.system.http.test_greedy_clients import ALL_HOSTS, attacked
from tests.system.processes import Ended, properties, run_cli, run_node


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as home:  # a socket's path is short
        yield Path(home) / "health"


def test_a_node_is_healthy_while_its_loops_run(path: Path, tmp_path: Path):
    config = {"moldau.health.socket": str(path), "moldau.http.listener": "127.0.0.1:0"}
    with Cluster(config=config) as cluster:
        file = properties(tmp_path, moldau_health_socket=str(path))

        def ask() -> Ended:
            return run_cli("server", "health", file)

        assert ask() == Ended(0, "ok\n", "")
        with attacked(http_of(cluster)._address[1], next(iter(SENDS)), ALL_HOSTS):
            assert ask() == Ended(0, "ok\n", "")
        cluster.pause()
        stuck = ask()
        cluster.resume()
        assert (stuck.status, stuck.output) == (1, "")
        assert f"{path}: timed out" in stuck.errors
        assert ask() == Ended(0, "ok\n", "")
    assert ask().status == 1


def test_a_node_without_the_socket_is_a_mistake_of_usage(tmp_path: Path):
    ended = run_cli("server", "health", properties(tmp_path))
    assert ended == Ended(2, "", "moldau: moldau.health.socket is not set\n")


def test_a_path_that_is_no_socket_is_refused_at_the_start(tmp_path: Path):
    ended = run_node(properties(tmp_path, moldau_health_socket=str(tmp_path)))
    assert ended.status == 1
    assert f"{tmp_path}: it exists, and is no socket" in ended.complaint
