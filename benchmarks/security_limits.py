"""Part of `bench_security`: what the authorizer costs a request, and a neighbour over its quota.

Owns two nodes that differ in the authorizer alone, and one with a client that is always over its
quota. Invariant: what is measured with and without takes turns within a round.
"""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final

from benchmarks.beside import Limits, by_turns, produce, requests, tell
from benchmarks.figures import Effort, Report, Spread, Table, at_most
from benchmarks.nodes import HOST, BrokerNode, MoldauNode, temporary_directory
from benchmarks.processes import first_on_load_core, give_way, run_load, start_load
from benchmarks.sender import SendOrder, SendOutcome
from benchmarks.stalls import watched
from benchmarks.wire import ProduceFrame, Wire, request_frame
from moldau.cli.bench.figures import taken
from moldau.metadata.image.security import AccessControlEntry
from moldau.protocol.access_control import (
    WILDCARD,
    Operation,
    PatternType,
    PermissionType,
    ResourceType,
)
from moldau.protocol.messages.p03_metadata import MetadataRequest, MetadataRequestTopic
from moldau.protocol.messages.p30_create_acls import AclCreation, CreateAclsRequest
from moldau.protocol.messages.p48_describe_client_quotas import EntityData
from moldau.protocol.messages.p49_alter_client_quotas import (
    AlterClientQuotasRequest,
    EntryData,
    OpData,
)
from moldau.server.server_connection import ANONYMOUS
from moldau.server.standard_authorizer import StandardAuthorizer

ENTRY_COUNT: Final = 10_000
PRINCIPAL_COUNT: Final = 100
PREFIX_LENGTHS: Final = 20
"""How many lengths the prefixes of one principal have: a decision looks each of them up."""

ENTRIES_PER_REQUEST: Final = 1_000
TOPIC: Final = "topic-000000-of-an-application"
NEIGHBOUR_TOPIC: Final = "neighbour"
METADATA_VERSION: Final = 12
BURST_REQUESTS: Final = 20
REQUEST_COUNT: Final = 20_000
AT_ONCE: Final = 20
DECISION_COUNT: Final = 100_000
LIMIT_MICROSECONDS: Final = 5.0

QUOTA_BYTES_PER_SECOND: Final = 2_000_000
GREEDY: Final = "greedy"
GREEDY_BATCH_BYTES: Final = 16 * 1024
SAMPLE_COUNT: Final = 4_000
TURNS: Final = 4
QUOTA_LIMIT: Final = 1.2
BESIDE: Final = "a client over its quota"


# -- the authorizer ------------------------------------------------------------------------------


def topic_name(number: int) -> str:
    """Of the topics that literal entries are about."""
    return f"topic-{number:06}-of-an-application"


def entries(count: int, principals: Sequence[str]) -> list[AccessControlEntry]:
    """So many, shared among the principals; every other one is about a prefix, a tenth deny."""
    found = []
    for number in range(count):
        turn, index = divmod(number, len(principals))
        is_prefix = turn % 2 == 1
        name = f"team-{turn:06}-" + "x" * (turn // 2 % PREFIX_LENGTHS)
        found.append(
            AccessControlEntry(
                resource_type=ResourceType.TOPIC,
                resource_name=name if is_prefix else topic_name(turn),
                pattern_type=PatternType.PREFIXED if is_prefix else PatternType.LITERAL,
                principal=principals[index],
                host=WILDCARD,
                operation=Operation.ALL if turn == 0 else Operation.WRITE,
                permission_type=PermissionType.DENY if turn % 10 == 9 else PermissionType.ALLOW,
            )
        )
    return found


def authorizer(effort: Effort, report: Report) -> None:
    """In process, then the requests of a client."""
    count = effort.count(ENTRY_COUNT, least=4 * PRINCIPAL_COUNT)
    others = [f"User:client-{number}" for number in range(PRINCIPAL_COUNT - 1)]
    sets = {
        f"{count // PRINCIPAL_COUNT} of them the client's": entries(count, [ANONYMOUS, *others]),
        "all of them the client's": entries(count, [ANONYMOUS]),
    }
    _decide(effort, report, count, sets)
    _compare(effort, report, count, next(iter(sets.values())))


def _decide(
    effort: Effort, report: Report, count: int, sets: Mapping[str, list[AccessControlEntry]]
) -> None:
    table = Table(
        ("entries", "authorize, µs"),
        f"A decision among {count:,} entries, in process, minimum / median / maximum:",
    )
    for name, found in sets.items():
        decider = StandardAuthorizer((), allows_unmentioned=False)
        decider.change({uuid.uuid4(): entry for entry in found})
        costs = [_microseconds(effort, decider, count) for _ in range(effort.rounds)]
        table.add(name, Spread.of(costs).text())
        asked = f"authorize, {count:,} entries, {name}: ≤ {LIMIT_MICROSECONDS:g} µs"
        report.targets.append(at_most(asked, Spread.of(costs), LIMIT_MICROSECONDS))
    report.tables.append(table)


def _microseconds(effort: Effort, decider: StandardAuthorizer, count: int) -> float:
    """Of a decision; names that literal entries are about, names under prefixes, unknown ones."""
    names = [
        name
        for number in range(count)
        for name in (topic_name(number), f"team-{number:06}-xxxx-of-topics", f"unknown-{number}")
    ]
    decisions = effort.count(DECISION_COUNT, least=1_000)
    asked = list(itertools.islice(itertools.cycle(names), decisions))
    begin = time.process_time()
    for name in asked:
        decider.authorize(ANONYMOUS, HOST, Operation.WRITE, ResourceType.TOPIC, name)
    return (time.process_time() - begin) / decisions * 1e6


def _compare(effort: Effort, report: Report, count: int, found: list[AccessControlEntry]) -> None:
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin",
        # So that ANONYMOUS may make the entries; its topic has some, and they decide.
        "allow.everyone.if.no.acl.found": "true",
    }
    measured: dict[tuple[str, bool], list[float]] = defaultdict(list)
    with temporary_directory() as directory, ExitStack() as stack:
        nodes = {}
        for is_checked, values in ((False, {}), (True, settings)):
            home = directory / str(is_checked)
            home.mkdir()
            node = stack.enter_context(MoldauNode(home, values, is_pinned=True))
            with node.connect() as wire:
                wire.create_topic(TOPIC)
                if is_checked:
                    _create(wire, found)
            nodes[is_checked] = node
        for number in range(-1, effort.rounds):
            for is_checked, node in sorted(nodes.items(), reverse=bool(number % 2)):
                costs = {"Produce of 1 KB": _produce(effort, node), "Metadata": _ask(effort, node)}
                for what, cost in costs.items():
                    if number >= 0:
                        measured[what, is_checked].append(cost)
    table = Table(
        ("request", "without authorizer, CPU µs", "with, CPU µs", "more, µs"),
        f"A request of a client, {count:,} entries, minimum / median / maximum:",
    )
    for what in dict.fromkeys(what for what, _ in measured):
        without, with_it = measured[what, False], measured[what, True]
        more = [b - a for a, b in zip(without, with_it, strict=True)]
        table.add(what, *(Spread.of(values).text(1) for values in (without, with_it, more)))
    report.tables.append(table)


def _create(wire: Wire, found: list[AccessControlEntry]) -> None:
    for begin in range(0, len(found), ENTRIES_PER_REQUEST):
        creations = [
            AclCreation(**{NAMES.get(key, key): value for key, value in each._asdict().items()})
            for each in found[begin : begin + ENTRIES_PER_REQUEST]
        ]
        results = wire.ask(CreateAclsRequest(creations=creations), 3).results
        errors = {each.error_code for each in results}
        assert errors == {0}, f"creating entries: errors {errors}"


NAMES: Final = {"pattern_type": "resource_pattern_type"}
"""Of fields that requests call something else."""


def _produce(effort: Effort, node: BrokerNode) -> float:
    """CPU microseconds of the node per request."""
    count = effort.count(REQUEST_COUNT, least=100)
    order = SendOrder(
        host=HOST,
        port=node.port,
        server_pid=node.pid,
        topic=TOPIC,
        record_bytes=1_000,
        batch_bytes=1_000,
        warm_up_count=count // 10,
        request_count=count,
        in_flight_count=AT_ONCE,
    )
    return run_load("sender", order, SendOutcome).server_microseconds_per_request


def _ask(effort: Effort, node: BrokerNode) -> float:
    """The same of Metadata of one topic, so many at once."""
    about = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])
    frame = request_frame(about, METADATA_VERSION)
    turns = effort.count(REQUEST_COUNT, least=100) // AT_ONCE
    with Wire(HOST, node.port) as wire, taken(node.pid) as cost:
        for _ in range(turns):
            wire.socket.sendall(frame * AT_ONCE)
            for _ in range(AT_ONCE):
                wire.receive()
    return cost.cpu_seconds(node.pid) / (turns * AT_ONCE) * 1e6


# -- a quota -------------------------------------------------------------------------------------


def quota(effort: Effort, report: Report) -> None:
    """A producer alone, and beside one that is always over its quota, by turns."""
    with (
        temporary_directory() as directory,
        MoldauNode(directory, is_pinned=True) as node,
        watched() as stalls,
        first_on_load_core(),
        node.connect() as wire,
    ):
        wire.create_topic(NEIGHBOUR_TOPIC)
        wire.create_topic(TOPIC)
        _limit(wire)
        asks = [produce(wire, NEIGHBOUR_TOPIC)]
        requests(asks, effort.count(SAMPLE_COUNT, least=50))
        count = max(10, effort.count(SAMPLE_COUNT) // TURNS)
        with _greedy(node) as process:
            others = {BESIDE: process}
            rounds = [by_turns(node, asks, count, TURNS, others) for _ in range(effort.rounds)]
    title = "Produce with acks=all every 3 ms"
    tell(report, rounds, stalls, "batches", title, Limits(QUOTA_LIMIT))


def _limit(wire: Wire) -> None:
    entry = EntryData(
        entity=[EntityData(entity_type="client-id", entity_name=GREEDY)],
        ops=[OpData(key="producer_byte_rate", value=QUOTA_BYTES_PER_SECOND)],
    )
    [result] = wire.ask(AlterClientQuotasRequest(entries=[entry]), 1).entries
    assert result.error_code == 0, f"error {result.error_code}"


@contextmanager
def _greedy(node: BrokerNode) -> Iterator[subprocess.Popen[bytes]]:
    """A client that sends whenever the node reads, as soon as it has used up its first burst; it
    is stopped.
    """
    with Wire(HOST, node.port) as wire:
        frame = ProduceFrame(
            TOPIC,
            record_bytes=1_000,
            batch_bytes=10 * QUOTA_BYTES_PER_SECOND // BURST_REQUESTS,
            client_id=GREEDY,
        )
        for number in range(BURST_REQUESTS + 1):
            frame.advance(number)
            wire.exchange(frame.frame)
    order = SendOrder(
        host=HOST,
        port=node.port,
        server_pid=node.pid,
        topic=TOPIC,
        record_bytes=1_000,
        batch_bytes=GREEDY_BATCH_BYTES,
        warm_up_count=0,
        request_count=sys.maxsize,
        in_flight_count=AT_ONCE,
        client_id=GREEDY,
    )
    with start_load("sender", order, place=give_way) as process:
        try:
            process.send_signal(signal.SIGSTOP)
            yield process
        finally:
            process.kill()
