"""Confluent's REST v3 at a node: documented bodies, statuses and errors."""

from __future__ import annotations

from typing import Any

import pytest

from moldau.client import Admin, Consumer, Producer
from tests.kit.waiting import until_async
from tests.system.console.site import Answer, Site, basic


async def ask(site: Site, path: str, **more: Any) -> Answer:
    cluster_id = await site.cluster_id(more.get("headers"))
    return await site.ask(f"/v3/clusters/{cluster_id}{path}", **more)


async def created(site: Site, name: str, **more: Any) -> Answer:
    body = {"topic_name": name, "partitions_count": 2, **more}
    answer = await ask(site, "/topics", method="POST", body=body)
    assert answer.status == 201, answer.document
    return answer


async def test_clusters(open_site: Site) -> None:
    cluster_id = await open_site.cluster_id()
    answer = await open_site.ask("/v3/clusters")
    base = f"{open_site.origin}/v3/clusters/{cluster_id}"
    [shown] = answer.document["data"]
    assert answer.document["kind"] == "KafkaClusterList"
    assert answer.document["metadata"] == {"self": f"{open_site.origin}/v3/clusters", "next": None}
    assert shown == {
        "kind": "KafkaCluster",
        "metadata": {"self": base, "resource_name": f"crn:///kafka={cluster_id}"},
        "cluster_id": cluster_id,
        "controller": {"related": f"{base}/brokers/1"},
        "acls": {"related": f"{base}/acls"},
        "brokers": {"related": f"{base}/brokers"},
        "broker_configs": {"related": f"{base}/broker-configs"},
        "consumer_groups": {"related": f"{base}/consumer-groups"},
        "topics": {"related": f"{base}/topics"},
        "partition_reassignments": {"related": f"{base}/topics/-/partitions/-/reassignment"},
    }
    assert (await ask(open_site, "")).document == shown
    missing = await open_site.ask("/v3/clusters/my-cluster")
    assert (missing.status, missing.document["error_code"]) == (404, 404)
    assert missing.document["message"]


async def test_brokers(open_site: Site) -> None:
    listed = (await ask(open_site, "/brokers")).document
    [broker] = listed["data"]
    assert (listed["kind"], broker["kind"]) == ("KafkaBrokerList", "KafkaBroker")
    host, _, port = open_site.cluster.bootstrap_server.rpartition(":")
    assert (broker["broker_id"], broker["host"], broker["port"]) == (1, host, int(port))
    assert (await ask(open_site, "/brokers/1")).document == broker
    for path in ("/brokers/7", "/brokers/x", "/brokers/-1", "/brokers/99999999999"):
        assert (await ask(open_site, path)).status == 404
    await created(open_site, "on-brokers")
    replicas = (await ask(open_site, "/brokers/1/partition-replicas")).document
    assert replicas["kind"] == "KafkaReplicaList"
    own = [each for each in replicas["data"] if each["topic_name"] == "on-brokers"]
    assert [each["partition_id"] for each in own] == [0, 1]
    assert all(each["is_leader"] and each["is_in_sync"] for each in own)


async def test_a_topics_life(open_site: Site) -> None:
    configs = [
        {"name": "retention.ms", "value": "1234567"},
        {"name": "cleanup.policy", "value": None},
    ]
    answer = await created(open_site, "life", replication_factor=1, configs=configs)
    shown = answer.document
    base = shown["metadata"]["self"]
    assert answer.headers["Location"] == base
    assert base.endswith("/topics/life")
    assert shown["kind"] == "KafkaTopic"
    assert shown["metadata"]["resource_name"].endswith("/topic=life")
    assert (shown["partitions_count"], shown["replication_factor"]) == (2, 1)
    assert shown["is_internal"] is False
    for name in ("partitions", "configs"):
        assert shown[name] == {"related": f"{base}/{name}"}
    assert (await ask(open_site, "/topics/life")).document == shown
    listed = (await ask(open_site, "/topics")).document
    assert listed["kind"] == "KafkaTopicList"
    assert shown in listed["data"]
    grown = await ask(open_site, "/topics/life", method="PATCH", body={"partitions_count": 3})
    assert (grown.status, grown.document["partitions_count"]) == (200, 3)
    assert (await ask(open_site, "/topics/life", method="DELETE")).status == 204

    async def is_gone() -> bool:
        return (await ask(open_site, "/topics/life")).status == 404

    await until_async(is_gone, what="the topic to be gone")
    missing = await ask(open_site, "/topics/life", method="DELETE")
    assert (missing.status, missing.document["error_code"]) == (404, 40403)


@pytest.mark.parametrize(
    ("body", "status", "error_code"),
    [
        ({"topic_name": "taken"}, 400, 40002),
        ({"topic_name": "bad name"}, 400, 40002),
        ({"topic_name": ""}, 400, 40002),
        ({"topic_name": "x", "partitions_count": 0}, 400, 40002),
        ({"topic_name": "x", "replication_factor": 5}, 400, 40002),
        ({"topic_name": "x", "replication_factor": "all"}, 400, 40002),
        ({"topic_name": "x", "configs": [{"name": "no.such", "value": "1"}]}, 400, 40002),
        ({"partitions_count": 1}, 400, 40002),
        (
            {
                "topic_name": "x",
                "replicas_assignments": [
                    {"partition_id": 0, "broker_ids": [1]},
                    {"partition_id": 0, "broker_ids": [1]},
                ],
            },
            400,
            40002,
        ),
    ],
)
async def test_topics_that_cannot_be(
    open_site: Site, body: dict[str, Any], status: int, error_code: int
) -> None:
    await ask(open_site, "/topics", method="POST", body={"topic_name": "taken"})
    answer = await ask(open_site, "/topics", method="POST", body=body)
    assert (answer.status, answer.document["error_code"]) == (status, error_code)
    assert answer.document["message"] == answer.document["detail"]


async def test_a_topic_may_only_be_checked(open_site: Site) -> None:
    body = {"topic_name": "dry", "partitions_count": 64, "validate_only": True}
    answer = await ask(open_site, "/topics", method="POST", body=body)
    assert (answer.status, answer.document["partitions_count"]) == (200, 64)
    assert (await ask(open_site, "/topics/dry")).status == 404


async def test_replicas_may_be_chosen(open_site: Site) -> None:
    assignments = [{"partition_id": each, "broker_ids": [1]} for each in range(3)]
    body = {"topic_name": "assigned", "replicas_assignments": assignments}
    answer = await ask(open_site, "/topics", method="POST", body=body)
    assert (answer.status, answer.document["partitions_count"]) == (201, 3)


async def test_partitions_and_replicas(open_site: Site) -> None:
    await created(open_site, "parts")
    listed = (await ask(open_site, "/topics/parts/partitions")).document
    assert listed["kind"] == "KafkaPartitionList"
    assert [each["partition_id"] for each in listed["data"]] == [0, 1]
    one = (await ask(open_site, "/topics/parts/partitions/1")).document
    assert one == listed["data"][1]
    assert one["leader"]["related"].endswith("/partitions/1/replicas/1")
    replicas = (await ask(open_site, "/topics/parts/partitions/1/replicas")).document
    assert replicas["kind"] == "KafkaReplicaList"
    [replica] = replicas["data"]
    assert (await ask(open_site, "/topics/parts/partitions/1/replicas/1")).document == replica
    missing = await ask(open_site, "/topics/parts/partitions/2")
    assert (missing.status, missing.document["error_code"]) == (404, 40403)
    for path in ("/topics/none/partitions", "/topics/parts/partitions/0/replicas/2"):
        assert (await ask(open_site, path)).status == 404
    moves = (await ask(open_site, "/topics/-/partitions/-/reassignment")).document
    assert (moves["kind"], moves["data"]) == ("KafkaReassignmentList", [])
    assert (await ask(open_site, "/topics/parts/partitions/-/reassignment")).document["data"] == []
    assert (await ask(open_site, "/topics/parts/partitions/0/reassignment")).status == 404


async def test_configs_of_a_topic(open_site: Site) -> None:
    await created(open_site, "configured")
    at = "/topics/configured/configs"
    listed = (await ask(open_site, at)).document
    assert listed["kind"] == "KafkaTopicConfigList"
    by_name = {each["name"]: each for each in listed["data"]}
    policy = by_name["cleanup.policy"]
    assert policy["kind"] == "KafkaTopicConfig"
    assert (policy["value"], policy["is_default"], policy["source"]) == (
        "delete",
        True,
        "DEFAULT_CONFIG",
    )
    put = await ask(open_site, f"{at}/cleanup.policy", method="PUT", body={"value": "compact"})
    assert put.status == 204

    async def policy_is(value: str) -> bool:
        return bool((await ask(open_site, f"{at}/cleanup.policy")).document["value"] == value)

    await until_async(lambda: policy_is("compact"), what="the new value")
    one = (await ask(open_site, f"{at}/cleanup.policy")).document
    assert (one["is_default"], one["source"]) == (False, "DYNAMIC_TOPIC_CONFIG")
    assert [each["value"] for each in one["synonyms"]] == ["compact", "delete"]
    assert (await ask(open_site, f"{at}/cleanup.policy", method="DELETE")).status == 204
    await until_async(lambda: policy_is("delete"), what="the default")
    data = [
        {"name": "cleanup.policy", "value": "compact,delete"},
        {"name": "retention.ms", "operation": "DELETE"},
    ]
    checked = {"data": data, "validate_only": True}
    assert (await ask(open_site, f"{at}:alter", method="POST", body=checked)).status == 204
    assert await policy_is("delete")
    assert (await ask(open_site, f"{at}:alter", method="POST", body={"data": data})).status == 204
    await until_async(lambda: policy_is("compact,delete"), what="the values of the batch")
    bad = {"data": [{"name": "cleanup.policy", "value": "shred"}]}
    refused = await ask(open_site, f"{at}:alter", method="POST", body=bad)
    assert (refused.status, refused.document["error_code"]) == (400, 40002)
    assert refused.document["kafka_error"] == "INVALID_CONFIG"
    assert (await ask(open_site, f"{at}/no.such")).status == 404
    assert (await ask(open_site, "/topics/none/configs")).document["error_code"] == 40403
    everything = (await ask(open_site, "/topics/-/configs")).document
    assert one | {"value": "compact,delete"} in [
        {**each, "synonyms": one["synonyms"]} for each in everything["data"]
    ]


async def test_configs_of_brokers_and_of_the_cluster(open_site: Site) -> None:
    one = (await ask(open_site, "/brokers/1/configs/log.retention.ms")).document
    assert (one["kind"], one["broker_id"]) == ("KafkaBrokerConfig", 1)
    listed = (await ask(open_site, "/brokers/1/configs")).document
    assert len(listed["data"]) > 100
    body = {"value": "7654321"}
    at = "/broker-configs/log.retention.ms"
    assert (await ask(open_site, at, method="PUT", body=body)).status == 204

    async def is_set() -> bool:
        return (await ask(open_site, at)).status == 200

    await until_async(is_set, what="the cluster's value")
    shown = (await ask(open_site, at)).document
    assert (shown["kind"], shown["config_type"]) == ("KafkaClusterConfig", "BROKER")
    assert (shown["value"], shown["source"]) == ("7654321", "DYNAMIC_DEFAULT_BROKER_CONFIG")
    assert shown["name"] in [
        each["name"] for each in (await ask(open_site, "/broker-configs")).document["data"]
    ]
    body = {"data": [{"name": "log.retention.ms", "value": "1"}]}
    assert (
        await ask(open_site, "/brokers/1/configs:alter", method="POST", body=body)
    ).status == 204

    async def own() -> bool:
        data = (await ask(open_site, "/brokers/-/configs")).document["data"]
        return [(each["name"], each["value"]) for each in data] == [("log.retention.ms", "1")]

    await until_async(own, what="the broker's own value")
    for path in ("/brokers/1/configs/log.retention.ms", at):
        assert (await ask(open_site, path, method="DELETE")).status == 204


async def test_groups_and_lags(open_site: Site) -> None:
    await created(open_site, "read")
    servers = open_site.cluster.bootstrap_server
    async with Producer(servers) as producer:
        for number in range(10):
            await producer.send("read", b"x", partition=number % 2)
    async with Consumer(
        servers, group_id="a group/ü", client_id="reader", auto_offset_reset="earliest"
    ) as consumer:
        consumer.subscribe(["read"])
        for _ in range(4):
            await consumer.getone()
        await consumer.commit()
        name = "a%20group%2F%C3%BC"
        group = (await ask(open_site, f"/consumer-groups/{name}")).document
        assert group["kind"] == "KafkaConsumerGroup"
        assert (group["consumer_group_id"], group["state"]) == ("a group/ü", "STABLE")
        assert group["is_simple"] is False
        assert group["metadata"]["self"].endswith(f"/consumer-groups/{name}")
        listed = (await ask(open_site, "/consumer-groups")).document
        assert group in listed["data"]
        [member] = (await ask(open_site, f"/consumer-groups/{name}/consumers")).document["data"]
        assert (member["kind"], member["client_id"]) == ("KafkaConsumer", "reader")
        at = f"/consumer-groups/{name}/consumers/{member['consumer_id']}"
        assert (await ask(open_site, at)).document == member
        assignments = (await ask(open_site, f"{at}/assignments")).document["data"]
        assert [each["partition_id"] for each in assignments] == [0, 1]
        one = await ask(open_site, f"{at}/assignments/read/partitions/1")
        assert one.document == assignments[1]
        lags = (await ask(open_site, f"/consumer-groups/{name}/lags")).document["data"]
        assert sum(each["lag"] for each in lags) == 6
        assert all(each["consumer_id"] == member["consumer_id"] for each in lags)
        lag = await ask(open_site, f"/consumer-groups/{name}/lags/read/partitions/0")
        assert lag.document in lags
        summary = (await ask(open_site, f"/consumer-groups/{name}/lag-summary")).document
        assert (summary["total_lag"], summary["max_lag_topic_name"]) == (6, "read")
        assert summary["max_lag"] == max(each["lag"] for each in lags)
    missing = await ask(open_site, "/consumer-groups/none")
    assert (missing.status, missing.document["kafka_error"]) == (404, "GROUP_ID_NOT_FOUND")


ACL = {
    "resource_type": "TOPIC",
    "resource_name": "b-",
    "pattern_type": "PREFIXED",
    "principal": "User:bob",
    "host": "*",
    "operation": "DESCRIBE",
    "permission": "ALLOW",
}


async def test_acls(secure_site: Site) -> None:
    properties = secure_site.cluster.client_properties
    password = properties["sasl.jaas.config"].partition('password="')[2].partition('"')[0]
    admin = basic("admin", password)
    answer = await ask(secure_site, "/acls", headers=admin, method="POST", body=ACL)
    assert answer.status == 201
    assert "principal=User%3Abob" in answer.headers["Location"]
    query = "?principal=User:bob&resource_type=TOPIC"

    async def found() -> Any:
        listed = (await ask(secure_site, f"/acls{query}", headers=admin)).document
        assert listed["kind"] == "KafkaAclList"
        assert listed["metadata"]["self"].endswith(f"/acls{query}")
        return listed["data"]

    [shown] = await until_async(found, what="the entry")
    assert {key: shown[key] for key in ACL} == ACL
    assert shown["kind"] == "KafkaAcl"
    both = {"data": [{**ACL, "operation": each} for each in ("READ", "WRITE")]}
    batch = await ask(secure_site, "/acls:batch", headers=admin, method="POST", body=both)
    assert batch.status == 201
    refused = await ask(secure_site, f"/acls{query}", headers=admin, method="DELETE")
    assert refused.status == 400, "too much would go by mistake"
    query += "&pattern_type=ANY&operation=ANY&permission=ANY"
    gone = await ask(secure_site, f"/acls{query}", headers=admin, method="DELETE")
    assert sorted(each["operation"] for each in gone.document["data"]) == [
        "DESCRIBE",
        "READ",
        "WRITE",
    ]
    bad = await ask(
        secure_site, "/acls", headers=admin, method="POST", body={**ACL, "operation": "ANY"}
    )
    assert (bad.status, bad.document["error_code"]) == (400, 40002)


async def test_people_do_what_they_may(secure_site: Site) -> None:
    """Bob may nothing, alice everything with topics that begin with a."""
    async with Admin(config=secure_site.cluster.client_properties) as admin:
        from moldau.client import NewTopic

        await admin.create_topics([NewTopic("a-1", 1), NewTopic("z-1", 1)])
    for user, name, status in (
        ("bob", "a-2", 403),
        ("alice", "z-2", 403),
        ("alice", "a-2", 201),
    ):
        answer = await ask(
            secure_site,
            "/topics",
            headers=basic(user),
            method="POST",
            body={"topic_name": name, "partitions_count": 1},
        )
        assert answer.status == status, answer.document
        if status == 403:
            assert answer.document["error_code"] == 40301
    listed = await ask(secure_site, "/topics", headers=basic("alice"))
    assert [each["topic_name"] for each in listed.document["data"]] == ["a-1", "a-2"]
    assert (await ask(secure_site, "/topics", headers=basic("bob"))).document["data"] == []
    refused = await ask(secure_site, "/topics/z-1", headers=basic("alice"))
    assert (refused.status, refused.document["kafka_error"]) == (403, "TOPIC_AUTHORIZATION_FAILED")
    acls = await ask(secure_site, "/acls", headers=basic("alice"))
    assert (acls.status, acls.document["error_code"]) == (403, 40301)
    stranger = await secure_site.ask("/v3/clusters")
    assert (stranger.status, stranger.document["error_code"]) == (401, 40101)
    assert stranger.headers["WWW-Authenticate"].startswith("Basic")
