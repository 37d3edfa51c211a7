"""Two real nodes that are attacked at every listener, and clients that are served throughout.

Node 1 is controller and broker, node 2 a broker; they show each other certificates at INTERNAL and
CONTROLLER. Each has an HTTP listener, the second one with TLS. Budgets are small, so that a few
clients fill them. Owns the nodes and what good clients do. Must not: know who attacks.
"""

from __future__ import annotations

import contextlib
import http.client
import random
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Self
from uuid import uuid4

import trustme

from moldau.client import (
    AclBinding,
    AclOperation,
    AclPatternType,
    AclResourceType,
    KafkaError,
    NewTopic,
    TopicPartition,
)
from moldau.client.sync import Admin, Consumer, Producer
from moldau.config import NodeConfig
from moldau.local.layout import PortHolder
from moldau.local.node_process import NodeProcess, wait_ready_together
from moldau.node.formatting import FormatPlan, format_storage, random_cluster_id
from moldau.node.initial_users import scram_records
from moldau.raft import VoterDescription, VoterEndpoint
from moldau.runtime.clock import SystemClock
from moldau.runtime.filesystem import OsFilesystem
from tests.kit.waiting import patience
from tests.system.security.nodes import AUTHORIZER, HOST, PASSWORD, PLAIN_MODULE, keystore

MIB: Final = 2**20
CLIENTS: Final = ("PLAINTEXT", "SSL", "MTLS", "SASL_PLAINTEXT", "SASL_SSL")
"""Listeners for clients, by the names of `front_ends.py`; only node 1 has all of them."""

LISTENERS: Final = {
    1: (*CLIENTS, "INTERNAL", "CONTROLLER", "HTTP"),
    2: ("PLAINTEXT", "SSL", "MTLS", "INTERNAL", "HTTPS"),
}
PROTOCOLS: Final = {
    "MTLS": "SSL",
    "INTERNAL": "SSL",
    "CONTROLLER": "SSL",
    **{name: name for name in CLIENTS if name != "MTLS"},
}
USERS: Final = ("alice", "mallory", "bob")
"""The users of SCRAM, and of certificates: a super user, one without any right, and one with rights
on names that begin with `own-`."""

QUEUED_BYTES: Final = 64 * MIB
DECODED_BYTES: Final = 128 * MIB
UNSENT_BYTES: Final = 16 * MIB
GROUPS_BYTES: Final = 16 * MIB
PEAK_BYTES: Final = QUEUED_BYTES + 2 * DECODED_BYTES + UNSENT_BYTES + GROUPS_BYTES + 160 * MIB
"""What a node may take above what it had before, at any moment: its budgets, those of decoding for
brokers' and controllers' listeners apart, and what connections, ids and sessions are."""

FENCED: Final = "this broker has been fenced"
LARGE_TOPIC: Final = "good-large"


class StormNodes:
    """The nodes. Use as a context: starts them, and makes topics and rights.

    Attributes:
        trust: what a client of ours needs to trust them.
        process: node 1.
        large_topic_id: of a topic that is worth reading; every user may.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        authority = trustme.CA()
        self.trust_path = home / "ca.pem"
        authority.cert_pem.write_to_path(self.trust_path)
        self.trust: dict[str, Any] = {"ssl_truststore_location": str(self.trust_path)}
        for name in ("node-1", "node-2", *USERS):
            keystore(authority, home / f"{name}.pem", common_name=name)
        self._holder = PortHolder(HOST)
        self._ports = {
            (node_id, name): self._holder.take()[0]
            for node_id, names in LISTENERS.items()
            for name in names
        }
        for node_id in LISTENERS:
            (home / f"node-{node_id}").mkdir()
            self._write_config(node_id)
        self._format()
        self.nodes = {
            node_id: NodeProcess(self._config(node_id), home / f"node-{node_id}.log")
            for node_id in LISTENERS
        }
        self.process = self.nodes[1]
        self.large_topic_id = ""

    def __enter__(self) -> Self:
        try:
            for node in self.nodes.values():
                node.start()
            wait_ready_together(self.nodes.values())
            self._prepare()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for node_id in sorted(self.nodes, reverse=True):
            self.nodes[node_id].stop()
        self._holder.close()

    def kill(self) -> None:
        """End them at once: what they do still is of no interest."""
        for node in self.nodes.values():
            if node.running:
                node.kill()

    def port(self, name: str, node_id: int = 1) -> int:
        return self._ports[node_id, name]

    def ports(self) -> list[tuple[str, int]]:
        """Every listener of both nodes: its name and port."""
        return [(name, port) for (_, name), port in self._ports.items()]

    def log(self) -> str:
        """What both nodes have logged, one after the other."""
        return "".join(each.log_path.read_text(encoding="utf-8") for each in self.nodes.values())

    def memory_bytes(self) -> list[int]:
        """What each node has resident; nothing of one that has ended."""
        return [resident_bytes(node.pid) for _, node in sorted(self.nodes.items()) if node.running]

    def settings(self, name: str) -> dict[str, Any]:
        """A good client's of that listener of node 1."""
        key = "bootstrap_controllers" if name == "CONTROLLER" else "bootstrap_servers"
        settings: dict[str, Any] = {
            key: f"{HOST}:{self.port(name)}",
            "security_protocol": PROTOCOLS[name],
        }
        if PROTOCOLS[name].endswith("SSL"):
            settings |= self.trust
        if name in ("MTLS", "INTERNAL", "CONTROLLER"):
            settings["ssl_keystore_location"] = str(self.certificate("alice"))
        if PROTOCOLS[name].startswith("SASL"):
            mechanism = "PLAIN" if name == "SASL_PLAINTEXT" else "SCRAM-SHA-512"
            settings |= {
                "sasl_mechanism": mechanism,
                "sasl_username": "alice",
                "sasl_password": PASSWORD,
            }
        return settings

    def certificate(self, user: str) -> Path:
        return self.home / f"{user}.pem"

    def _config(self, node_id: int) -> Path:
        return self.home / f"node-{node_id}" / "server.properties"

    def _write_config(self, node_id: int) -> None:
        names = [each for each in LISTENERS[node_id] if each in PROTOCOLS]
        listeners = ",".join(f"{each}://{HOST}:{self.port(each, node_id)}" for each in names)
        web = "HTTP" if node_id == 1 else "HTTPS"
        values = {
            "process.roles": "broker,controller" if node_id == 1 else "broker",
            "node.id": str(node_id),
            "listeners": listeners,
            "listener.security.protocol.map": ",".join(f"{k}:{v}" for k, v in PROTOCOLS.items()),
            "inter.broker.listener.name": "INTERNAL",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.bootstrap.servers": f"{HOST}:{self.port('CONTROLLER')}",
            "log.dirs": str(self.home / f"node-{node_id}" / "data"),
            "offsets.topic.replication.factor": "2",
            "offsets.topic.num.partitions": "2",
            "transaction.state.log.replication.factor": "2",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "2",
            "group.initial.rebalance.delay.ms": "0",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.certificate(f"node-{node_id}")),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.trust_path),
            "ssl.principal.mapping.rules": "RULE:^.*CN=([a-z0-9-]+).*$/$1/,DEFAULT",
            "listener.name.mtls.ssl.client.auth": "required",
            "listener.name.internal.ssl.client.auth": "required",
            "listener.name.controller.ssl.client.auth": "required",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            "authorizer.class.name": AUTHORIZER,
            "super.users": "User:alice",
            "moldau.node.principals": "User:node-1;User:node-2",
            "delegation.token.secret.key": "t-secret",
            "queued.max.request.bytes": str(QUEUED_BYTES),
            "socket.request.max.bytes": str(8 * MIB),
            "moldau.decoded.max.bytes": str(DECODED_BYTES),
            "moldau.group.coordinator.max.bytes": str(GROUPS_BYTES),
            "moldau.http.max.unsent.bytes": str(UNSENT_BYTES),
            "moldau.http.open.paths": "/healthz,/metrics,/readyz",
            "moldau.http.listener": f"{HOST}:{self.port(web, node_id)}",
        }
        if web == "HTTPS":
            values["moldau.http.ssl.keystore.location"] = values["ssl.keystore.location"]
            values["moldau.http.ssl.keystore.type"] = "PEM"
        else:
            for name in ("sasl_ssl", "sasl_plaintext"):
                values[f"listener.name.{name}.plain.sasl.jaas.config"] = (
                    f'{PLAIN_MODULE} required user_alice="{PASSWORD}";'
                )
        escaped = {key: value.replace("\\", "\\\\") for key, value in values.items()}
        text = "".join(f"{key}={value}\n" for key, value in escaped.items())
        self._config(node_id).write_text(text)

    def _format(self) -> None:
        source = random.Random(uuid4().int)
        cluster_id = random_cluster_id(source)
        endpoint = VoterEndpoint("CONTROLLER", HOST, self.port("CONTROLLER"))
        voters = (VoterDescription(1, uuid4(), (endpoint,)),)
        users = scram_records(
            [f"SCRAM-SHA-512=[name={name},password={PASSWORD}]" for name in USERS],
            source.randbytes,
        )
        for node_id in LISTENERS:
            plan = FormatPlan.from_config(
                NodeConfig.load(str(self._config(node_id))),
                cluster_id,
                initial_controllers=voters,
                users=users,
            )
            format_storage(OsFilesystem(), SystemClock(), source, plan)

    def _prepare(self) -> None:
        def allow(who: str, kind: AclResourceType, prefix: str, what: AclOperation) -> AclBinding:
            return AclBinding(
                kind, prefix, f"User:{who}", what, pattern_type=AclPatternType.PREFIXED
            )

        topics = [
            NewTopic(name, replica_assignment={0: [1, 2]}, configs={"min.insync.replicas": "2"})
            for name in (LARGE_TOPIC, "own-t", *(f"good-{each}" for each in CLIENTS))
        ]
        kinds, does = AclResourceType, AclOperation
        rights = [
            *(
                allow("ANONYMOUS", kinds.TOPIC, "good-", each)
                for each in (does.READ, does.WRITE, does.DESCRIBE)
            ),
            allow("ANONYMOUS", kinds.GROUP, "good-", does.READ),
            allow("bob", kinds.TOPIC, "good-", does.READ),
            allow("bob", kinds.TOPIC, "own-", does.READ),
            allow("bob", kinds.GROUP, "own-", does.ALL),
            allow("bob", kinds.TRANSACTIONAL_ID, "own-", does.ALL),
        ]
        settings = self.settings("SASL_SSL")
        with Admin(**settings) as admin:
            admin.create_topics(topics)
            admin.create_acls(rights)
            described = admin.describe_topics([LARGE_TOPIC])[LARGE_TOPIC]
            self.large_topic_id = str(described.topic_id)
        with Producer(**settings) as producer:
            for _ in range(8):
                producer.send(LARGE_TOPIC, bytes(900_000))


def resident_bytes(pid: int) -> int:
    """A process's resident memory."""
    status = Path(f"/proc/{pid}/status").read_text()
    [line] = (line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


# -- good clients ------------------------------------------------------------------------------


def _asks_brokers(settings: dict[str, Any], name: str) -> Iterator[None]:
    """Each round a client logs in and asks, and a record is written and read on connections that
    stay.
    """
    topic = f"good-{name}" if name in CLIENTS else f"good-{CLIENTS[0]}"
    with (
        Producer(**settings, retries=0) as producer,
        Consumer(**settings, auto_offset_reset="latest") as consumer,
    ):
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek(partition, consumer.end_offsets([partition])[partition])
        while True:
            with Admin(**settings) as admin:
                assert topic in admin.list_topics(), "the topic is there"
            value = uuid4().bytes
            producer.send(topic, value)
            while consumer.getone().value != value:  # one of another client of the topic
                pass
            yield


def _asks_controllers(settings: dict[str, Any]) -> Iterator[None]:
    while True:
        with Admin(**settings) as admin:
            assert admin.describe_metadata_quorum().leader_id == 1
        yield


def _asks_for_pages(port: int, context: ssl.SSLContext | None, limit_s: float) -> Iterator[None]:
    while True:
        for path in ("/healthz", "/readyz", "/metrics"):
            if context is None:
                opened = http.client.HTTPConnection(HOST, port, timeout=limit_s)
            else:
                opened = http.client.HTTPSConnection(HOST, port, timeout=limit_s, context=context)
            with contextlib.closing(opened):
                opened.request("GET", path)
                response = opened.getresponse()
                assert response.status == 200, f"{path} is answered with {response.status}"
                response.read()
        yield


class GoodClient(threading.Thread):
    """A client that is to be served whatever others do, again and again.

    Attributes:
        rounds: those that were served.
        longest_s: what the longest of them took.
        failure: what ended it; empty while it goes on.
    """

    def __init__(self, name: str, rounds: Callable[[], Iterator[None]], pause_s: float) -> None:
        super().__init__(daemon=True, name=name)
        self._rounds = rounds
        self._pause_s = pause_s
        self._ended = threading.Event()
        self._began_s = time.monotonic()
        self.rounds = 0
        self.longest_s = 0.0
        self.failure = ""

    def run(self) -> None:
        try:
            with contextlib.closing(self._rounds()) as rounds:  # type: ignore[type-var]
                self._began_s = time.monotonic()
                for _ in rounds:
                    self.longest_s = max(self.longest_s, time.monotonic() - self._began_s)
                    self.rounds += 1
                    if self._ended.wait(self._pause_s):
                        return
                    self._began_s = time.monotonic()
        except (KafkaError, OSError, http.client.HTTPException, AssertionError) as error:
            self.failure = f"{type(error).__name__}: {error}"

    def complaint(self, limit_s: float) -> list[str]:
        """What it complains about: a refusal, or a round that takes longer than that."""
        waited_s = time.monotonic() - self._began_s
        if self.failure:
            return [f"{self.name}, after {self.rounds} rounds: {self.failure}"]
        if self.is_alive() and waited_s > limit_s + self._pause_s:
            return [f"{self.name} waits since {waited_s:.0f} s, after {self.rounds} rounds"]
        return []

    def begin_to_end(self) -> None:
        """Its round is the last one."""
        self._ended.set()

    def end(self, limit_s: float) -> list[str]:
        """What it complains about at its end."""
        self.begin_to_end()
        self.join(limit_s)
        if self.is_alive() and not self.failure:
            return [f"{self.name} has not ended its round {self.rounds + 1} in time"]
        return self.complaint(limit_s)


def good_clients(nodes: StormNodes, timeout_ms: int, pause_s: float) -> list[GoodClient]:
    """One of each kind, and of each listener, with that request timeout; not started."""
    limit_s = timeout_ms / 1000 * patience()
    times = {"request_timeout_ms": timeout_ms, "default_api_timeout_ms": timeout_ms}
    made = []
    for name in (*CLIENTS, "INTERNAL"):
        settings = {**nodes.settings(name), **times}
        made.append(
            GoodClient(name, lambda s=settings, n=name: _asks_brokers(s, n), pause_s)  # type: ignore[misc]
        )
    controller = {**nodes.settings("CONTROLLER"), **times}
    made.append(GoodClient("CONTROLLER", lambda: _asks_controllers(controller), pause_s))
    context = ssl.create_default_context(cafile=str(nodes.trust_path))
    web = {"HTTP": (nodes.port("HTTP"), None), "HTTPS": (nodes.port("HTTPS", 2), context)}
    for name, (port, tls) in web.items():
        made.append(
            GoodClient(
                name,
                lambda p=port, t=tls: _asks_for_pages(p, t, limit_s),  # type: ignore[misc]
                pause_s,
            )
        )
    return made
