"""Both clusters with their authorizer, and a user's connection to each.

Owns the processes and what each cluster has of its own. Must not judge the answers.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from moldau.config import read_properties_file
from moldau.protocol.headers import decode_response, encode_request
from moldau.protocol.messages.p17_sasl_handshake import SaslHandshakeRequest
from moldau.protocol.messages.p36_sasl_authenticate import SaslAuthenticateRequest
from moldau.protocol.schema import Message
from tests.interop.differential.asking import ANSWER_TIMEOUT_S, CLIENT_ID, CLOSED, Closed, Node
from tests.interop.differential.clusters import CONFIG
from tests.interop.java.server import KafkaServer
from tests.interop.java.tools import JavaTools
from tests.interop.raw.wire import read_exactly
from tests.kit.ports import free_port
from tests.system.security.nodes import AUTHORIZER, PLAIN_MODULE, SecuredNode

PASSWORD: Final = "a-secret"
LISTENER: Final = "SASL_PLAINTEXT"
CONTROLLERS: Final = "RIGHTS"
"""The controller's listener where users log in, beside the one of brokers."""

AT_ONCE: Final = 100
"""So many requests are sent to both before the first answer is read."""

Asked = tuple[Message, int]
"""A request and its version."""

Answer = Message | Closed


@dataclass
class Side(Node):
    """One node: super users come by `bootstrap`, all others log in at `sasl`.

    Attributes:
        controllers: where they log in to its controller.
        hmac: the secret of its delegation token.
    """

    sasl: str = ""
    controllers: str = ""
    hmac: bytes = b""


class Session:
    """A user's connection to one node, made again when the node has closed it."""

    def __init__(self, side: Side, user: str, *, at_controller: bool = False) -> None:
        self._side = side
        self._address = side.controllers if at_controller else side.sasl
        self._user = user
        self._socket: socket.socket | None = None
        self._sent = 0
        self._answered = 0

    def send(self, asked: Iterable[Asked]) -> None:
        """All of them, without waiting for answers."""
        if self._socket is None:
            self._log_in()
        self._write(asked)

    def receive(self, asked: Sequence[Asked]) -> list[Answer]:
        """The answers to what was sent last."""
        answers: list[Answer] = []
        for number, each in enumerate(asked):
            answer = self._read(each)
            answers.append(answer)
            if answer is CLOSED and number + 1 < len(asked):
                self.send(asked[number + 1 :])
        return answers

    def close(self) -> None:
        """Drop the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _log_in(self) -> None:
        host, _, port = self._address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), ANSWER_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sent = self._answered = 0
        token = f"\0{self._user}\0{PASSWORD}".encode()
        for request in (
            SaslHandshakeRequest(mechanism="PLAIN"),
            SaslAuthenticateRequest(auth_bytes=token),
        ):
            self._write([(request, 1)])
            answer = self._read((request, 1))
            assert getattr(answer, "error_code", -1) == 0, (self._side.name, self._user, answer)

    def _write(self, asked: Iterable[Asked]) -> None:
        assert self._socket is not None
        frames = bytearray()
        for request, api_version in asked:
            self._sent += 1
            for part in encode_request(
                request, api_version=api_version, correlation_id=self._sent, client_id=CLIENT_ID
            ):
                frames += part
        self._socket.sendall(frames)

    def _read(self, asked: Asked) -> Answer:
        assert self._socket is not None
        request, api_version = asked
        try:
            head = self._socket.recv(4, socket.MSG_WAITALL)
        except ConnectionError:
            head = b""
        except TimeoutError:
            raise AssertionError(f"{self._side.name} does not answer {request!r}"[:900]) from None
        if len(head) < 4:
            self.close()
            return CLOSED
        data = read_exactly(self._socket, int.from_bytes(head))
        number, answer = decode_response(int(request.API_KEY), api_version, data)
        self._answered += 1
        assert number == self._answered
        return answer


@contextmanager
def both_sides(java: JavaTools, home: Path, users: Sequence[str]) -> Iterator[tuple[Side, Side]]:
    """Run both, ours first.

    Args:
        users: who may log in, all by the same password.
    """
    keys = _settings(users)
    (home / "ours").mkdir()
    ours = SecuredNode(home / "ours", keys)
    kafka = KafkaServer(java, home / "kafka", config=keys)
    address, controllers = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    ours_controllers = f"127.0.0.1:{free_port()}"
    of_kafka = home / "kafka" / "server.properties"
    with of_kafka.open("a") as appended:
        appended.write("listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT\n")
    _add_listener(of_kafka, LISTENER, address)
    _add_listener(of_kafka, CONTROLLERS, controllers)
    _add_listener(ours.config_path, CONTROLLERS, ours_controllers)
    with ours, kafka:
        sides = (
            _side(
                "Moldau",
                home / "ours",
                ours.address("PLAINTEXT"),
                ours.address(LISTENER),
                ours_controllers,
            ),
            _side("Apache Kafka", home / "kafka", kafka.bootstrap_server, address, controllers),
        )
        try:
            yield sides
        finally:
            for side in sides:
                side.close()


@contextmanager
def our_side(
    home: Path, users: Sequence[str], more: Mapping[str, str]
) -> Iterator[tuple[Side, SecuredNode]]:
    """Run ours alone.

    Args:
        users: who may log in, all by the same password.
        more: what its configuration has beside that of `both_sides`.
    """
    node = SecuredNode(home, {**_settings(users), **more})
    with node:
        side = _side("Moldau", home, node.address("PLAINTEXT"), node.address(LISTENER))
        try:
            yield side, node
        finally:
            side.close()


def _settings(users: Sequence[str]) -> dict[str, str]:
    """What both are configured with."""
    named = " ".join(f'user_{user}="{PASSWORD}"' for user in users)
    login = f"{PLAIN_MODULE} required {named};"
    return {
        **CONFIG,
        "sasl.enabled.mechanisms": "PLAIN",
        **{
            f"listener.name.{name.lower()}.plain.sasl.jaas.config": login
            for name in (LISTENER, CONTROLLERS)
        },
        "authorizer.class.name": AUTHORIZER,
        "super.users": "User:ANONYMOUS;User:owner",
        "delegation.token.secret.key": "the-key",
        "default.replication.factor": "3",  # so that no topic is made on demand
        "log.retention.ms": "-1",  # the records are old
        "group.consumer.max.session.timeout.ms": "600000",
        "group.consumer.session.timeout.ms": "600000",
    }


def _add_listener(properties: Path, name: str, address: str) -> None:
    """One where users log in, of the controller if it has that name."""
    more = {
        "listeners": f"{name}://{address}",
        "listener.security.protocol.map": f"{name}:{LISTENER}",
    }
    if name == CONTROLLERS:
        more["controller.listener.names"] = name
    lines = []
    for line in properties.read_text().splitlines():
        key = line.partition("=")[0]
        lines.append(f"{line},{more[key]}\n" if key in more else f"{line}\n")
    properties.write_text("".join(lines))


def _side(name: str, home: Path, bootstrap: str, sasl: str, controllers: str = "") -> Side:
    """With the words for what is this node's own, longest first."""
    properties: Mapping[str, str] = read_properties_file(str(home / "server.properties"))
    listeners = dict(each.split("://") for each in properties["listeners"].split(","))
    meta = read_properties_file(str(Path(properties["log.dirs"]) / "meta.properties"))
    aliases = {
        properties["log.dirs"]: "DATA",
        meta["cluster.id"]: "CLUSTER",
        meta["directory.id"]: "DIRECTORY",
        ":" + listeners["CONTROLLER"].rpartition(":")[2]: ":CONTROLLER_PORT",
    }
    if controllers:
        aliases[":" + controllers.rpartition(":")[2]] = ":RIGHTS_PORT"
    longest_first = dict(sorted(aliases.items(), key=lambda item: -len(item[0])))
    return Side(name, bootstrap, longest_first, sasl=sasl, controllers=controllers)
