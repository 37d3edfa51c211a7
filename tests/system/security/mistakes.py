"""What the list of mistakes needs: a peer that sends any bytes, and a client that must not notice.

Owns the way of bytes to a listener and back. Must not judge what a node answers.
"""

from __future__ import annotations

import base64
import contextlib
import resource
import socket
import ssl
import struct
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any, Self

from moldau.client import KafkaError, NewTopic
from moldau.client.sync import Admin, Consumer, Producer
from moldau.protocol.headers import decode_response
from moldau.protocol.messages.p17_sasl_handshake import SaslHandshakeRequest
from moldau.protocol.messages.p36_sasl_authenticate import SaslAuthenticateRequest
from moldau.protocol.schema import Message
from moldau.sasl.scram import ScramClient
from tests.kit.waiting import until
from tests.system.security.front_ends import framed, memory_bytes
from tests.system.security.nodes import HOST, PASSWORD, SecuredNode

ANSWER_S = 60.0
ROUND_S = 0.05
ROUNDS = 3
#: What a mistake may leave behind in a node's memory, and what it may take while it lasts.
GROWTH_BYTES = 64 * 2**20


class Peer:
    """One connection to a listener. Use as a context."""

    def __init__(
        self, node: SecuredNode, listener: str, context: ssl.SSLContext | None = None
    ) -> None:
        opened = socket.create_connection((HOST, node.port(listener)), timeout=ANSWER_S)
        self._socket = opened
        if context is not None:
            with closed_if_it_fails(opened):
                self._socket = context.wrap_socket(opened, server_hostname="localhost")
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    @property
    def socket(self) -> socket.socket:
        return self._socket

    def send(self, data: bytes) -> None:
        """A connection that the node has ended takes no more: that is for `end` to see."""
        with contextlib.suppress(ConnectionError):
            self._socket.sendall(data)

    def ask(self, message: Message, version: int) -> Any:
        """The answer. Raises: EOFError: the connection ended instead."""
        self._count += 1
        self.send(framed(message, version, self._count))
        number, response = decode_response(message.API_KEY, version, self.frame())
        assert number == self._count
        return response

    def choose(self, mechanism: str, version: int = 1) -> Any:
        return self.ask(SaslHandshakeRequest(mechanism=mechanism), version)

    def token(self, token: bytes) -> Any:
        return self.ask(SaslAuthenticateRequest(auth_bytes=token), 2)

    def log_in(self, token: bytes = f"\0alice\0{PASSWORD}".encode()) -> Any:
        """Log in by PLAIN; returns the answer."""
        self.choose("PLAIN")
        return self.token(token)

    def frame(self) -> bytes:
        (size,) = struct.unpack(">i", self._read(4))
        return self._read(size)

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            try:
                part = self._socket.recv(size - len(data))
            except ConnectionError:
                part = b""
            if not part:
                raise EOFError
            data += part
        return data

    def end(self) -> bytes:
        """What still comes until the node ends the connection, which it has to."""
        data = b""
        try:
            while part := self._socket.recv(65_536):
                data += part
        except (ConnectionError, ssl.SSLError):
            pass
        return data


@contextlib.contextmanager
def closed_if_it_fails(opened: socket.socket) -> Iterator[None]:
    """The socket is closed where the block raises."""
    try:
        yield
    except BaseException:
        opened.close()
        raise


def alert_of(data: bytes) -> int | None:
    """The description of a TLS alert in the clear (RFC 8446, section 6); None for anything else."""
    return data[6] if len(data) >= 7 and data[0] == 0x15 else None


def client_hello() -> bytes:
    """What a client of TLS says first."""
    context, outgoing = ssl.create_default_context(), ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def scram_tokens(
    peer: Peer, name: str, password: str, nonce: str = "", extensions: dict[str, str] | None = None
) -> tuple[bytes, bytes, Any]:
    """Log in by SCRAM-SHA-256: both messages of the client, and the last answer."""
    peer.choose("SCRAM-SHA-256")
    client = ScramClient("sha256", name, password, nonce or uuid.uuid4().hex, extensions)
    first = client.first()
    answer = peer.token(first)
    assert answer.error_code == 0, answer.error_message
    final = client.answer(bytes(answer.auth_bytes))
    assert final is not None
    return first, final, peer.token(final)


class Witness(threading.Thread):
    """A client that writes a record and reads it, again and again, on connections that stay open.

    Args:
        node: whose SASL_SSL listener it comes to, or a client's settings.

    Attributes:
        rounds: records that came back.
        failure: what ended it; None while it goes on.
    """

    def __init__(self, node: SecuredNode | dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self._settings = node if isinstance(node, dict) else self._settings_for(node)
        self._ended = threading.Event()
        self.rounds = 0
        self.failure: BaseException | None = None

    @staticmethod
    def _settings_for(node: SecuredNode) -> dict[str, Any]:
        return {
            "bootstrap_servers": node.address("SASL_SSL"),
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "PLAIN",
            "sasl_username": "alice",
            "sasl_password": PASSWORD,
            **node.trust,
        }

    def __enter__(self) -> Self:
        self.start()
        self.goes_on()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join(ANSWER_S)

    def goes_on(self) -> None:
        """Wait for more rounds, and see that none has failed."""
        wanted = self.rounds + ROUNDS
        until(
            lambda: self.failure is not None or self.rounds >= wanted,
            what="a client that nothing is wrong with is served",
            deadline_s=ANSWER_S,
        )
        assert self.failure is None, self.failure

    def run(self) -> None:
        topic = f"t-{uuid.uuid4().hex}"
        try:
            with Admin(**self._settings) as admin:
                admin.create_topics([NewTopic(topic)])
            with (
                Producer(**self._settings, retries=0) as producer,
                Consumer(
                    **self._settings, group_id=topic, auto_offset_reset="earliest"
                ) as consumer,
            ):
                consumer.subscribe([topic])
                while not self._ended.wait(ROUND_S):
                    value = b"%d" % self.rounds
                    producer.send(topic, value)
                    assert consumer.getone().value == value
                    self.rounds += 1
        except (KafkaError, AssertionError) as error:
            self.failure = error


class Watched:
    """A node's memory while a block runs; afterwards it may not have grown. Use as a context.

    Attributes:
        peak_bytes: the most that was seen, above the memory in use before.
    """

    def __init__(self, node: SecuredNode, growth_bytes: int = GROWTH_BYTES) -> None:
        self._node = node
        self._growth_bytes = growth_bytes
        self._before = 0
        self.peak_bytes = 0

    def look(self) -> None:
        """Look at it now."""
        self.peak_bytes = max(self.peak_bytes, memory_bytes(self._node) - self._before)
        assert self.peak_bytes < self._growth_bytes, f"{self.peak_bytes} bytes more than before"

    def __enter__(self) -> Self:
        self._before = memory_bytes(self._node)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.look()


class Drip(threading.Thread):
    """Sends bytes to many peers, one to each in turn, until all of them are gone or it is asked to
    stop.

    Attributes:
        life_s: of those that have gone, how long each was connected.
    """

    def __init__(self, peers: list[Peer], data: bytes, pause_s: float = 0.05) -> None:
        super().__init__(daemon=True)
        self._peers = peers
        self._data = data
        self._pause_s = pause_s
        self._ended = threading.Event()
        self.life_s: list[float] = []
        self.start()

    def run(self) -> None:
        began, waiting = time.monotonic(), list(self._peers)
        for byte in self._data:
            for peer in list(waiting):
                if not _takes(peer, bytes([byte])):
                    waiting.remove(peer)
                    self.life_s.append(time.monotonic() - began)
            if not waiting or self._ended.wait(self._pause_s):
                return

    def stop(self) -> None:
        """No more bytes."""
        self._ended.set()
        self.join(ANSWER_S)


def _takes(peer: Peer, data: bytes) -> bool:
    """Whether the node takes another byte: it has neither answered nor ended the connection."""
    opened = peer.socket
    try:
        opened.setblocking(False)
        with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError):
            if not opened.recv(65_536):
                return False
        opened.send(data)
    except (OSError, ssl.SSLError):
        return False
    return True


def in_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


@contextlib.contextmanager
def many_files() -> Iterator[int]:
    """As many open files as the machine permits a process; how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
