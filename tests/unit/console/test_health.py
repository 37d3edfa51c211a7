"""A cluster's health follows from what was seen of it, and from nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from moldau.client import (
    AuthorizationFailed,
    ClusterDescription,
    KafkaError,
    LogDirectory,
    NoBrokerAvailable,
    PartitionDescription,
    RegisteredBroker,
    TopicDescription,
)
from moldau.console.own.gathering import Certificate, Controller
from moldau.console.own.health import (
    CRITICAL,
    DAY_MS,
    DEGRADED,
    HEALTHY,
    URGENT_DAYS,
    PartitionStates,
    health_document,
    troubles_of,
)
from moldau.protocol.errors import ErrorCode

DISK = LogDirectory("/data", None, 1_000, 500, {})
ACTIVE = Controller(1)
NOW_MS = 1_700_000_000_000


def partition(leader: int, isr: Sequence[int], replicas: Sequence[int]) -> PartitionDescription:
    return PartitionDescription(0, leader, 3, tuple(replicas), tuple(isr), (), (), ())


def topics(**partitions: PartitionDescription) -> dict[str, TopicDescription]:
    return {
        name: TopicDescription(name, UUID(int=7), False, (each,))
        for name, each in partitions.items()
    }


def cluster(*fenced: int) -> ClusterDescription:
    brokers = tuple(RegisteredBroker(n, "host", 9092, None, n in fenced) for n in (1, 2, 3))
    return ClusterDescription("id", 1, brokers)


def seen(
    described: dict[str, TopicDescription],
    *,
    fenced: Sequence[int] = (),
    directories: dict[int, list[LogDirectory] | KafkaError] | None = None,
    min_isr: dict[str, int] | None = None,
    controller: Controller = ACTIVE,
    certificates: Sequence[Certificate] = (),
) -> tuple[str, str, list[str]]:
    """The status, the sentence, and where the problems lead."""
    states = PartitionStates.of(described, min_isr or {})
    found = {1: [DISK], 2: [DISK], 3: [DISK]} if directories is None else directories
    troubles = troubles_of(cluster(*fenced), found, states, controller, certificates, NOW_MS)
    document = health_document(troubles, 3, states)
    links = [each["link"] for each in document["problems"]]
    return document["status"], document["sentence"], links


def test_a_cluster_without_trouble_is_healthy() -> None:
    status, sentence, links = seen(topics(a=partition(1, (1, 2, 3), (1, 2, 3))))
    assert (status, links) == (HEALTHY, [])
    assert sentence == "All 3 brokers serve, and all replicas of 1 partition are in sync."


def test_a_cluster_of_which_nothing_may_be_seen_is_not_said_to_be_in_sync() -> None:
    status, sentence, _ = seen({}, directories={1: AuthorizationFailed("no")})
    assert status == HEALTHY
    assert "in sync" not in sentence


def test_a_partition_without_a_leader_is_critical_and_comes_first() -> None:
    status, sentence, links = seen(
        topics(a=partition(1, (1,), (1, 2)), b=partition(-1, (2,), (2,))), fenced=[2]
    )
    assert status == CRITICAL
    assert sentence == "1 of 2 partitions without a leader (b-0), and 2 other problems."
    assert links == [
        "/topics?sort=offline&order=desc",
        "/topics?sort=under_replicated&order=desc",
        "/brokers/2",
    ]


def test_too_few_replicas_for_acks_all_are_critical() -> None:
    lacking = topics(a=partition(1, (1,), (1, 2, 3)))
    assert seen(lacking)[0] == DEGRADED
    assert seen(lacking, min_isr={"a": 1})[0] == DEGRADED
    assert seen(lacking, min_isr={"a": 2})[0] == CRITICAL
    alone = topics(a=partition(1, (1,), (1,)))
    assert seen(alone, min_isr={"a": 2})[0] == HEALTHY, "brokers ask for no more than there are"


def test_a_broker_that_does_not_answer_is_named_and_one_that_refuses_is_not() -> None:
    ok = topics(a=partition(1, (1,), (1,)))
    denied = AuthorizationFailed("no", code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    assert seen(ok, directories={1: denied, 2: denied, 3: denied})[0] == HEALTHY
    silent = NoBrokerAvailable("broker 3 is down")
    status, sentence, links = seen(ok, directories={1: [DISK], 2: [DISK], 3: silent})
    assert (status, sentence, links) == (DEGRADED, "Broker 3 does not answer.", ["/brokers/3"])
    assert seen(ok, directories={2: silent, 3: silent})[1] == "Brokers 2, 3 do not answer."


def test_disks_that_fail_or_are_nearly_full() -> None:
    ok = topics(a=partition(1, (1,), (1,)))
    broken = LogDirectory("/data", "KAFKA_STORAGE_ERROR", -1, -1, {})
    status, sentence, links = seen(ok, directories={2: [broken]})
    assert (status, links) == (CRITICAL, ["/brokers/2/disks"])
    assert sentence == "Log directory /data of broker 2 is offline."
    full = LogDirectory("/data", None, 1_000, 49, {})
    assert seen(ok, directories={2: [full]})[:2] == (
        DEGRADED,
        "Log directory /data of broker 2 has 4.9 % of its disk left.",
    )
    unknown = LogDirectory("/data", None, -1, -1, {})
    assert seen(ok, directories={2: [unknown]})[0] == HEALTHY


def test_controllers_without_a_leader_are_critical_and_unseen_ones_are_not() -> None:
    ok = topics(a=partition(1, (1,), (1,)))
    status, _, links = seen(ok, controller=Controller(None, is_missing=True))
    assert (status, links) == (CRITICAL, ["/quorum"])
    assert seen(ok, controller=Controller(None))[0] == HEALTHY


def test_many_partitions_are_not_all_named() -> None:
    many = {f"t{n}": partition(-1, (1,), (1,)) for n in range(1_200)}
    _, sentence, _ = seen(topics(**many))
    assert sentence == (
        "1,200 of 1,200 partitions without a leader (t0-0, t1-0, t10-0 and 1,197 more)."
    )


def test_certificates_that_end_soon_are_a_problem() -> None:
    ok = topics(a=partition(1, (1,), (1,)))

    def with_days(days: float) -> tuple[str, str, list[str]]:
        expires_at_ms = NOW_MS + int(days * DAY_MS)
        return seen(ok, certificates=[Certificate("brokers 1, 2", "CN=b", expires_at_ms)])

    assert with_days(URGENT_DAYS + 0.1)[0] == HEALTHY
    assert with_days(URGENT_DAYS - 0.1)[:2] == (
        DEGRADED,
        "The certificate of brokers 1, 2 ends within 3 days.",
    )
    assert with_days(-0.1)[:2] == (CRITICAL, "The certificate of brokers 1, 2 has ended.")
