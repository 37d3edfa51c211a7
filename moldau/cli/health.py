"""`moldau health`: is the cluster well, in one sentence and one exit status, and what to do next.

Owns what counts as a fault, and which fault explains which: partitions that only lack replicas on a
broker that is down have no advice of their own. Invariants: a check that may not be made is named,
and never counts as passed in silence; the number of requests grows with the brokers, and by one for
every 2,000 partitions, not with the topics.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Final, NamedTuple, TypeVar

from moldau import client
from moldau.cli.asking import counted
from moldau.cli.log_sizes import ANSWER_TIMEOUT_MS, Directories, log_directories
from moldau.cli.options import AsJson, ClusterAccess
from moldau.cli.output import age_text, print_json, say, warn
from moldau.cli.parameters import Within

MIN_ISR: Final = "min.insync.replicas"
LAG_MS: Final = 10_000
"""A voter that has not caught up with the leader for so long is a fault."""
LEAST_FREE_PERCENT: Final = 5
SOON_DAYS: Final = 30
"""So long before a broker's certificate expires it is said, as brokers do in their logs."""
URGENT_DAYS: Final = 3
"""So long before it is a fault."""
LOOK_EVERY_S: Final = 1.0
MOST_NAMED: Final = 3

Value = TypeVar("Value")


class Status(StrEnum):
    """How the cluster is."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    """It serves everything; one more fault may be too much."""
    FAILING = "failing"
    """It refuses what clients or administrators ask for."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be."""

    check: str
    text: str
    status: Status = Status.DEGRADED
    advice: str | None = None
    items: Sequence[object] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """What one look has found, what will come, and which checks could not be made, with why."""

    findings: Sequence[Finding]
    soon: Sequence[Finding] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    unchecked: Mapping[str, str] = field(default_factory=dict)
    cluster_id: str | None = None

    @property
    def status(self) -> Status:
        found = {each.status for each in self.findings}
        worst_first = (Status.FAILING, Status.DEGRADED)
        return next((each for each in worst_first if each in found), Status.HEALTHY)

    @property
    def sentence(self) -> str:
        if self.findings:
            return f"{self.status}: {'; '.join(each.text for each in self.findings)}"
        counts = (counted(count, what) for what, count in self.counts.items())
        return f"{self.status}: {', '.join(counts)}"

    @property
    def advice(self) -> list[str]:
        """What to do next, the most urgent first."""
        ordered = sorted(self.findings, key=lambda each: each.status is not Status.FAILING)
        return list(dict.fromkeys(each.advice for each in ordered if each.advice is not None))

    def document(self) -> dict[str, object]:
        return {
            "status": self.status,
            "healthy": not self.findings,
            "summary": self.sentence,
            "next": self.advice,
            "cluster_id": self.cluster_id,
            **{f"{what}_count": count for what, count in self.counts.items()},
            "findings": [asdict(each) for each in self.findings],
            "soon": [asdict(each) for each in self.soon],
            "not_checked": [
                {"check": check, "error": error} for check, error in self.unchecked.items()
            ],
        }


class _Seen(NamedTuple):
    """What was asked of the cluster; None where that was refused."""

    cluster: client.ClusterDescription
    topics: Mapping[str, client.TopicDescription]
    directories: Directories
    quorum: client.QuorumDescription | client.KafkaError | None
    min_isr: Mapping[str, int] | None
    moves: Mapping[client.TopicPartition, client.Reassignment] | None

    @property
    def live_ids(self) -> set[int]:
        return {each.node_id for each in self.cluster.brokers if not each.fenced}

    @property
    def fenced_ids(self) -> list[int]:
        return sorted(each.node_id for each in self.cluster.brokers if each.fenced)


def health(
    access: ClusterAccess,
    *,
    wait: Annotated[
        float, "--wait SECONDS", Within(0), "Look again until it is healthy, for so long at most."
    ] = 0.0,
    quiet: Annotated[
        bool, "--quiet -q", "Print nothing about a healthy cluster, for cron."
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Say whether the cluster is healthy, and what to do next.

    Looks at brokers, the quorum of controllers, partitions without a leader, below
    min.insync.replicas or under-replicated, log directories, moves and the certificates that
    brokers show. The exit status is 0 when all is well and 1 otherwise, also when no broker can be
    reached.
    """
    report = access.ask(client.Admin, lambda admin: _watched(admin, access.timeout_ms, wait))
    if as_json:
        print_json(report.document())
    elif report.findings or not quiet:
        say(report.sentence)
        for advice in report.advice:
            say(f"next: {advice}")
    if not as_json:
        for each in report.soon:  # with --quiet, too: cron sends it while there is time
            say(f"soon: {each.text}: {each.advice}")
    if report.unchecked:
        why = next(iter(report.unchecked.values()))
        warn(f"not checked: {', '.join(report.unchecked)}: {why}")
    if report.findings:
        sys.exit(1)


async def _watched(admin: client.Admin, timeout_ms: float, wait_s: float) -> Report:
    """The first report without a finding, or the last one within that time."""
    deadline_s = time.monotonic() + wait_s
    while True:
        try:
            report = await look(admin, min(timeout_ms, ANSWER_TIMEOUT_MS))
        except client.ConfigurationError:
            raise
        except client.KafkaError as error:
            advice = "see whether the brokers run, and whether this is their address"
            report = Report([Finding("reachable", str(error), Status.FAILING, advice)])
        if not report.findings or time.monotonic() + LOOK_EVERY_S > deadline_s:
            return report
        await asyncio.sleep(LOOK_EVERY_S)


async def look(admin: client.Admin, timeout_ms: float) -> Report:
    """Ask the cluster, and judge its answers.

    Args:
        timeout_ms: how long one broker, or the quorum, may take.

    Raises:
        KafkaError: no broker can be asked about brokers and topics.
    """
    unchecked: dict[str, str] = {}

    async def permitted(check: str, call: Awaitable[Value]) -> Value | None:
        """What comes of a call; None where it is not allowed, or not served."""
        try:
            return await call
        except (client.AuthorizationFailed, client.UnsupportedByBroker) as error:
            unchecked[check] = str(error)
            return None

    cluster = await permitted("fenced brokers", admin.describe_cluster(include_fenced_brokers=True))
    if cluster is None:  # Apache Kafka before 4.0 only names those that serve
        cluster = await admin.describe_cluster()
    live = [each.node_id for each in cluster.brokers if not each.fenced]
    topics, directories = await asyncio.gather(
        admin.describe_topics(), log_directories(admin, live, timeout_ms)
    )
    min_isr = await permitted(MIN_ISR, _min_isr(admin, topics))
    certificates = await _certificates(admin, directories, timeout_ms)
    # Last: a broker passes this on, and without a leader of the quorum answers nothing that comes
    # behind it on the same connection.
    quorum = await permitted("quorum", _quorum(admin, timeout_ms))
    moves: Mapping[client.TopicPartition, client.Reassignment] | None = {}
    if not isinstance(quorum, client.KafkaError):  # which answers about moves
        moves = await permitted("moves", admin.list_partition_reassignments())
    for found in directories.values():
        if isinstance(found, client.AuthorizationFailed):
            unchecked["log directories"] = str(found)
    seen = _Seen(cluster, topics, directories, quorum, min_isr, moves)
    counts = {"broker": len(cluster.brokers)}
    if isinstance(quorum, client.QuorumDescription):
        counts["controller"] = len(quorum.voters)
    counts["topic"] = len(topics)
    counts["partition"] = sum(len(each.partitions) for each in topics.values())
    expiring = list(_of_certificates(certificates))
    urgent = [each for each, days in expiring if days < URGENT_DAYS]
    soon = [each for each, days in expiring if days >= URGENT_DAYS]
    return Report([*_judged(seen), *urgent], soon, counts, unchecked, cluster.cluster_id)


async def _certificates(
    admin: client.Admin, directories: Directories, timeout_ms: float
) -> dict[int, bytes]:
    """The certificates that brokers have shown, in DER; none of those without TLS, and of those
    that did not answer.
    """
    found: dict[int, bytes] = {}

    async def ask(broker_id: int) -> None:
        with suppress(client.KafkaError):
            shown = await admin.describe_certificates([broker_id], timeout_ms=timeout_ms)
            found.update({each: der for each, der in shown.items() if der is not None})

    await asyncio.gather(*map(ask, set(directories) - set(_silent(directories))))
    return found


async def _quorum(
    admin: client.Admin, timeout_ms: float
) -> client.QuorumDescription | client.KafkaError:
    try:
        return await admin.describe_metadata_quorum(timeout_ms=timeout_ms)
    except (client.AuthorizationFailed, client.UnsupportedByBroker):
        raise
    except client.KafkaError as error:
        return error


async def _min_isr(admin: client.Admin, names: Iterable[str]) -> dict[str, int]:
    """Each topic's min.insync.replicas, wherever that comes from; none for one that is gone."""
    resources = {
        client.ConfigResource(client.ConfigResourceType.TOPIC, name): name for name in names
    }
    if not resources:
        return {}
    try:
        configs = await admin.describe_configs(resources, keys=[MIN_ISR])
    except client.UnknownTopicOrPartition:  # deleted since it was described
        left = set(await admin.list_topics())
        resources = {each: name for each, name in resources.items() if name in left}
        configs = await admin.describe_configs(resources, keys=[MIN_ISR])
    values = {resources[each]: entries.get(MIN_ISR) for each, entries in configs.items()}
    return {name: int(each.value) for name, each in values.items() if each and each.value}


# -- judging ---------------------------------------------------------------------------------------


def _judged(seen: _Seen) -> Iterator[Finding]:
    """All findings, causes before what follows from them."""
    yield from _of_quorum(seen.quorum)
    fenced = seen.fenced_ids
    silent = _silent(seen.directories)
    if fenced:
        unregister = " and ".join(f"`moldau brokers unregister {each}`" for each in fenced)
        gone = "it is" if len(fenced) == 1 else "they are"
        yield Finding(
            "fenced brokers",
            f"{_named('broker', fenced)} fenced",
            advice=f"start {_listed('broker', fenced)}; if {gone} gone for good, {unregister}",
            items=fenced,
        )
    if silent:
        does = "does" if len(silent) == 1 else "do"
        yield Finding(
            "silent brokers",
            f"{_listed('broker', silent)} {does} not answer",
            advice=f"look at the log of {_listed('broker', silent)}, and at the network between",
            items=silent,
        )
    yield from _of_directories(seen.directories)
    yield from _of_moves(seen)
    broken = {
        broker_id
        for broker_id, found in seen.directories.items()
        if not isinstance(found, client.KafkaError) and any(each.error for each in found)
    }
    yield from _of_partitions(seen, {*fenced, *silent, *broken})


def _silent(directories: Directories) -> list[int]:
    """The brokers that serve, and do not answer."""
    return sorted(
        broker_id
        for broker_id, found in directories.items()
        if isinstance(found, client.KafkaError)
        and not isinstance(found, client.AuthorizationFailed | client.UnsupportedByBroker)
    )


def _of_quorum(quorum: client.QuorumDescription | client.KafkaError | None) -> Iterator[Finding]:
    if quorum is None:
        return
    leader = None if isinstance(quorum, client.KafkaError) else quorum.voter(quorum.leader_id)
    if isinstance(quorum, client.KafkaError) or leader is None:
        why = f" ({quorum})" if isinstance(quorum, client.KafkaError) else ""
        yield Finding(
            "quorum",
            f"the controllers have no leader{why}",
            Status.FAILING,
            "start a majority of the controllers; "
            "`moldau quorum status --bootstrap-controller HOST:PORT` asks one of them",
        )
        return
    now_ms = leader.last_caught_up_timestamp_ms
    late = [
        each
        for each in quorum.voters
        if each is not leader
        and (
            each.last_caught_up_timestamp_ms is None
            or (now_ms or 0) - each.last_caught_up_timestamp_ms > LAG_MS
        )
    ]
    if not late:
        return
    ids = [each.replica_id for each in late]
    fetched = {each.replica_id: age_text(each.last_fetch_timestamp_ms, now_ms) for each in late}
    ages = ", ".join(f"last fetch {fetched[each] or 'never'}" for each in ids[:MOST_NAMED])
    spare = (len(quorum.voters) - 1) // 2 - len(late)
    warning = "; one more and nothing can be changed" if spare <= 0 else ""
    yield Finding(
        "quorum",
        f"{_named('controller', ids)} behind in the quorum ({ages}){warning}",
        advice=f"start {_listed('controller', ids)}, or look into its log",
        items=ids,
    )


def _of_directories(directories: Directories) -> Iterator[Finding]:
    for broker_id, found in sorted(directories.items()):
        if isinstance(found, client.KafkaError):
            continue
        for each in found:
            where = f"log directory {each.directory} of broker {broker_id}"
            item = {"broker_id": broker_id, "directory": each.directory, "error": each.error}
            if each.error is not None:
                yield Finding(
                    "log directories",
                    f"{where} is offline",
                    advice=f"mend or replace the disk, then restart broker {broker_id}",
                    items=[item],
                )
            elif each.total_bytes > 0 and 0 <= each.usable_bytes < (
                each.total_bytes * LEAST_FREE_PERCENT / 100
            ):
                percent = 100 * each.usable_bytes / each.total_bytes
                yield Finding(
                    "disk space",
                    f"{where} has {percent:.1f} % of its disk left",
                    advice="shorten the retention of large topics (`moldau topics list --sort "
                    "size`), or move some to other brokers",
                    items=[item],
                )


def _of_certificates(certificates: Mapping[int, bytes]) -> Iterator[tuple[Finding, float]]:
    """Those that expire, with the days left: one for brokers that show the same one."""
    if not certificates:
        return
    from moldau.x509 import end_of, subject_name

    brokers: dict[bytes, list[int]] = {}
    for broker_id, der in sorted(certificates.items()):
        brokers.setdefault(der, []).append(broker_id)
    for der, ids in brokers.items():
        end = end_of(der)
        days = (end - datetime.now(UTC)) / timedelta(days=1)
        if days < SOON_DAYS:
            when = "has expired" if days < 0 else f"expires in {days:.0f} days"
            finding = Finding(
                "certificates",
                f"the certificate of {_listed('broker', ids)} {when}, on {end:%Y-%m-%d}",
                advice="`moldau certificates renew DIR` renews it where --secure has made the "
                "cluster; else put a new file in the place of the old one",
                items=[{"broker_ids": ids, "subject": subject_name(der), "expires_at": f"{end}"}],
            )
            yield finding, days


def _of_moves(seen: _Seen) -> Iterator[Finding]:
    """Moves to brokers that do not serve: they do not go on by themselves."""
    waiting = {
        partition: sorted(set(move.adding_replicas) - seen.live_ids)
        for partition, move in sorted((seen.moves or {}).items())
        if set(move.adding_replicas) - seen.live_ids
    }
    if waiting:
        ids = sorted({each for ids in waiting.values() for each in ids})
        does = "which does" if len(ids) == 1 else "which do"
        moves = "1 move waits" if len(waiting) == 1 else f"{len(waiting)} moves wait"
        some = " ".join(f"{topic}:{index}" for topic, index in list(waiting)[:MOST_NAMED])
        yield Finding(
            "moves",
            f"{moves} for {_listed('broker', ids)}, {does} not serve",
            advice=f"start {_listed('broker', ids)}, or give moves up: "
            f"`moldau topics reassign cancel {some}{' …' if len(waiting) > MOST_NAMED else ''}`",
            items=list(map(str, waiting)),
        )


def _of_partitions(seen: _Seen, troubled: Collection[int]) -> Iterator[Finding]:
    """What is wrong with partitions; advice only where no broker's trouble explains it."""
    live, moves, min_isr = seen.live_ids, seen.moves or {}, seen.min_isr or {}
    offline: dict[client.TopicPartition, set[int]] = {}
    refusing: dict[client.TopicPartition, set[int]] = {}
    lacking: dict[client.TopicPartition, set[int]] = {}
    for name, topic in sorted(seen.topics.items()):
        needed = min_isr.get(name, 0)
        for each in topic.partitions:
            partition = client.TopicPartition(name, each.partition)
            adding = moves[partition].adding_replicas if partition in moves else ()
            missing = set(each.replicas) - set(each.isr) - set(adding)
            if each.leader not in live:
                offline[partition] = set(each.replicas) - live or missing
            elif len(each.isr) < min(needed, len(each.replicas)):  # which brokers ask for
                refusing[partition] = missing
            elif len(each.isr) < len(each.replicas) - len(adding):
                lacking[partition] = missing
    total = sum(len(each.partitions) for each in seen.topics.values())

    def finding(
        check: str, found: Mapping[client.TopicPartition, set[int]], text: str, advice: str
    ) -> Iterator[Finding]:
        if found:
            brokers = {each for ids in found.values() for each in ids}
            is_explained = bool(brokers) and brokers <= set(troubled)
            status = Status.DEGRADED if found is lacking else Status.FAILING
            amount = f"{len(found):,} of {counted(total, 'partition')}"
            yield Finding(
                check,
                f"{amount} {text} ({_few(found)})",
                status,
                None if is_explained else advice,
                list(map(str, found)),
            )

    yield from finding(
        "partitions without a leader",
        offline,
        "without a leader",
        "`moldau topics describe --unavailable-partitions` shows which brokers have them",
    )
    yield from finding(
        f"partitions below {MIN_ISR}",
        refusing,
        f"below {MIN_ISR}, where acks=all is refused",
        "`moldau topics describe --under-min-isr-partitions` shows which replicas are missing",
    )
    yield from finding(
        "under-replicated partitions",
        lacking,
        "under-replicated",
        "`moldau topics describe --under-replicated-partitions --watch` shows them catch up",
    )


def _named(what: str, ids: Sequence[int]) -> str:
    return f"{_listed(what, ids)} {'is' if len(ids) == 1 else 'are'}"


def _listed(what: str, ids: Sequence[int]) -> str:
    """`broker 1`, `brokers 1, 2`."""
    return f"{what}{'' if len(ids) == 1 else 's'} {', '.join(map(str, ids))}"


def _few(partitions: Collection[client.TopicPartition]) -> str:
    """The first ones, and how many there are beside them."""
    named = ", ".join(map(str, list(partitions)[:MOST_NAMED]))
    more = len(partitions) - MOST_NAMED
    return f"{named} and {more:,} more" if more > 0 else named
