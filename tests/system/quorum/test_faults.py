"""Three controllers and three brokers on hosts of their own, under kills, pauses and cut links."""

from __future__ import annotations

import os
import random
import secrets
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from benchmarks.wire import CREATE_TOPICS_VERSION, create_topic_request
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p03_metadata import MetadataRequest, MetadataRequestTopic
from tests.kit import judging
from tests.kit.waiting import until
from tests.system.quorum.hosts import Hosts, why_not
from tests.system.quorum.metadata_logs import check_agreement
from tests.system.quorum.spread_cluster import SESSION_TIMEOUT_MS, SpreadCluster, host_name
from tests.system.quorum.topic_load import TopicLoad

CONTROLLER_IDS: Final = (101, 102, 103)
BROKER_IDS: Final = (1, 2, 3)
ROUNDS: Final = int(os.environ.get("MOLDAU_FAULT_ROUNDS", "6"))
CONVERGE_DEADLINE_S: Final = 60.0
METADATA_VERSION: Final = 8

REASON = why_not()
pytestmark = [pytest.mark.skipif(REASON != "", reason=REASON), pytest.mark.timeout(600)]


@contextmanager
def running(tmp_path: Path) -> Iterator[SpreadCluster]:
    names = [host_name(node_id) for node_id in (*CONTROLLER_IDS, *BROKER_IDS)]
    with (
        Hosts(names) as hosts,
        SpreadCluster(hosts, tmp_path, CONTROLLER_IDS, BROKER_IDS) as cluster,
    ):
        yield cluster


def leader_of(cluster: SpreadCluster, asked: int, topic: str) -> int:
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
    )
    with cluster.wire(asked) as wire:
        described = wire.ask(request, METADATA_VERSION).topics[0]
    return described.partitions[0].leader_id if described.partitions else -1


def topics_of(cluster: SpreadCluster, asked: int) -> set[str]:
    with cluster.wire(asked) as wire:
        answer = wire.ask(
            MetadataRequest(topics=None, allow_auto_topic_creation=False), METADATA_VERSION
        )
    return {topic.name for topic in answer.topics}


def wait_converged(cluster: SpreadCluster) -> int:
    """All brokers have applied the same records; returns the offset of the last one."""

    def same() -> list[dict[str, object]] | None:
        seen = [cluster.metadata(each) for each in cluster.broker_ids]
        return seen if all(seen) and len({str(each) for each in seen}) == 1 else None

    seen = until(same, what="equal digests", deadline_s=CONVERGE_DEADLINE_S)
    assert seen is not None
    return int(str(seen[0]["last_applied_offset"]))


def other_controllers(node_id: int) -> list[int]:
    return [each for each in CONTROLLER_IDS if each != node_id]


def wait_active(cluster: SpreadCluster, asked: int, unless: int = -1) -> tuple[int, int]:
    def active() -> tuple[int, int] | None:
        leader_id, leader_epoch = cluster.active_controller(asked)
        return (leader_id, leader_epoch) if leader_id not in (-1, unless) else None

    found = until(active, what="an active controller", deadline_s=CONVERGE_DEADLINE_S)
    assert found is not None
    return found


def finish(cluster: SpreadCluster, load: TopicLoad) -> None:
    """Nothing acknowledged is lost, every image is the same, every epoch had one leader."""
    wait_active(cluster, cluster.broker_ids[0])
    last_offset = wait_converged(cluster)
    cluster.wait_voters_have(last_offset)
    for broker_id in cluster.broker_ids:
        missing = set(load.acknowledged) - topics_of(cluster, broker_id)
        with judging():
            assert not missing, f"acknowledged and lost: {sorted(missing)}"
    for node_id in (*cluster.broker_ids, *cluster.controller_ids):
        assert cluster.stop(node_id) == 0, cluster.log_tail(node_id)
    homes = [cluster.home(each) for each in (*cluster.controller_ids, *cluster.broker_ids)]
    check_agreement(homes, last_offset + 1)


def test_an_isolated_active_controller_is_replaced_and_steps_down(tmp_path: Path):
    with running(tmp_path) as cluster:
        isolated, old_epoch = wait_active(cluster, 1)
        with TopicLoad(cluster.wire, list(BROKER_IDS), random.Random(1)) as load:
            until(lambda: load.acknowledged, what="a topic before")
            cluster.hosts.isolate(host_name(isolated))
            leader_id, leader_epoch = wait_active(cluster, 2, unless=isolated)
            assert leader_epoch > old_epoch
            count = len(load.acknowledged)
            until(lambda: len(load.acknowledged) > count, what="a topic under the new one")
            request = create_topic_request("only-here", 1)
            request.timeout_ms = 3_000
            with cluster.wire(isolated) as wire:
                refused = wire.ask(request, CREATE_TOPICS_VERSION).topics[0].error_code
            assert refused in (ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT)
            cluster.hosts.heal()
            until(
                lambda: cluster.active_controller(isolated)[0] in other_controllers(isolated),
                what="the isolated one follows",
                deadline_s=CONVERGE_DEADLINE_S,
            )
        assert "only-here" not in topics_of(cluster, 1)
        assert leader_id != isolated
        finish(cluster, load)


def test_a_broker_that_falls_silent_is_fenced_and_loses_its_leaderships(tmp_path: Path):
    with running(tmp_path) as cluster:
        request = create_topic_request("led", 6)
        request.topics[0].replication_factor = 3
        with cluster.wire(1) as wire:
            assert wire.ask(request, CREATE_TOPICS_VERSION).topics[0].error_code == 0
            wire.wait_for_leaders("led", 6)
        silent = leader_of(cluster, 1, "led")
        asked = next(each for each in BROKER_IDS if each != silent)
        cluster.pause(silent)
        until(
            lambda: leader_of(cluster, asked, "led") not in (silent, -1),
            what=f"another leader than the silent broker {silent}",
            deadline_s=SESSION_TIMEOUT_MS / 1000 + CONVERGE_DEADLINE_S,
        )
        cluster.resume(silent)
        cluster.wait_ready(silent)
        with TopicLoad(cluster.wire, [silent], random.Random(2)) as load:
            until(lambda: load.acknowledged, what="the broker that came back forwards")
        finish(cluster, load)


def test_kills_pauses_and_cuts_by_turns(tmp_path: Path):
    seed = int(os.environ.get("MOLDAU_FAULT_SEED", "0")) or secrets.randbits(32)
    print(f"MOLDAU_FAULT_SEED={seed}")
    dice = random.Random(seed)
    with running(tmp_path) as cluster:
        faults: list[Callable[[int], Callable[[], None]]] = [_kill(cluster), _pause(cluster)]
        faults += [_isolate(cluster), _cut_one_way(cluster, dice)]
        with TopicLoad(cluster.wire, list(BROKER_IDS), dice) as load:
            for number in range(ROUNDS):
                victim = dice.choice([*CONTROLLER_IDS, *CONTROLLER_IDS, *BROKER_IDS])
                if number % 2 == 0:  # often enough the one that matters most
                    victim = wait_active(cluster, dice.choice(BROKER_IDS))[0]
                undo = dice.choice(faults)(victim)
                count = len(load.acknowledged)
                until(
                    lambda count=count: len(load.acknowledged) > count + 5,
                    what=f"topics created while {victim} suffers",
                    # The load asks a victim too, by chance many times: each costs it 10 s.
                    deadline_s=3 * CONVERGE_DEADLINE_S,
                )
                undo()
        for broker_id in BROKER_IDS:
            cluster.wait_ready(broker_id)
        finish(cluster, load)
        print(f"{len(load.acknowledged)} acknowledged, {len(load.unsure)} unsure")


def _kill(cluster: SpreadCluster) -> Callable[[int], Callable[[], None]]:
    def fault(victim: int) -> Callable[[], None]:
        cluster.kill(victim)
        return lambda: cluster.launch(victim)

    return fault


def _pause(cluster: SpreadCluster) -> Callable[[int], Callable[[], None]]:
    def fault(victim: int) -> Callable[[], None]:
        cluster.pause(victim)
        return lambda: cluster.resume(victim)

    return fault


def _isolate(cluster: SpreadCluster) -> Callable[[int], Callable[[], None]]:
    def fault(victim: int) -> Callable[[], None]:
        cluster.hosts.isolate(host_name(victim))
        return cluster.hosts.heal

    return fault


def _cut_one_way(
    cluster: SpreadCluster, dice: random.Random
) -> Callable[[int], Callable[[], None]]:
    def fault(victim: int) -> Callable[[], None]:
        peer = dice.choice(other_controllers(victim))
        cluster.hosts.cut_one_way(host_name(victim), host_name(peer))
        return cluster.hosts.heal

    return fault


def test_the_checker_finds_a_second_leader(tmp_path: Path):
    """Two logs that were written apart, in the same epoch, must not pass."""
    homes = []
    for node_id in (101, 102):
        home = tmp_path / f"alone-{node_id}"
        home.mkdir()
        (home / "server.properties").write_text(
            f"process.roles=broker,controller\nnode.id={node_id}\n"
            "listeners=PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0\n"
            "controller.listener.names=CONTROLLER\n"
            "controller.quorum.bootstrap.servers=127.0.0.1:9093\n"
            f"log.dirs={home / 'data'}\n"
        )
        _run_once(home)
        homes.append(home)
    with pytest.raises(AssertionError, match="both led epoch"):
        check_agreement(homes, 10)


def _run_once(home: Path) -> None:
    import sys

    command = [sys.executable, "-m", "moldau.broker", str(home / "server.properties")]
    with subprocess.Popen(
        [*command, "--format-if-needed", "--announce"], stdout=subprocess.PIPE, text=True
    ) as node:
        assert node.stdout is not None
        assert node.stdout.readline().startswith("ready: ")
        node.terminate()
