"""What a client that takes more than its share costs another: the latency of the other one.

One node with logins by SASL and an authorizer. A client sends a batch of 1 KB every 3 ms with
acks=all, and asks for Metadata after each, alone and beside a process of `benchmarks.greedy`, which
does one of the things that would have stopped a node once. Its connections are those of a user
with rights on nothing but its own transactional ids, or of strangers. All of them take turns within
a round; the node is quiet before each. The node has its own core; on the other one the client
that is measured comes first, and the greedy one has what is left. Every figure is taken twice: of
all requests, and of those soon after whose begin the machine held up no core (`benchmarks.stalls`).
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Final

from benchmarks.figures import (
    Effort,
    Report,
    Spread,
    Table,
    at_most,
    ratio_of_all,
)
from benchmarks.greedy import ATTACKS, GREEDY, HARMLESS, OWN_PREFIX, PASSWORD, Target
from benchmarks.machine import ROOT
from benchmarks.nodes import (
    HOST,
    MoldauNode,
    first_on_load_core,
    free_ports,
    give_way,
    temporary_directory,
    wait_until_quiet,
)
from benchmarks.stalls import Span, selections, touched, watched
from benchmarks.wire import ProduceFrame, Wire
from moldau.cli.bench.figures import percentile
from moldau.protocol.access_control import Operation, PatternType, PermissionType, ResourceType
from moldau.protocol.messages.p03_metadata import MetadataRequest, MetadataRequestTopic
from moldau.protocol.messages.p10_find_coordinator import FindCoordinatorRequest
from moldau.protocol.messages.p17_sasl_handshake import SaslHandshakeRequest
from moldau.protocol.messages.p22_init_producer_id import InitProducerIdRequest
from moldau.protocol.messages.p30_create_acls import AclCreation, CreateAclsRequest
from moldau.protocol.messages.p36_sasl_authenticate import SaslAuthenticateRequest

GOOD: Final = "good"
TOPIC: Final = "shared"
METADATA_VERSION: Final = 12
SAMPLE_COUNT: Final = 3_000
PAUSE_S: Final = 0.0025
ESTABLISHED_S: Final = 3.0
LIMIT: Final = 1.5
ALONE: Final = "none"
OWN_IDS: Final = 25
OWN_ID_CHARACTERS: Final = 30_000
SEED: Final = 39
RETRY_S: Final = 60.0


class GuardedNode(MoldauNode):
    """Brokers' and controllers' listeners are open, that of clients asks for a login."""

    def __init__(self, directory: Path) -> None:
        self.sasl_port, self.http_port = free_ports(2)
        users = f'user_{GOOD}="{PASSWORD}" user_{GREEDY}="{PASSWORD}"'
        jaas = f"org.apache.kafka.common.security.plain.PlainLoginModule required {users};"
        super().__init__(
            directory,
            {
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
                "SASL:SASL_PLAINTEXT",
                "inter.broker.listener.name": "PLAINTEXT",
                "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN",
                "listener.name.sasl.plain.sasl.jaas.config": jaas,
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": f"User:ANONYMOUS;User:{GOOD}",
                "moldau.http.listener": f"{HOST}:{self.http_port}",
                "offsets.topic.num.partitions": "3",
                "transaction.state.log.num.partitions": "3",
            },
            is_pinned=True,
        )
        text = self._config.read_text()
        for key in ("listeners=", "advertised.listeners="):
            text = text.replace(f"\n{key}", f"\n{key}SASL://{HOST}:{self.sasl_port},")
        self._config.write_text(text)

    def log_in(self, user: str) -> Wire:
        """A connection of this user."""
        wire = Wire(HOST, self.sasl_port)
        wire.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        token = f"\0{user}\0{PASSWORD}".encode()
        answer = wire.ask(SaslAuthenticateRequest(auth_bytes=token), 2)
        assert not answer.error_code, answer.error_message
        return wire


def run(effort: Effort) -> Report:
    """All by turns."""
    report = Report("A client beside one that takes more than its share")
    rounds: list[dict[str, list[Span]]] = []
    with temporary_directory() as directory, GuardedNode(directory) as node, watched() as stalls:
        _prepare(node)
        with first_on_load_core(), node.log_in(GOOD) as wire:
            requests(wire, effort.count(SAMPLE_COUNT, least=50))
            for _ in range(effort.rounds):
                rounds.append(_round(effort, node, wire))
    table = Table(
        (
            *("beside", "requests", "p50 ms", "p99 ms", "longest ms"),
            *("p99 / alone", "p99 / control"),
        ),
        "Produce and Metadata by turns, minimum / median / maximum over the rounds; the ratios are "
        "of all rounds together, with one left out in turn:",
    )
    for kind, selected in selections(stalls).items():
        found = [{name: selected(each[name]) for name in each} for each in rounds]
        for name in (ALONE, *ATTACKS):
            beside, alone, control = ([each[n] for each in found] for n in (name, ALONE, HARMLESS))
            per_alone, per_control = (ratio_of_all(beside, to, 99) for to in (alone, control))
            cells = [
                Spread.of([percentile(sorted(each), percent) for each in beside])
                for percent in (50, 99)
            ]
            longest = Spread.of([max(each) for each in beside])
            texts = (each.text() for each in (*cells, longest, per_alone, per_control))
            table.add(name, kind, *texts)
            if name != ALONE:
                asked = f"p99 beside {name} ({kind}) ≤ {LIMIT:g} x undisturbed"
                report.targets.append(at_most(asked, per_alone, LIMIT))
    report.tables.append(table)
    spans = {name: [one for each in rounds for one in each[name]] for name in (ALONE, *ATTACKS)}
    report.notes.append(touched(stalls, spans, "requests"))
    return report


def _round(effort: Effort, node: GuardedNode, wire: Wire) -> dict[str, list[Span]]:
    count = effort.count(SAMPLE_COUNT, least=50)
    found: dict[str, list[Span]] = defaultdict(list)
    found[ALONE] += requests(wire, count)
    for name in ATTACKS:
        with _attacker(name, Target(HOST, node.sasl_port, node.http_port)):
            found[name] += requests(wire, count)
        wait_until_quiet(node)
    return found


def requests(wire: Wire, count: int) -> list[Span]:
    """Each of `count` requests, a Produce and a Metadata by turns."""
    frame = ProduceFrame(TOPIC, record_bytes=1000, batch_bytes=1000)
    metadata = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])
    found = []
    for number in range(count // 2):
        frame.advance(number)
        begin = time.monotonic()
        wire.socket.sendall(frame.frame)
        wire.receive()
        found.append(Span(begin, time.monotonic()))
        time.sleep(PAUSE_S)
        begin = time.monotonic()
        wire.ask(metadata, METADATA_VERSION)
        found.append(Span(begin, time.monotonic()))
        time.sleep(PAUSE_S)
    return found


def _prepare(node: GuardedNode) -> None:
    with node.connect() as wire:
        wire.create_topic(TOPIC)
        entry = AclCreation(
            resource_type=ResourceType.TRANSACTIONAL_ID,
            resource_name=OWN_PREFIX,
            resource_pattern_type=PatternType.PREFIXED,
            principal=f"User:{GREEDY}",
            host="*",
            operation=Operation.ALL,
            permission_type=PermissionType.ALLOW,
        )
        wire.ask(CreateAclsRequest(creations=[entry]), 3)
        # InitProducerId without an id asks for Write on some topic.
        entry = AclCreation(
            resource_type=ResourceType.TOPIC,
            resource_name=OWN_PREFIX,
            resource_pattern_type=PatternType.PREFIXED,
            principal=f"User:{GREEDY}",
            host="*",
            operation=Operation.WRITE,
            permission_type=PermissionType.ALLOW,
        )
        wire.ask(CreateAclsRequest(creations=[entry]), 3)
        find = FindCoordinatorRequest(key_type=1, coordinator_keys=[OWN_PREFIX])
        _until_done(lambda: wire.ask(find, 6).coordinators[0].error_code)
    dice = random.Random(SEED)
    with node.log_in(GREEDY) as wire:
        for _ in range(OWN_IDS):
            name = OWN_PREFIX + "".join(dice.choices("ab", k=OWN_ID_CHARACTERS))
            init = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
            _until_done(lambda asked=init: wire.ask(asked, 4).error_code)


def _until_done(ask: Callable[[], int]) -> None:
    deadline = time.monotonic() + RETRY_S
    while (error := ask()) and time.monotonic() < deadline:
        time.sleep(PAUSE_S)
    assert not error, f"error {error}"


@contextmanager
def _attacker(attack: str, target: Target) -> Iterator[None]:
    """The attack has begun, and is established."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.greedy", attack, json.dumps(asdict(target))],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        preexec_fn=give_way,
    )
    assert process.stdout is not None, "a pipe"
    try:
        assert process.stdout.readline() == b"attacking\n", "the attacker did not begin"
        time.sleep(ESTABLISHED_S)
        yield
        assert process.poll() is None, "the attacker ended"
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
