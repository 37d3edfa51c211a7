"""A client that asks for more than its share, in its own process.

    python -m tests.system.security.greedy_requests ATTACK PORT {user PASSWORD | certificate FILE}

It says `under way` when everything has been sent (or, where the node does not read on, as much as
it takes), and keeps its connections until its input ends. Must not judge what a node answers.
"""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, Final

from moldau.protocol.messages.p09_offset_fetch import OffsetFetchRequest
from moldau.protocol.messages.p10_find_coordinator import FindCoordinatorRequest
from moldau.protocol.messages.p19_create_topics import CreatableTopic, CreateTopicsRequest
from moldau.protocol.messages.p22_init_producer_id import InitProducerIdRequest
from moldau.protocol.messages.p32_describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from moldau.protocol.messages.p66_list_transactions import ListTransactionsRequest
from moldau.protocol.schema import Message
from moldau.protocol.varint import unsigned_varint
from moldau.sasl.scram import ScramClient
from tests.kit.waiting import until
from tests.system.security.front_ends import framed
from tests.system.security.mistakes import Peer

CONNECTIONS: Final = 2
SEND_S: Final = 5.0
"""How long a node may take nothing before the attacker has sent what it can."""

COSTLY: Final = "(own-)?[ab-]*a[ab]{200}z"
"""A third of a second for RE2 on 30,000 letters."""


class Login:
    """How the attacker comes in: `user PASSWORD` by SCRAM-SHA-512 or PLAIN, or `certificate`."""

    def __init__(self, port: int, kind: str, value: str) -> None:
        self._port = port
        self._kind = kind
        self._value = value

    def peer(self) -> Peer:
        context: ssl.SSLContext | None = ssl.create_default_context()
        assert context is not None
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        if self._kind == "certificate":
            context.load_cert_chain(self._value)
        if self._kind == "plain":
            context = None
        port = self._port
        peer = Peer(SimpleNamespace(port=lambda _: port), "", context)  # type: ignore[arg-type]
        if self._kind == "plain":
            user, _, password = self._value.partition(":")
            assert peer.log_in(f"\0{user}\0{password}".encode()).error_code == 0
        elif self._kind != "certificate":
            peer.choose("SCRAM-SHA-512")
            client = ScramClient("sha512", self._kind, self._value, "nonce")
            answer = peer.token(client.first())
            final = client.answer(bytes(answer.auth_bytes))
            assert final is not None
            assert peer.token(final).error_code == 0
        return peer


def send_all(peers: list[Peer], data: bytes) -> None:
    """As much as the node takes."""
    for peer in peers:
        peer.socket.settimeout(SEND_S)
        with contextlib.suppress(TimeoutError, OSError):
            peer.socket.sendall(data)


def pipelined(message: Message, version: int, count: int) -> bytes:
    return b"".join(framed(message, version, number) for number in range(count))


def changes(login: Login) -> list[Peer]:
    """Forwarded requests that may wait for 24 days."""
    topics = [CreatableTopic(name="x", num_partitions=1, replication_factor=1)]
    message = CreateTopicsRequest(topics=topics, timeout_ms=2**31 - 1)
    peers = [login.peer() for _ in range(CONNECTIONS)]
    send_all(peers, pipelined(message, 7, 50))
    return peers


def descriptions(login: Login) -> list[Peer]:
    """At a controller: many questions of a client without rights, large ones, and changes."""
    resources = [DescribeConfigsResource(resource_type=4, resource_name=str(i)) for i in range(50)]
    message = DescribeConfigsRequest(resources=resources)
    peers = [login.peer() for _ in range(CONNECTIONS * 10)]
    for _ in range(20):
        send_all(peers, pipelined(message, 4, 50))
    large = [login.peer() for _ in range(CONNECTIONS)]
    send_all(large, large_describe_configs(900_000))
    return [*peers, *large, *changes(login)]


def searches(login: Login, ids: int = 25, length: int = 30_000) -> list[Peer]:
    """A costly expression over transactional ids of the client's own."""
    peers = [login.peer() for _ in range(CONNECTIONS)]
    first = peers[0]

    def has(message: Any, version: int) -> bool:
        return bool(first.ask(message, version).error_code == 0)

    until(lambda: has(FindCoordinatorRequest(key="own-x", key_type=1), 3), what="a coordinator")
    dice = random.Random(1)
    for _ in range(ids):
        name = "own-" + "".join(dice.choice("ab") for _ in range(length))
        message = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=1000)
        until(lambda message=message: has(message, 4), what="an id")  # type: ignore[misc]
    send_all(peers, pipelined(ListTransactionsRequest(transactional_id_pattern=COSTLY), 2, 40))
    return peers


def large_describe_configs(resource_count: int) -> bytes:
    """DescribeConfigs v4 of that many resources, four bytes each."""
    whole = framed(DescribeConfigsRequest(), 4, 1)[4:]
    header = whole[: len(whole) - len(DescribeConfigsRequest().to_bytes(4))]
    resource = b"\x02\x01\x00\x00"
    data = header + unsigned_varint(resource_count + 1) + resource * resource_count + b"\0\0\0"
    return len(data).to_bytes(4, "big") + data


def large_offset_fetch(topic_count: int) -> bytes:
    """OffsetFetch v8 of one group that names that many topics, three bytes each."""
    header = framed(OffsetFetchRequest(), 8, 1)[4:]
    body = OffsetFetchRequest().to_bytes(8)
    header = header[: len(header) - len(body)]
    per_group = 900_000
    groups = [per_group] * (topic_count // per_group) or [topic_count]
    data = header + unsigned_varint(len(groups) + 1)
    for count in groups:
        data += b"\x02g" + unsigned_varint(count + 1) + b"\x01\x01\x00" * count + b"\x00"
    data += b"\x00\x00"
    return len(data).to_bytes(4, "big") + data


def decoding(login: Login) -> list[Peer]:
    """Requests of 8.1 MB that would be 370 MB decoded, from a client without rights."""
    peers = [login.peer() for _ in range(CONNECTIONS)]
    data = large_offset_fetch(2_700_000)
    for _ in range(3):
        send_all(peers, data)
    return peers


ATTACKS: Final[dict[str, Callable[[Login], list[Peer]]]] = {
    "changes": changes,
    "decoding": decoding,
    "descriptions": descriptions,
    "searches": searches,
}


@contextlib.contextmanager
def attacked(attack: str, port: int, kind: str, value: str) -> Iterator[None]:
    """The attack is under way inside of the block; afterwards the attacker has gone."""
    command = [sys.executable, "-m", __name__, attack, str(port), kind, value]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"under way\n"
            yield
        finally:
            process.stdin.close()
            process.wait(60)


def main() -> None:
    attack, port, kind, value = sys.argv[1:]
    peers = ATTACKS[attack](Login(int(port), kind, value))
    print("under way", flush=True)
    sys.stdin.read()
    for peer in peers:
        with contextlib.suppress(OSError):
            peer.socket.shutdown(socket.SHUT_RDWR)
        peer.socket.close()


if __name__ == "__main__":
    main()
