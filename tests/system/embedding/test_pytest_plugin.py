"""The pytest plugin as another project meets it: its own pytest, warnings are errors."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from moldau.testing.pytest_plugin import Shape

THEIR_TESTS = """
import pytest

seen = []

def described(cluster, topic):
    from moldau.client.sync import Admin

    with Admin(cluster.bootstrap_server) as admin:
        return admin.describe_topics([topic])[topic].partitions

def setting(cluster, kind, name, key):
    from moldau.client import ConfigResource, ConfigResourceType
    from moldau.client.sync import Admin

    resource = ConfigResource(ConfigResourceType[kind], name)
    with Admin(cluster.bootstrap_server) as admin:
        [entries] = admin.describe_configs([resource]).values()
    values = entries if isinstance(entries, dict) else {each.name: each for each in entries}
    return values[key].value

@pytest.mark.parametrize("turn", [1, 2])
def test_a_topic_of_its_own(moldau_cluster, moldau_topic, turn):
    assert len(described(moldau_cluster, moldau_topic)) == 1
    seen.append((moldau_topic, moldau_cluster.node().pid))

def test_one_cluster_for_all(moldau_clusters):
    (first, first_pid), (second, second_pid) = seen
    assert first != second
    assert first_pid == second_pid == moldau_clusters().node().pid

def test_as_the_options_say(moldau_cluster, moldau_topics):
    assert setting(moldau_cluster, "BROKER", "1", "log.retention.hours") == "5"
    topic = moldau_topics(partitions=3, config={"retention.ms": 7_000, "preallocate": True})
    assert len(described(moldau_cluster, topic)) == 3
    assert setting(moldau_cluster, "TOPIC", topic, "retention.ms") == "7000"

@pytest.fixture(scope="module")
def servers(moldau_cluster):
    return moldau_cluster.bootstrap_server

@pytest.mark.moldau(brokers=50, config={"num.partitions": 4})
class TestAnother:
    @pytest.mark.moldau(brokers=2)  # the nearest one wins
    def test_as_the_markers_say(self, moldau_cluster, moldau_topics, servers):
        assert moldau_cluster.broker_ids == [1, 2]
        assert servers == moldau_cluster.bootstrap_server
        assert setting(moldau_cluster, "BROKER", "1", "log.retention.hours") == "5"
        partitions = described(moldau_cluster, moldau_topics(-1, replication_factor=2))
        assert [len(each.replicas) for each in partitions] == [2] * 4
        seen.append(moldau_cluster)

    @pytest.mark.moldau(brokers=2)
    def test_the_same_one_again(self, moldau_cluster, moldau_clusters):
        assert seen[-1] is moldau_cluster
        assert moldau_clusters(brokers=2, config={"num.partitions": 4}) is moldau_cluster

def test_the_first_cluster_still_runs(moldau_cluster, servers):
    assert moldau_cluster.node().pid == seen[0][1]
    assert servers == moldau_cluster.bootstrap_server
"""

ALONE = """
import sys

def test_the_plugin_alone_loads_next_to_nothing():
    loaded = [name for name in sys.modules if name.startswith("moldau.")]
    own = ["moldau.testing.node_settings", "moldau.testing.pytest_plugin"]
    assert loaded == ["moldau.first_use", "moldau.testing", *own]
"""

ASYNCHRONOUS = """
import os

async def test_topics_are_made_while_the_loop_runs(moldau_cluster, moldau_topics):
    from moldau.client import Consumer, Producer

    topic = moldau_topics(partitions=2)
    async with Producer(moldau_cluster.bootstrap_server) as producer:
        assert await producer.partitions_for(topic) == [0, 1]
    assert os.environ["PYTEST_XDIST_WORKER"]
"""

POSITIONAL = """
import pytest

@pytest.mark.moldau(3)
def test_it(moldau_cluster): ...
"""
FAILING = """
import pytest
from moldau.testing import Cluster

@pytest.mark.moldau(config={"group.min.session.timeout.ms": 9_000_000})
def test_of_a_node_that_does_not_start(moldau_cluster): ...

def test_of_a_topic_that_cannot_be(moldau_topics):
    moldau_topics(config={"retention.m": 3})

def test_of_a_topic_with_a_name(moldau_topics):
    moldau_topics("orders")

def test_of_a_misspelled_argument(moldau_topics):
    moldau_topics(partition=3)

def test_of_a_shape_that_cannot_be(moldau_clusters):
    moldau_clusters(config={"num.partition": 3})

def test_of_a_node_that_is_not_there(moldau_cluster):
    moldau_cluster.pause(7)

def test_of_a_cluster_of_its_own():
    with Cluster(config={"group.min.session.timeout.ms": 9_000_000}): ...

def test_of_a_killed_node(moldau_clusters):
    cluster = moldau_clusters(config={"num.partitions": 2})
    assert cluster.bootstrap_server == "elsewhere"
"""
COMPLAINING = """
import pytest

@pytest.fixture
def cluster(moldau_cluster):
    yield moldau_cluster
    if not moldau_cluster.node().running:
        moldau_cluster.restart()

def say(cluster, line):
    with cluster.node().log_path.open("a") as log:
        log.write("2026-01-01 10:00:00.000 " + line)

def test_of_a_complaint(cluster):
    say(cluster, "ERROR   a.module: it broke\\nTraceback (most recent call last):\\n")
    say(cluster, "INFO    a.module: it goes on\\n")
    assert cluster is None

def test_of_a_dead_node(cluster):
    cluster.kill()
    assert cluster is None

def test_of_a_good_node(cluster):
    assert cluster is None

def test_without_a_cluster():
    assert None
"""
#: Whatever else is installed here is not what is looked at.
OTHER_PLUGINS = ("asyncio", "hypothesispytest", "timeout", "xdist", "cacheprovider")


def run_pytest(
    directory: Path, *arguments: str, without: tuple[str, ...] = OTHER_PLUGINS
) -> subprocess.CompletedProcess[str]:
    options = [option for plugin in without for option in ("-p", f"no:{plugin}")]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", *options, *arguments],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def test_fixtures_in_another_project(tmp_path: Path):
    (tmp_path / "test_theirs.py").write_text(THEIR_TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmoldau_config =\n    log.retention.hours=5\n")
    result = run_pytest(tmp_path, "--strict-markers", "test_theirs.py")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "7 passed" in result.stdout


def test_without_a_fixture_next_to_nothing_is_loaded(tmp_path: Path):
    (tmp_path / "test_alone.py").write_text(ALONE)
    result = run_pytest(tmp_path)
    assert "1 passed" in result.stdout, result.stdout


def test_fixtures_with_a_worker_and_asyncio(tmp_path: Path):
    (tmp_path / "test_theirs.py").write_text(ASYNCHRONOUS)
    options: tuple[str, ...] = ("-n", "1", "-o", "asyncio_mode=auto")
    options += ("-o", "asyncio_default_fixture_loop_scope=function")
    result = run_pytest(tmp_path, *options, without=("cacheprovider",))
    assert result.returncode == 0, result.stdout + result.stderr
    assert "1 passed" in result.stdout


def test_fixtures_explain_themselves(tmp_path: Path):
    listed = run_pytest(tmp_path, "--fixtures").stdout
    for name in ("moldau_cluster [session scope]", "moldau_clusters [session scope]"):
        assert name in listed
    assert "moldau_topic --" in listed
    assert "moldau_topics --" in listed


def test_an_option_that_cannot_be_ends_the_run(tmp_path: Path):
    (tmp_path / "test_nothing.py").write_text("def test_nothing(): pass\n")
    result = run_pytest(tmp_path, "-o", "moldau_brokers=many")
    assert result.returncode == pytest.ExitCode.USAGE_ERROR
    assert result.stderr.strip() == (
        "ERROR: moldau_brokers='many': a whole number from 1 to 100 is needed"
    )


def test_a_key_that_no_node_knows_ends_the_run(tmp_path: Path):
    (tmp_path / "test_nothing.py").write_text("def test_nothing(): pass\n")
    result = run_pytest(tmp_path, "-o", "moldau_config=num.partition=3")
    assert result.returncode == pytest.ExitCode.USAGE_ERROR
    assert result.stderr.strip() == (
        "ERROR: moldau_config: num.partition: is not a known key and has no effect; "
        "did you mean num.partitions?"
    )


def test_a_marker_that_cannot_be_is_named(tmp_path: Path):
    (tmp_path / "test_marked.py").write_text(POSITIONAL)
    result = run_pytest(tmp_path)
    assert result.returncode == pytest.ExitCode.INTERRUPTED
    assert "@pytest.mark.moldau: arguments=(3,): " in result.stdout
    assert "(brokers=NUMBER, controllers=NUMBER, config={KEY: VALUE}, secure=BOOL)" in result.stdout
    for chained in ("Traceback", "During handling"):
        assert chained not in result.stdout
    assert "test_it: @pytest.mark.moldau: " in result.stdout


def test_a_failure_shows_the_tests_own_lines_and_the_error(tmp_path: Path):
    (tmp_path / "test_failing.py").write_text(FAILING)
    said = run_pytest(tmp_path).stdout
    assert "7 failed, 1 error" in said
    for error in (
        "9000000: must not exceed group.max.session.timeout.ms=1800000",
        "retention.m: is not a topic configuration; did you mean retention.ms?",
        "num.partition: is not a known key and has no effect; did you mean num.partitions?",
        "ValueError: there is no node 7; there are 1",
        "TypeError: partitions='orders': a number is needed; names are made up",
        "moldau_topics() got an unexpected keyword argument 'partition'",
    ):
        assert error in said
    assert re.search(r"<Cluster brokers=1 .*on 127\.0\.0\.1:\d+, logs .*node\.log>", said)
    assert [line for line in said.splitlines() if re.search(r"moldau/\w+/\w+\.py:", line)] == []
    for chained in ("During handling", "direct cause", "<moldau.testing", "Traceback ("):
        assert chained not in said


def test_a_failure_shows_what_nodes_complained_of_during_the_test(tmp_path: Path):
    (tmp_path / "test_failing.py").write_text(COMPLAINING)
    said = run_pytest(tmp_path).stdout
    assert "4 failed" in said
    first, second, *others = re.split(r"^_+ test_\w+ _+$", said, flags=re.MULTILINE)[1:]
    title = r"-+ Moldau node 1 of 127\.0\.0\.1:\d+ -+\n"
    shown = (
        "2026-01-01 10:00:00.000 ERROR   a.module: it broke\nTraceback (most recent call last):\n"
    )
    assert re.search(title + r"(?:\S.*\n)*" + re.escape(shown), first)
    assert "10:00:00.000 INFO" not in said
    assert re.search(title + r"does not run \(exit status -9\)\n", second)
    for other in others:
        assert "it broke" not in other
        assert "does not run" not in other


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"brokers": 0}, "brokers=0: a whole number from 1 to 100"),
        ({"brokers": True}, "brokers=True: a whole number"),
        ({"controllers": 2.0}, r"controllers=2\.0: a whole number"),
        ({"controllers": 101}, "controllers=101: a whole number from 1 to 100"),
        (
            {"config": "num.partitions=3"},
            "config='num.partitions=3': .*config={KEY: VALUE}, secure=BOOL",
        ),
        ({"broker": 3}, "broker=3: .*brokers=NUMBER"),
    ],
)
def test_a_shape_that_cannot_be(given: dict[str, Any], said: str):
    with pytest.raises((TypeError, ValueError), match=said):
        Shape().changed(**given)
