"""The quorum and the metadata log at a node's console, and who may see them."""

from __future__ import annotations

import json
from typing import Any

from moldau.client import (
    AclBinding,
    AclOperation,
    AclResourceType,
    Admin,
    ConfigChange,
    ConfigResource,
    ConfigResourceType,
    NewTopic,
)
from moldau.testing import Cluster
from tests.system.console.asking import ask_own, own
from tests.system.console.site import CONSOLE, Site, basic, http_address

ADMIN = basic("carol")


async def test_the_quorum(open_site: Site) -> None:
    quorum = await own(open_site, "quorum")
    assert (quorum["leader_id"], quorum["observers"]) == (1, [])
    assert quorum["high_watermark"] > 0
    assert quorum["cluster_version"]["metadata.version"] > 0
    [voter] = quorum["voters"]
    assert (voter["node_id"], voter["is_leader"], voter["lag"]) == (1, True, 0)
    assert voter["directory_id"]
    [endpoint] = voter["endpoints"]
    assert endpoint["port"] > 0
    [election] = quorum["elections"]
    assert election["leader_id"] == 1
    assert election["epoch"] == quorum["leader_epoch"]
    assert election["at_ms"] > 0


async def whole_log(site: Site, **more: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    at: int | None = 0
    while at is not None:
        page = await own(site, f"quorum/log?from={at}&limit=100", **more)
        found += page["records"]
        at = page["next"]
    return found


async def test_the_log_says_what_has_happened(open_site: Site) -> None:
    async with Admin(open_site.cluster.bootstrap_server) as admin:
        await admin.create_topics([NewTopic("told", partition_count=1)])
    records = await whole_log(open_site)
    assert [each["offset"] for each in records] == [*range(len(records))]
    said = [each["summary"] for each in records]
    assert "Topic told is created" in said
    assert "Partition 0 of topic told: leader 1, ISR 1 of 1" in said
    assert "Node 1 leads the quorum" in said
    newest = await own(open_site, "quorum/log?limit=2")
    assert [each["offset"] for each in newest["records"]] == [
        newest["end_offset"] - 2,
        newest["end_offset"] - 1,
    ]
    behind = await own(open_site, "quorum/log?from=99999999")
    assert (behind["records"], behind["next"]) == ([], None)


async def test_every_leader_is_in_the_history() -> None:
    with Cluster(controllers=3, config=CONSOLE) as cluster:
        site = Site(cluster, http_address(cluster))
        quorum = await own(site, "quorum")
        assert len(quorum["voters"]) == 3
        assert [each["epoch"] for each in quorum["elections"]][-1] == quorum["leader_epoch"]
        assert quorum["elections"][-1]["leader_id"] == quorum["leader_id"]
        assert (await own(site, "quorum/log"))["records"]


async def test_the_log_is_for_those_who_may_see_all_of_it(secure_site: Site) -> None:
    async with Admin(config=secure_site.cluster.client_properties) as admin:
        broker = ConfigResource(ConfigResourceType.BROKER, "1")
        secret = ConfigChange("listener.name.x.ssl.keystore.password", "a-secret-of-brokers")
        await admin.alter_configs({broker: [secret]})
        refused = await ask_own(secure_site, "quorum", headers=ADMIN)
        assert refused.status == 403
        assert refused.document["kafka_error"] == "CLUSTER_AUTHORIZATION_FAILED"
        rights = [
            (AclResourceType.CLUSTER, "kafka-cluster", AclOperation.DESCRIBE),
            (AclResourceType.CLUSTER, "kafka-cluster", AclOperation.DESCRIBE_CONFIGS),
            (AclResourceType.TOPIC, "__cluster_metadata", AclOperation.DESCRIBE),
        ]
        for kind, name, operation in rights:
            refused = await ask_own(secure_site, "quorum/log", headers=ADMIN)
            assert refused.status == 403, refused.document
            await admin.create_acls([AclBinding(kind, name, "User:carol", operation)])
    shown = json.dumps(await whole_log(secure_site, headers=ADMIN))
    assert "User carol has credentials of SCRAM-SHA-512" in shown
    assert "a-secret-of-brokers" not in shown
    fields = [
        each["fields"]
        for each in await whole_log(secure_site, headers=ADMIN)
        if each["type"] == "UserScramCredentialRecord"
    ]
    assert fields
    assert {each["storedKey"] for each in fields} == {"[hidden]"}
    assert (await own(secure_site, "quorum", headers=ADMIN))["leader_id"] == 1
