"""Faulty clients, and bugs injected into a broker, are found in what real clients saw; else nothing
is found.

Owns the runs and what they must find. `test_injected_bugs` runs each of these tests in its own
process, which librdkafka may end.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

import pytest

from moldau.local import node_process
from moldau.testing import Cluster
from tests.kit import judging
from tests.system.transactions import migrating_members
from tests.system.transactions.check_members import check_members
from tests.system.transactions.checker import check
from tests.system.transactions.clients import ABORT_SHARE, Setting, TailReader
from tests.system.transactions.faulty_clients import (
    AbortsCommits,
    CommitsAborts,
    CommitsEarly,
    CommitsTooLittle,
    SendsHalf,
    SendsTwice,
    SwapsOffsets,
    conceal_revocations,
)
from tests.system.transactions.findings import Finding, Findings
from tests.system.transactions.history import History
from tests.system.transactions.migrating_members import (
    DIRECTIONS,
    MigratingMember,
)
from tests.system.transactions.patched_node import BUG_VARIABLE, COMMAND
from tests.system.transactions.preconditions import (
    aborted_ones_read,
    committed_across,
    committed_offsets,
    early_ones_read,
    partitions_that_came_back,
)
from tests.system.transactions.run_until import run_until
from tests.system.transactions.senders import Sender
from tests.system.transactions.workload import GROUPS, OWNERS_S, Workload

CONFIG: Final = {
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.session.timeout.ms": "6000",
    "group.consumer.heartbeat.interval.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "500",
}
ENOUGH: Final = 8
LIMIT_S: Final = 600
DIRTY: Final = "dirty reader"

#: Which client is faulty in which way, and what that is called.
Fault = Callable[[Sender, History, Counter[str]], Sender]
FAULTY: Final[dict[str, tuple[Fault, set[str]]]] = {
    "random-1": (AbortsCommits, {"lost-write"}),
    "random-2": (CommitsAborts, {"aborted-read"}),
    "random-3": (SendsTwice, {"duplicate"}),
    "random-4": (SendsHalf, {"lost-write", "torn-transaction"}),
    "random-5": (CommitsEarly, {"precommitted-read"}),
    "random-6": (SwapsOffsets, {"inconsistent-offset"}),
    "classic-1": (SendsHalf, {"lost-write", "unprocessed"}),
    "consumer-1": (CommitsTooLittle, {"offset-went-back"}),
}
ENOUGH_FAULTS: Final = 4

#: What each bug of a broker is found as, and what must have come about before it can show.
BUGS: Final[dict[str, tuple[set[str], Callable[[History], int]]]] = {
    "aborted-ones-not-named": ({"aborted-read"}, aborted_ones_read),
    "stable-offset-is-high-watermark": ({"precommitted-read"}, early_ones_read),
    "marker-of-one-partition-aborts": (
        {"torn-transaction", "lost-write"},
        partial(committed_across, partition=0),
    ),
    "group-markers-abort": ({"offset-went-back", "torn-transaction"}, committed_offsets),
}

pytestmark = [pytest.mark.system, pytest.mark.timeout(LIMIT_S)]


def enough(workload: Workload) -> bool:
    """Every client has done something worth looking at."""
    clients = (*workload.writers, *workload.pipelines)
    return all(client.committed_count >= ENOUGH for client in clients)


def have_migrated(workload: Workload) -> bool:
    """The member of each group that is to has changed its protocol in both directions."""
    members = [each for each in workload.pipelines if isinstance(each, MigratingMember)]
    return all(member.migrations[way] for member in members for way in DIRECTIONS)


def has_shared_partition(history: History) -> bool:
    """Whether two members have had a partition at once, by now."""
    findings = Findings()
    check_members(history, findings)
    return not findings.is_clean


@pytest.fixture
def short_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members migrate often, and come back while the others rebalance."""
    monkeypatch.setattr(MigratingMember, "life_span", (2, 8))
    monkeypatch.setattr(migrating_members, "AWAY_S", 0.5)


@pytest.fixture
def bootstrap() -> Iterator[str]:
    with Cluster(config=CONFIG) as cluster:
        yield cluster.bootstrap_server


@pytest.mark.usefixtures("short_lives")
def test_honest_clients_of_an_honest_broker(bootstrap: str):
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    setting, findings, complaints = run_until(
        bootstrap,
        seed,
        lambda workload: (
            enough(workload)
            and have_migrated(workload)
            and partitions_that_came_back(workload.setting.history) > 0
        ),
        groups=tuple(GROUPS),
        has_version_2=True,
        settle_s=OWNERS_S,
    )
    print(findings.counts)
    assert complaints == []
    with judging():
        assert findings.is_clean, findings.details(setting.history)
    conceal_revocations(setting.history)
    assert check(setting.history).kinds() == {"shared-partition"}


@pytest.mark.long
@pytest.mark.usefixtures("short_lives")
def test_an_upgrade_that_forgets_what_is_read_is_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(node_process, "COMMAND", COMMAND)
    monkeypatch.setenv(BUG_VARIABLE, "upgrade-forgets-what-is-read")
    monkeypatch.setattr(migrating_members, "ENDS", {"closed": 1})
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    with Cluster(config=CONFIG) as cluster:
        _, findings, _ = run_until(
            cluster.bootstrap_server,
            seed,
            lambda workload: has_shared_partition(workload.setting.history),
            groups=("classic", "eager"),
            has_version_2=False,
            settle_s=10.0,
        )
    print(findings.summary())
    assert "shared-partition" in findings.kinds()


def dirty_reader(setting: Setting) -> Sequence[TailReader]:
    return [TailReader(setting, DIRTY, is_committed_only=False, told_committed_only=True)]


def test_every_faulty_client_is_found(bootstrap: str):
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    history: list[History] = []
    told: dict[str, Counter[str]] = {who: Counter() for who in FAULTY}

    def faulty(who: str, fault: Fault) -> Callable[[Sender], Sender]:
        return lambda sender: fault(sender, history[0], told[who])

    def all_were_faulty(workload: Workload) -> bool:
        return (
            enough(workload)
            and all(count.total() >= ENOUGH_FAULTS for count in told.values())
            and aborted_ones_read(history[0], DIRTY, but="random-2") >= ENOUGH_FAULTS
        )

    def extra(setting: Setting) -> Sequence[TailReader]:
        history.append(setting.history)
        return dirty_reader(setting)

    setting, findings, _ = run_until(
        bootstrap,
        seed,
        all_were_faulty,
        groups=("classic", "consumer"),
        has_version_2=False,
        random_count=len([name for name in FAULTY if name.startswith("random")]),
        faulty={name: faulty(name, fault) for name, (fault, _) in FAULTY.items()},
        extra=extra,
        settle_s=5.0,  # one group never gets to its end
    )
    processes = {each.number: each.process for each in setting.history.transactions}

    def said_of(who: str, case: Finding) -> bool:
        if case.text.startswith(f"{who.removesuffix('-1')} is at"):
            return True  # a group's offset belongs to no single member
        return any(processes[number].startswith(f"{who}.") for number in case.transactions)

    for who, (_, kinds) in FAULTY.items():
        found = {case.kind for case in findings.cases if said_of(who, case)}
        assert kinds <= found, f"{who} was found to be {found}: {findings.summary()}"
    assert any(DIRTY in case.text for case in findings.of("aborted-read"))


@pytest.mark.parametrize(
    ("bug", "kinds", "preconditions"),
    [(bug, kinds, preconditions) for bug, (kinds, preconditions) in BUGS.items()],
    ids=BUGS,
)
def test_a_broker_with_a_bug_is_found(
    bug: str,
    kinds: set[str],
    preconditions: Callable[[History], int],
    monkeypatch: pytest.MonkeyPatch,
):
    """`preconditions`: what must have come about before the bug can show, counted."""
    monkeypatch.setattr(node_process, "COMMAND", COMMAND)
    monkeypatch.setenv(BUG_VARIABLE, bug)
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    with Cluster(config=CONFIG) as cluster:
        setting, findings, _ = run_until(
            cluster.bootstrap_server,
            seed,
            lambda workload: preconditions(workload.setting.history) >= ENOUGH,
            groups=("classic",) if bug == "group-markers-abort" else (),
            has_version_2=False,
            settle_s=3.0,
            abort_share=0.5 if preconditions is aborted_ones_read else ABORT_SHARE,
        )
    print(findings.summary())
    assert kinds <= set(findings.kinds()), f"with {preconditions(setting.history)} preconditions"
