"""`moldau health`: what counts as a fault, what it says, and what to do next."""

from __future__ import annotations

import datetime
import json
from collections.abc import AsyncIterator

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from moldau.cli.health import Report, Status, look
from moldau.client import Admin
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p03_metadata import MetadataRequest
from moldau.runtime.connection import Connection
from tests.kit.dated_certificates import dated
from tests.unit.cli.test_cluster_commands import moldau, ok
from tests.unit.cli.written_cluster import GIB, Replicated, WrittenCluster, request_counts
from tests.unit.client.scripted_broker import NODE_ID, ScriptedBroker

ANSWER_MS = 500
TWO = (NODE_ID, 8)
WHOLE = Replicated(replicas=TWO, isr=TWO)
LACKING = Replicated(replicas=TWO, isr=(NODE_ID,))
LOST = Replicated(leader=-1, replicas=TWO, isr=(8,))


@pytest.fixture
def written() -> WrittenCluster:
    return WrittenCluster({"t": [Replicated()] * 2, "__inner": [Replicated()]})


@pytest.fixture
async def broker(written: WrittenCluster) -> AsyncIterator[ScriptedBroker]:
    async with ScriptedBroker() as scripted:
        written.answer_through(scripted)
        yield scripted


@pytest.fixture
async def admin(broker: ScriptedBroker) -> AsyncIterator[Admin]:
    async with Admin(broker.address, retry_backoff_ms=1, default_api_timeout_ms=5_000) as client:
        yield client


async def report(admin: Admin) -> Report:
    return await look(admin, ANSWER_MS)


async def test_a_healthy_cluster_is_one_sentence(admin: Admin):
    found = await report(admin)
    assert found.sentence == "healthy: 1 broker, 1 controller, 2 topics, 3 partitions"
    assert (found.status, found.advice, found.unchecked) == (Status.HEALTHY, [], {})


async def test_a_thousand_topics_take_a_few_requests(
    admin: Admin, written: WrittenCluster, broker: ScriptedBroker
):
    written.topics = {f"topic-{number:03}": [Replicated()] * 3 for number in range(1_000)}
    assert (await report(admin)).counts["partition"] == 3_000
    assert request_counts(broker) == {
        "DescribeCluster": 1,
        "DescribeTopicPartitions": 2,
        "DescribeLogDirs": 1,
        "DescribeQuorum": 1,
        "DescribeConfigs": 1,
        "ListPartitionReassignments": 1,
    }


async def test_a_topic_that_has_just_been_deleted_costs_a_list_and_no_more(
    admin: Admin, written: WrittenCluster, broker: ScriptedBroker
):
    names = [f"topic-{number}" for number in range(20)]
    written.topics = {name: [Replicated()] for name in (*names, "gone")}
    written.config_errors = {"gone": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    broker.topics = dict.fromkeys(names, 1)
    assert (await report(admin)).status is Status.HEALTHY
    every = [each for each in broker.requests_of(MetadataRequest) if each.topics is None]
    assert len(every) == 1


async def test_a_broker_that_is_down_explains_its_partitions(admin: Admin, written: WrittenCluster):
    written.brokers[8] = True
    written.topics["t"] = [LACKING, Replicated()]
    found = await report(admin)
    assert found.sentence == (
        "degraded: broker 8 is fenced; 1 of 3 partitions under-replicated (t-0)"
    )
    assert found.advice == ["start broker 8; if it is gone for good, `moldau brokers unregister 8`"]


async def test_partitions_without_a_leader_are_a_failure(admin: Admin, written: WrittenCluster):
    written.brokers |= {8: True, 9: True}
    written.topics["t"] = [LOST, *[Replicated()] * 3]
    found = await report(admin)
    assert found.status is Status.FAILING
    assert found.sentence == (
        "failing: brokers 8, 9 are fenced; 1 of 5 partitions without a leader (t-0)"
    )
    assert found.advice == [
        "start brokers 8, 9; if they are gone for good, `moldau brokers unregister 8` and "
        "`moldau brokers unregister 9`"
    ]
    del written.brokers[8], written.brokers[9]
    assert (await report(admin)).advice == [
        "`moldau topics describe --unavailable-partitions` shows which brokers have them"
    ]


async def test_too_few_replicas_in_sync_are_a_failure(admin: Admin, written: WrittenCluster):
    written.min_isr["t"] = 2
    written.topics["t"] = [LACKING] * 5
    found = await report(admin)
    assert found.sentence == (
        "failing: 5 of 6 partitions below min.insync.replicas, where acks=all is refused "
        "(t-0, t-1, t-2 and 2 more)"
    )
    assert found.advice == [
        "`moldau topics describe --under-min-isr-partitions` shows which replicas are missing"
    ]
    written.topics["t"] = [Replicated()]
    assert not (await report(admin)).findings, "one replica is all that the topic has"


async def test_a_replica_that_is_being_added_is_not_missing(admin: Admin, written: WrittenCluster):
    written.brokers[8] = False
    written.topics["t"] = [LACKING]
    written.adding["t", 0] = (8,)
    assert "under-replicated" not in (await report(admin)).sentence
    del written.adding["t", 0]
    assert "1 of 2 partitions under-replicated (t-0)" in (await report(admin)).sentence


async def test_a_move_to_a_broker_that_is_down_waits(admin: Admin, written: WrittenCluster):
    written.brokers[8] = True
    written.topics["t"] = [LACKING]
    written.adding["t", 0] = (8,)
    found = await report(admin)
    assert "1 move waits for broker 8, which does not serve" in found.sentence
    assert found.advice[-1] == (
        "start broker 8, or give moves up: `moldau topics reassign cancel t:0`"
    )


async def test_a_broker_that_does_not_answer_is_named(admin: Admin, written: WrittenCluster):
    written.brokers[8] = False
    found = await report(admin)
    assert found.sentence == "degraded: broker 8 does not answer"
    assert "look at the log of broker 8" in found.advice[0]


async def test_log_directories(admin: Admin, written: WrittenCluster):
    written.directories.append(("/dead", ErrorCode.KAFKA_STORAGE_ERROR, -1, -1))
    written.directories.append(("/full", ErrorCode.NONE, 100 * GIB, 2 * GIB))
    found = await report(admin)
    assert found.sentence == (
        "degraded: log directory /dead of broker 7 is offline; "
        "log directory /full of broker 7 has 2.0 % of its disk left"
    )
    assert found.advice[0] == "mend or replace the disk, then restart broker 7"


async def test_controllers_without_a_leader(admin: Admin, written: WrittenCluster):
    written.quorum_error = ErrorCode.NOT_CONTROLLER
    found = await report(admin)
    assert found.status is Status.FAILING
    assert found.sentence.startswith("failing: the controllers have no leader (")
    assert found.advice[0].startswith("start a majority of the controllers; ")
    written.quorum_error = ErrorCode.NONE
    written.voters = {}
    assert (await report(admin)).sentence == "failing: the controllers have no leader"


async def test_a_broker_that_waits_for_a_leader_of_the_quorum_is_not_called_silent(
    admin: Admin, broker: ScriptedBroker
):
    broker.silent.add(ApiKey.DESCRIBE_QUORUM)
    found = await report(admin)
    assert [each.check for each in found.findings] == ["quorum"]
    assert found.counts["partition"] == 3


async def test_controllers_that_do_not_follow(admin: Admin, written: WrittenCluster):
    now_ms = 1_000_000
    written.voters = {101: (now_ms, now_ms), 102: (now_ms - 300_000,) * 2, 103: (now_ms, now_ms)}
    found = await report(admin)
    assert found.sentence == (
        "degraded: controller 102 is behind in the quorum (last fetch 5 min ago); "
        "one more and nothing can be changed"
    ), "the second half is a part of the finding"
    assert found.advice == ["start controller 102, or look into its log"]
    written.voters[102] = (now_ms - 400, now_ms - 400)
    assert not (await report(admin)).findings


async def test_what_may_not_be_seen_is_named_and_no_fault(admin: Admin, written: WrittenCluster):
    written.logs_error = written.quorum_error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    found = await report(admin)
    assert found.status is Status.HEALTHY
    assert found.unchecked.keys() == {"quorum", "log directories"}
    document = found.document()
    assert document["healthy"] is True
    assert document["not_checked"]


async def test_a_certificate_that_expires_soon_is_said_and_in_the_last_days_a_fault(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
):
    def shows(days: float) -> None:
        at = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
        der = dated("broker", at.replace(microsecond=0)).public_bytes(Encoding.DER)
        monkeypatch.setattr(Connection, "peer_certificate", der)

    for days, when in ((31, None), (10, "expires in 10 days"), (2, "expires in 2 days")):
        shows(days)
        found = await report(admin)
        assert [len(found.soon), len(found.findings)] == [when is not None and days > 3, days < 3]
        if when is not None:
            [one] = [*found.soon, *found.findings]
            assert one.text.startswith(f"the certificate of broker {NODE_ID} {when}, on 2")
            assert one.advice is not None
            assert "moldau certificates renew" in one.advice
            [item] = one.items
            assert isinstance(item, dict)
            assert item["subject"] == "CN=broker"
    shows(-1)
    [one] = (await report(admin)).findings
    assert "has expired" in one.text


@pytest.mark.real
async def test_the_command_says_it_once(broker: ScriptedBroker, written: WrittenCluster):
    said = "healthy: 1 broker, 1 controller, 2 topics, 3 partitions\n"
    assert await ok(broker, "health") == said
    assert await ok(broker, "health", "--quiet") == ""
    written.brokers[8] = True
    done = await moldau(broker, "health", "-q")
    assert (done.status, done.errors) == (1, "")
    assert done.output == (
        "degraded: broker 8 is fenced\n"
        "next: start broker 8; if it is gone for good, `moldau brokers unregister 8`\n"
    )
    done = await moldau(broker, "health", "--json")
    document = json.loads(done.output)
    assert (done.status, document["status"], document["healthy"]) == (1, "degraded", False)
    assert document["findings"] == [
        {
            "check": "fenced brokers",
            "text": "broker 8 is fenced",
            "status": "degraded",
            "advice": document["next"][0],
            "items": [8],
        }
    ]
    written.logs_error = written.quorum_error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    written.brokers.pop(8)
    done = await moldau(broker, "health")
    assert (done.status, done.output) == (0, "healthy: 1 broker, 2 topics, 3 partitions\n")
    assert done.errors.startswith("moldau: not checked: quorum, log directories: describe quorum: ")


@pytest.mark.real
async def test_a_cluster_out_of_reach_is_not_healthy(broker: ScriptedBroker):
    nowhere = ("-b", "127.0.0.1:1", "--timeout-ms", 300)
    done = await moldau(broker, "health", *nowhere)
    assert (done.status, done.errors) == (1, "")
    first, second = done.output.splitlines()
    assert first.startswith("failing: ")
    assert "127.0.0.1:1" in first
    assert second == "next: see whether the brokers run, and whether this is their address"
    document = json.loads((await moldau(broker, "health", "--json", *nowhere)).output)
    assert (document["healthy"], document["findings"][0]["check"]) == (False, "reachable")
    assert (await moldau(broker, "health", "-b", "h:ninety")).status == 2
