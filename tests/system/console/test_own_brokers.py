"""The overview and the brokers through the console's own resources, at one node and at three."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from moldau.client import Admin, NewTopic
from moldau.testing import Cluster
from tests.kit.waiting import until_async
from tests.system.console.asking import ask_own, look_anew, own
from tests.system.console.site import CONSOLE, Site, basic, http_address
from tests.unit.console.command_lines import parsed


@pytest.fixture(scope="module")
def three_nodes() -> Iterator[Site]:
    """A cluster whose third node a test kills."""
    with Cluster(3, config=CONSOLE) as cluster:
        yield Site(cluster, http_address(cluster))


async def test_a_cluster_at_a_glance(open_site: Site) -> None:
    async with Admin(config=open_site.cluster.client_properties) as admin:
        await admin.create_topics([NewTopic("at-a-glance", 3)])
    await look_anew(open_site)

    async def has_rates() -> bool:
        return bool((await own(open_site, "overview"))["rates"]["requests_s"])

    await until_async(has_rates, what="the rates between two looks")
    shown = await own(open_site, "overview")
    assert shown["rates"]["bytes_in_s"] >= 0
    assert shown["health"]["status"] == "healthy"
    assert shown["health"]["sentence"].startswith("The broker serves, and all replicas of ")
    assert shown["health"]["problems"] == []
    assert shown["controller_id"] == 1
    [broker] = shown["brokers"]
    host, _, port = open_site.cluster.bootstrap_server.rpartition(":")
    assert (broker["host"], broker["port"], broker["rack"]) == (host, int(port), None)
    assert broker["listeners"][0].endswith(f"://{host}:{port}")
    assert broker["version"].startswith("moldau ")
    assert broker["connections"] >= 1
    assert broker["loop_lag_ms"] >= 0
    assert broker["is_reachable"]
    assert broker["is_controller"]
    assert not broker["is_fenced"]
    assert broker["leaders"] == broker["replicas"] == shown["counts"]["partitions"] >= 3
    assert 0 < broker["disk_usable_bytes"] <= broker["disk_total_bytes"]
    assert shown["size_bytes"] == broker["size_bytes"]
    counts = shown["counts"]
    assert counts["topics"] >= 1
    assert (counts["under_replicated"], counts["under_min_isr"], counts["offline"]) == (0, 0, 0)


async def test_one_broker(open_site: Site) -> None:
    async with Admin(config=open_site.cluster.client_properties) as admin:
        await admin.create_topics([NewTopic("on-the-disk", 1)])

    async def has_it() -> bool:
        [directory] = (await own(open_site, "brokers/1"))["log_directories"]
        assert directory["error"] is None
        replica = {"topic": "on-the-disk", "partition": 0}
        figures = {"size_bytes": 0, "offset_lag": 0, "is_future": False}
        return replica | figures in directory["partitions"]

    await until_async(has_it, what="the replica of the new topic")
    shown = await own(open_site, "brokers/1")
    configs = {each["name"]: each for each in shown["configs"]}
    assert configs["node.id"]["value"] == "1"
    assert configs["node.id"]["is_read_only"]
    assert configs["log.retention.ms"]["documentation"]
    [row] = (await own(open_site, "brokers"))["data"]
    changing = {"size_bytes", "disk_usable_bytes", "connections", "loop_lag_ms"}
    assert {name: shown[name] for name in row.keys() - changing} == {
        name: row[name] for name in row.keys() - changing
    }
    for path in ("brokers/7", "brokers/x", "brokers/-1"):
        assert (await ask_own(open_site, path)).status == 404


async def test_a_loggers_level_is_set(open_site: Site) -> None:
    path = "brokers/1/loggers/moldau.storage"
    levels = {
        each["name"]: each["level"] for each in (await own(open_site, "brokers/1"))["loggers"]
    }
    assert levels["moldau.storage"] == "INFO"
    done = await own(open_site, path, method="PUT", body={"level": "DEBUG"})
    words, given = parsed(done["command"])
    assert words == "configs alter"
    assert given.pop("entity_type").value == "broker-loggers"
    assert given == {"name": "1", "set_pairs": ("moldau.storage=DEBUG",)}
    levels = {
        each["name"]: each["level"] for each in (await own(open_site, "brokers/1"))["loggers"]
    }
    assert levels["moldau.storage"] == "DEBUG"
    await own(open_site, path, method="PUT", body={"level": "INFO"})
    refused = await ask_own(open_site, path, method="PUT", body={"level": "LOUD"})
    assert refused.status == 422
    absent = "brokers/1/loggers/no.such.logger"
    unknown = await ask_own(open_site, absent, method="PUT", body={"level": "DEBUG"})
    assert 400 <= unknown.status < 500, unknown.document
    elsewhere = await ask_own(
        open_site, "brokers/7/loggers/root", method="PUT", body={"level": "INFO"}
    )
    assert elsewhere.status == 404


async def test_people_without_rights_see_brokers_but_not_into_them(secure_site: Site) -> None:
    bob = basic("bob")
    shown = await own(secure_site, "brokers/1", headers=bob)
    assert shown["is_reachable"]
    hidden = ("log_directories", "configs", "loggers", "size_bytes", "disk_total_bytes")
    for name in (*hidden, "listeners", "version", "connections", "loop_lag_ms"):
        assert shown[name] is None, name
    overview = await own(secure_site, "overview", headers=bob)
    [certificate] = overview["certificates"]
    assert certificate["listener"] == "broker 1"
    assert certificate["subject"].startswith("CN=")
    assert certificate["expires_at_ms"] > time.time() * 1000
    assert overview["counts"]["topics"] == 0
    assert overview["rates"] is None
    assert overview["size_bytes"] is None
    assert overview["health"]["status"] == "healthy"
    refused = await ask_own(
        secure_site, "brokers/1/loggers/root", headers=bob, method="PUT", body={"level": "DEBUG"}
    )
    assert (refused.status, refused.document["kafka_error"]) == (
        403,
        "CLUSTER_AUTHORIZATION_FAILED",
    )


async def test_a_broker_that_is_killed_is_shown_as_such(three_nodes: Site) -> None:
    async with Admin(config=three_nodes.cluster.client_properties) as admin:
        configs = {"min.insync.replicas": "3"}
        await admin.create_topics(
            [
                NewTopic("everywhere", replica_assignment={0: [1, 2, 3]}, configs=configs),
                NewTopic("on-three", replica_assignment={0: [3]}),
            ]
        )
    before = await own(three_nodes, "overview")
    assert before["health"]["status"] == "healthy", before["health"]
    three_nodes.cluster.kill(3)

    async def is_seen() -> bool:
        counts = (await own(three_nodes, "overview"))["counts"]
        return bool(counts["offline"] and counts["under_min_isr"] and counts["groups"] is not None)

    await until_async(is_seen, what="the partitions that the broker had")
    shown = await own(three_nodes, "overview")
    health = shown["health"]
    assert health["status"] == "critical"
    assert health["problems"][0]["link"] == "/topics?sort=offline&order=desc"
    assert "on-three-0" in health["sentence"]
    rows = {row["broker_id"]: row for row in shown["brokers"]}
    assert [rows[number]["is_reachable"] for number in (1, 2, 3)] == [True, True, False]
    assert rows[3]["size_bytes"] is None
    assert rows[3]["listeners"], "the metadata have them"
    assert [rows[number]["connections"] is None for number in (1, 2, 3)] == [False, True, True]
    assert shown["rates"] is None, "one node of several does not know the sum"
    assert (await own(three_nodes, "brokers"))["total"] == 3
    third = await own(three_nodes, "brokers/3")
    assert (third["log_directories"], third["configs"], third["loggers"]) == (None, None, None)
    topic = await own(three_nodes, "topics/on-three")
    [partition] = topic["partitions"]
    assert (partition["leader"], partition["end_offset"]) == (None, None)
    listed = await own(three_nodes, "topics?sort=offline&order=desc&with=sizes,offsets,groups")
    assert [row["name"] for row in listed["data"] if row["offline"]] == ["on-three"]
    assert listed["data"][0]["record_count"] is None
