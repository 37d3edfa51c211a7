"""What a client that takes more than its share costs another: the latency of the other one.

One node with logins by SASL and an authorizer. A client sends a batch of 1 KB every 3 ms with
acks=all, and asks for Metadata after each, alone and beside a process of `benchmarks.greedy`, which
does one of the things that would have stopped a node once. Its connections are those of a user
with rights on nothing but its own transactional ids, or of strangers. All of them take turns as in
`benchmarks.beside`.
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Final

from benchmarks.beside import ALONE, Asks, Limits, Round, produce, requests, tell
from benchmarks.figures import Effort, Report
from benchmarks.greedy import ATTACKS, GREEDY, OWN_PREFIX, PASSWORD, Target
from benchmarks.nodes import (
    HOST,
    MoldauNode,
    free_ports,
    temporary_directory,
    wait_until_quiet,
)
from benchmarks.processes import first_on_load_core, give_way, running
from benchmarks.stalls import watched
from benchmarks.wire import Wire, until_accepted
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
ESTABLISHED_S: Final = 3.0
LIMIT: Final = 1.5
OWN_IDS: Final = 25
OWN_ID_CHARACTERS: Final = 30_000
SEED: Final = 39


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
    with temporary_directory() as directory, GuardedNode(directory) as node, watched() as stalls:
        _prepare(node)
        with first_on_load_core(), node.log_in(GOOD) as wire:
            about = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])
            asks = [produce(wire, TOPIC), lambda: wire.ask(about, METADATA_VERSION)]
            count = effort.count(SAMPLE_COUNT, least=50)
            requests(asks, count)
            rounds = [_round(node, asks, count) for _ in range(effort.rounds)]
    tell(report, rounds, stalls, "requests", "Produce and Metadata by turns", Limits(LIMIT))
    return report


def _round(node: GuardedNode, asks: Asks, count: int) -> Round:
    found = {ALONE: requests(asks, count)}
    for name in ATTACKS:
        target = Target(HOST, node.sasl_port, node.http_port)
        with running("greedy", name, target, place=give_way):
            time.sleep(ESTABLISHED_S)
            found[name] = requests(asks, count)
        wait_until_quiet(node)
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
        until_accepted(lambda: wire.ask(find, 6).coordinators[0])
    dice = random.Random(SEED)
    with node.log_in(GREEDY) as wire:
        for _ in range(OWN_IDS):
            name = OWN_PREFIX + "".join(dice.choices("ab", k=OWN_ID_CHARACTERS))
            init = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
            until_accepted(lambda asked=init: wire.ask(asked, 4))
