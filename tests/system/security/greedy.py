"""Clients that take what they can get, in their own process, against one listener.

`with GreedyClients(Target(…), Greed(…)) as greedy:` starts it; `greedy.opened(count)` waits until
it has so many connections. It goes on, and opens new connections in the place of those that the
node has ended, until the block is left. What each connection does is its `Greed.kind`:

| kind | after the login, if the target has one and the stage is `all` |
|---|---|
| slow | announces a frame of `frame_bytes`, and sends `step_bytes` of it every `pause_s` |
| drip | sends `request` once, then `step_bytes` of more every `pause_s` |
| huge | sends a frame of `frame_bytes` but for its end, then `step_bytes` every `pause_s` |
| whole | sends a frame of `frame_bytes` to its end, which is no request |
| silent | sends nothing |
| pipelined | sends `request`, again and again, and reads the answers |
| unread | sends `request`, again and again, and reads nothing |

Must not know what a good client does, or judge a node.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import resource
import select
import socket
import ssl
import struct
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Self

from moldau.protocol.headers import decode_response, encode_request
from moldau.protocol.messages.p17_sasl_handshake import SaslHandshakeRequest
from moldau.protocol.messages.p18_api_versions import ApiVersionsRequest
from moldau.protocol.messages.p36_sasl_authenticate import SaslAuthenticateRequest
from moldau.protocol.schema import Message
from moldau.sasl.scram import ScramClient
from tests.kit.waiting import until

KINDS: Final = ("slow", "drip", "huge", "whole", "silent", "pipelined", "unread")
STAGES: Final = ("connected", "hello", "tls", "mechanism", "token", "all")
"""How far a connection comes: none of TLS, half of its first words, all of TLS, the name of a
mechanism of SASL, the first of its two messages, all of it."""

ROOT: Final = Path(__file__).parents[3]
STEP_BYTES: Final = 256 * 1024
LOGIN_S: Final = 30.0
MAX_OPENING_S: Final = 1.0
_ZEROS: Final = bytes(STEP_BYTES)
_NOT_NOW: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


@dataclasses.dataclass(frozen=True)
class Target:
    """A listener, and as whom the greedy clients come there.

    Attributes:
        is_tls: whether it speaks TLS; its certificate is not looked at.
        certificate: a PEM file with key and certificate that they show; empty for none.
        user: logs in by SCRAM-SHA-512 with `password`; empty for no login.
        source: the address of this machine that they come from.
    """

    host: str
    port: int
    is_tls: bool = False
    certificate: str = ""
    user: str = ""
    password: str = ""
    source: str = ""


@dataclasses.dataclass(frozen=True)
class Greed:
    """What they do; see the module.

    Attributes:
        request: a whole frame, for `pipelined` and `unread`; hexadecimal. ApiVersions without it.
        stage: of STAGES.
        life_s: after which a connection ends by itself, and a new one comes; 0 for never.
    """

    kind: str
    count: int
    frame_bytes: int = 100 * 1024 * 1024
    pause_s: float = 1.0
    request: str = ""
    step_bytes: int = 1
    stage: str = "all"
    life_s: float = 0.0


class GreedyClients:
    """The process. Use as a context.

    Attributes:
        counts: what it said last: connections that are `open`, `ended` by the node and `failed` to
            open, so far.
    """

    def __init__(self, target: Target, greed: Greed) -> None:
        assert greed.kind in KINDS, greed.kind
        self._order = {
            "target": dataclasses.asdict(target),
            "greed": dataclasses.asdict(greed),
        }
        self._process: subprocess.Popen[str] | None = None
        self.counts: dict[str, int] = {"open": 0, "ended": 0, "failed": 0}
        self._rest = ""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.system.security.greedy", json.dumps(self._order)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        return self

    def __exit__(self, *_: object) -> None:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        process.stdin.close()
        process.wait(30)
        assert process.stdout is not None
        process.stdout.close()

    def look(self) -> dict[str, int]:
        """The newest counts."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        assert process.poll() is None, "the greedy clients have ended by themselves"
        # The last line may be one whose end is yet to come.
        *lines, self._rest = (self._rest + "".join(process.stdout.readlines())).split("\n")
        if lines:
            self.counts = json.loads(lines[-1])
        return self.counts

    def opened(self, count: int, deadline_s: float = 60.0) -> None:
        """Wait until so many of its connections have been opened and have begun, ever."""
        until(
            lambda: sum(self.look()[each] for each in ("open", "ended")) >= count,
            what=f"{count} greedy connections",
            deadline_s=deadline_s,
        )


# -- in the process ----------------------------------------------------------------------------


def opened_to(target: Target, stage: str = "all", limit_s: float = LOGIN_S) -> socket.socket:
    """A new connection that has come to that stage, not blocking. Raises: OSError, EOFError."""
    source = (target.source, 0) if target.source else None
    opened = socket.create_connection((target.host, target.port), limit_s, source)
    reached = STAGES.index(stage)
    try:
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if target.is_tls and stage == "hello":
            hello = client_hello(target.certificate)
            opened.sendall(hello[: len(hello) // 2])
        if target.is_tls and reached >= STAGES.index("tls"):
            opened = _tls(target.certificate).wrap_socket(opened, server_hostname=target.host)
        if target.user and reached >= STAGES.index("mechanism"):
            _log_in(opened, target.user, target.password, stage)
        opened.setblocking(False)
    except BaseException:
        opened.close()
        raise
    return opened


def client_hello(certificate: str = "") -> bytes:
    """What a client of TLS says first."""
    outgoing = ssl.MemoryBIO()
    client = _tls(certificate).wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def _tls(certificate: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if certificate:
        context.load_cert_chain(certificate)
    return context


def _log_in(opened: socket.socket, user: str, password: str, stage: str) -> None:
    _ask(opened, SaslHandshakeRequest(mechanism="SCRAM-SHA-512"), 1)
    if stage == "mechanism":
        return
    client = ScramClient("sha512", user, password, uuid.uuid4().hex)
    token: bytes | None = client.first()
    while token is not None:
        answer = _ask(opened, SaslAuthenticateRequest(auth_bytes=token), 2)
        if answer.error_code:
            raise ConnectionRefusedError(errno.EACCES, str(answer.error_message))
        if stage == "token":
            return
        token = client.answer(bytes(answer.auth_bytes))


def framed(message: Message, version: int) -> bytes:
    """A request as a client sends it."""
    parts = encode_request(message, api_version=version, correlation_id=1, client_id="greedy")
    return b"".join(map(bytes, parts))


def _ask(opened: socket.socket, message: Message, version: int) -> Any:
    opened.sendall(framed(message, version))
    (size,) = struct.unpack(">i", _read(opened, 4))
    return decode_response(message.API_KEY, version, _read(opened, size))[1]


def _read(opened: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = opened.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data


class _Client:
    """One connection. `go` does the next step, and raises OSError when it has ended."""

    def __init__(self, target: Target, greed: Greed, limit_s: float) -> None:
        self._socket = opened_to(target, greed.stage, limit_s)
        self._greed = greed
        self._due_s = 0.0
        self._end_s = time.monotonic() + greed.life_s if greed.life_s else float("inf")
        kind, size = greed.kind, greed.frame_bytes
        self._request = bytes.fromhex(greed.request) or framed(ApiVersionsRequest(), 0)
        self._head = struct.pack(">i", size) if kind in ("slow", "huge", "whole") else b""
        if kind == "drip":
            self._head = self._request
        #: Of the frame, what is sent at full speed, and what drips.
        fast_bytes = {"slow": 8, "huge": size - 1024, "whole": size}.get(kind, 0)
        self._fast_bytes = max(0, min(size, fast_bytes))
        self._slow_bytes = size - self._fast_bytes
        self._unsent = b""

    def close(self) -> None:
        self._socket.close()

    def go(self, now_s: float) -> None:
        if now_s > self._end_s:
            raise ConnectionAbortedError(errno.ECONNABORTED, "its life is over")
        if now_s < self._due_s:
            return
        with contextlib.suppress(*_NOT_NOW):
            self._write(now_s)
        with contextlib.suppress(*_NOT_NOW):
            while self._greed.kind != "unread":
                if not self._socket.recv(STEP_BYTES):
                    raise ConnectionResetError(errno.ECONNRESET, "ended")

    def _write(self, now_s: float) -> None:
        if self._greed.kind in ("pipelined", "unread"):
            if not self._unsent:
                self._unsent = self._request * max(1, STEP_BYTES // 4 // len(self._request))
            self._unsent = self._unsent[self._socket.send(self._unsent) :]
        elif self._head:
            self._head = self._head[self._socket.send(self._head) :]
        elif self._fast_bytes:
            self._fast_bytes -= self._socket.send(_ZEROS[: self._fast_bytes])
        else:
            self._due_s = now_s + self._greed.pause_s
            step = min(self._greed.step_bytes, self._slow_bytes - 1, STEP_BYTES)
            if step > 0 and self._greed.kind != "silent":
                self._slow_bytes -= self._socket.send(_ZEROS[:step])


def play(
    target: Target,
    greed: Greed,
    is_over: Callable[[], bool],
    say: Callable[[dict[str, int]], None] = lambda _: None,
    limit_s: float = LOGIN_S,
) -> dict[str, int]:
    """Be greedy until `is_over`. Returns the counts (see `GreedyClients`), which `say` hears all
    the time.
    """
    clients: list[_Client] = []
    counts = {"open": 0, "ended": 0, "failed": 0}
    while not is_over():
        now_s = time.monotonic()
        for _ in range(min(200, greed.count - len(clients))):
            if time.monotonic() > now_s + MAX_OPENING_S:
                break
            try:
                clients.append(_Client(target, greed, limit_s))
            except (OSError, EOFError):
                counts["failed"] += 1
                break
        for client in list(clients):
            try:
                client.go(now_s)
            except OSError:
                client.close()
                clients.remove(client)
                counts["ended"] += 1
        counts["open"] = len(clients)
        say(counts)
    for client in clients:
        client.close()
    return counts


def permit_many_files() -> None:
    """As many connections as the machine permits this process."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _run(target: Target, greed: Greed) -> None:
    permit_many_files()
    said_s = 0.0

    def say(counts: dict[str, int]) -> None:
        nonlocal said_s
        if time.monotonic() >= said_s + 0.2:
            said_s = time.monotonic()
            print(json.dumps(counts), flush=True)

    play(target, greed, lambda: bool(select.select([sys.stdin], [], [], 0.005)[0]), say)


def ports_of(properties: Path) -> dict[str, int]:
    """The ports of a node's listeners by name, of its server.properties."""

    def found() -> Iterator[tuple[str, int]]:
        for line in properties.read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition("=")
            for each in value.split(",") if key == "listeners" else ():
                name, _, address = each.partition("://")
                yield name, int(address.rpartition(":")[2])

    return dict(found())


if __name__ == "__main__":
    order = json.loads(sys.argv[1])
    _run(Target(**order["target"]), Greed(**order["greed"]))
