"""`python -m tests.system.security.front_ends --minutes N --seed S`: nonsense at secured listeners.

One real node with a listener of each protocol. Many connections at once send what no client would:
noise, frames of every length, conversations with changed tokens, pieces of TLS, TLS where there is
none and the other way round, and some that say nothing and stay. Meanwhile a good client of each
listener is served all the time. In the end the node has to run, its memory is what it was but for
a bounded rest, and its log has neither an exception nor a secret. Ends with status 1 otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
import struct
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from moldau.client import KafkaError
from moldau.client.sync import Admin
from moldau.protocol.headers import encode_request
from moldau.protocol.messages.p17_sasl_handshake import SaslHandshakeRequest
from moldau.protocol.messages.p18_api_versions import ApiVersionsRequest
from moldau.protocol.messages.p36_sasl_authenticate import SaslAuthenticateRequest
from moldau.protocol.schema import Message
from tests.kit.repeated_lines import repeated_lines
from tests.kit.soaks import Say, fault_run, soak_parser
from tests.kit.waiting import until
from tests.system.replication.chaos_cluster import UNEXPECTED
from tests.system.security.nodes import HOST, PASSWORD, SecuredNode

LISTENERS: Final = ("PLAINTEXT", "SSL", "MTLS", "SASL_PLAINTEXT", "SASL_SSL")
TLS_LISTENERS: Final = ("SSL", "MTLS", "SASL_SSL")
SASL_LISTENERS: Final = ("SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", "žluť", "")
AT_ONCE: Final = 24
MOST_SILENT: Final = 150
MOST_BYTES: Final = 70_000
ANSWER_S: Final = 0.15
SECRETS: Final = (PASSWORD, "b-secret")
#: What a node may hold more in the end than at the beginning.
GROWTH_BYTES: Final = 96 * 2**20
SETTLED_S: Final = 60.0
CHECK_S: Final = 1.0
_TOKENS: Final = (
    b"\0alice\0guessed",
    b"alice\0alice\0guessed",
    b"n,,n=alice,r=abcdef",
    b"n,,n=alice,r=abcdef,tokenauth=true",
    b"y,,n=alice,r=abcdef",
    b"p=tls-unique,,n=alice,r=abcdef",
    b"c=biws,r=abcdef,p=AAAA",
    b"n,a=alice,\x01auth=Bearer e30.e30.\x01\x01",
    b"",
)


@dataclass(slots=True)
class Outcome:
    """What one run came to."""

    counts: Counter[str] = field(default_factory=Counter)
    served_count: int = 0
    before_bytes: int = 0
    peak_bytes: int = 0
    after_bytes: int = 0
    complaints: list[str] = field(default_factory=list)

    def line(self) -> str:
        """The result in one line."""
        counts = ", ".join(f"{kind} {count:,}" for kind, count in sorted(self.counts.items()))
        sizes = (self.before_bytes, self.peak_bytes, self.after_bytes)
        before, peak, after = (f"{size / 2**20:.0f}" for size in sizes)
        return (
            f"{self.counts.total():,} cases ({counts}); good clients served {self.served_count:,} "
            f"times; memory {before} MiB before, {peak} at most, {after} in the end"
        )


class Nonsense:
    """Connections of every kind, each from the dice alone."""

    def __init__(self, node: SecuredNode, dice: random.Random) -> None:
        self._node = node
        self._dice = dice
        self._silent: list[asyncio.StreamWriter] = []
        self._client_context = ssl.create_default_context(cafile=str(node.trust_path))
        self.kinds: dict[str, Callable[[], Awaitable[None]]] = {
            "noise": self.noise,
            "frames": self.frames,
            "tokens": self.tokens,
            "changed hello": self.changed_hello,
            "noise inside TLS": self.noise_inside_tls,
            "noise after the handshake": self.noise_after_handshake,
            "HTTP": self.http,
            "silence": self.silence,
        }

    async def noise(self) -> None:
        await self._say(self._listener(LISTENERS), [self._noise()])

    async def frames(self) -> None:
        """A length, true or not, and what follows it."""
        dice, body = self._dice, self._noise(2_000)
        lengths = (len(body), 0, -1, 2**31 - 1, -(2**31), 524_288, 524_289, dice.getrandbits(31))
        length = struct.pack(">i", dice.choice(lengths))
        await self._say(self._listener(LISTENERS), [self._request(), length + body])

    async def tokens(self) -> None:
        """A conversation in order, with a token that is not."""
        dice, name = self._dice, self._dice.choice(SASL_LISTENERS)
        handshake = SaslHandshakeRequest(mechanism=dice.choice(MECHANISMS))
        version = dice.choice((0, 1))
        parts = [framed(handshake, version, 1)]
        for number in range(dice.randint(1, 4)):
            token = self._changed(dice.choice(_TOKENS))
            if version == 0 and dice.random() < 0.8:
                parts.append(struct.pack(">i", len(token)) + token)
            else:
                request = SaslAuthenticateRequest(auth_bytes=token)
                parts.append(framed(request, dice.choice((0, 1, 2)), number + 2))
        if dice.random() < 0.3:
            parts.insert(0, self._request())
        if dice.random() < 0.2:
            parts[-1] = self._changed(parts[-1])
        await self._say(name, parts, has_tls=name == "SASL_SSL")

    async def changed_hello(self) -> None:
        """The first words of TLS, changed, cut, or where nobody expects them."""
        await self._say(self._listener(LISTENERS), [self._changed(self._hello())])

    async def noise_inside_tls(self) -> None:
        """TLS has begun in order; then comes what is no record of it."""
        hello = self._hello()
        await self._say(self._listener(TLS_LISTENERS), [hello, self._noise()])

    async def noise_after_handshake(self) -> None:
        name = self._dice.choice(("SSL", "SASL_SSL"))
        await self._say(name, [self._noise(), self._request()], has_tls=True)

    async def http(self) -> None:
        await self._say(self._listener(LISTENERS), [b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"])

    async def silence(self) -> None:
        """A byte, or none, and then nothing."""
        _, writer = await self._open(self._listener(LISTENERS), has_tls=False)
        writer.write(self._noise(1))
        self._silent.append(writer)
        if len(self._silent) > MOST_SILENT:
            self._end(self._silent.pop(0))

    def close(self) -> None:
        """End those that are silent."""
        for writer in self._silent:
            self._end(writer)

    # -- what they say ---------------------------------------------------------------------------

    def _listener(self, names: tuple[str, ...]) -> str:
        return self._dice.choice(names)

    def _noise(self, most: int = MOST_BYTES) -> bytes:
        return self._dice.randbytes(int(most ** self._dice.random()))

    def _request(self) -> bytes:
        return framed(ApiVersionsRequest(), 0, 7)

    def _hello(self) -> bytes:
        outgoing = ssl.MemoryBIO()
        names = ("localhost", "a" * 255 if self._dice.random() < 0.1 else "other")
        tls = self._client_context.wrap_bio(
            ssl.MemoryBIO(), outgoing, server_hostname=self._dice.choice(names)[:63]
        )
        with contextlib.suppress(ssl.SSLWantReadError):
            tls.do_handshake()
        return outgoing.read()

    def _changed(self, data: bytes) -> bytes:
        """Some bytes other, more or fewer."""
        dice, changed = self._dice, bytearray(data)
        for _ in range(dice.randint(0, 4)):
            at = dice.randint(0, len(changed))
            kind = dice.randrange(4)
            if kind == 0 and at < len(changed):
                changed[at] = dice.getrandbits(8)
            elif kind == 1:
                changed[at:at] = dice.randbytes(dice.randint(1, 40))
            elif kind == 2:
                del changed[at : at + dice.randint(1, 40)]
            else:
                changed += changed * dice.randint(0, 3)
        return bytes(changed[:MOST_BYTES])

    # -- how they say it -------------------------------------------------------------------------

    async def _open(self, name: str, *, has_tls: bool) -> tuple[Any, asyncio.StreamWriter]:
        context = self._client_context if has_tls else None
        return await asyncio.open_connection(HOST, self._node.port(name), ssl=context)

    async def _say(self, name: str, parts: list[bytes], *, has_tls: bool = False) -> None:
        reader, writer = await self._open(name, has_tls=has_tls)
        try:
            for part in parts:
                writer.write(part)
                with contextlib.suppress(TimeoutError):
                    if not await asyncio.wait_for(reader.read(4_096), ANSWER_S):
                        return
        finally:
            self._end(writer)

    def _end(self, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()


def framed(message: Message, version: int, number: int) -> bytes:
    """A request as a client sends it."""
    parts = encode_request(message, api_version=version, correlation_id=number, client_id="fuzz")
    return b"".join(map(bytes, parts))


def fuzz(directory: Path, *, seed: int, seconds: float, say: Say) -> Outcome:
    """Run it."""
    outcome = Outcome()
    dice = random.Random(seed)
    with SecuredNode(directory) as node:
        good = good_clients(node)
        outcome.complaints += refused(good, outcome)
        outcome.before_bytes = memory_bytes(node)
        asyncio.run(_storm(node, dice, seconds, outcome, good))
        say("the storm is over")
        # Silent connections are cut by the node itself, or end with the storm.
        with contextlib.suppress(TimeoutError):
            until(
                lambda: memory_bytes(node) < outcome.before_bytes + GROWTH_BYTES,
                what="memory is given back",
                deadline_s=SETTLED_S,
            )
        outcome.after_bytes = memory_bytes(node)
        outcome.complaints += refused(good, outcome)
        if outcome.after_bytes >= outcome.before_bytes + GROWTH_BYTES:
            outcome.complaints.append(f"memory has grown by more than {GROWTH_BYTES} bytes")
        if not node.process.running:
            outcome.complaints.append(f"the node has ended: {node.process.log_tail()}")
        outcome.complaints += complaints_in(node.log())
        outcome.complaints += repeated_lines(node.log(), with_left_out=False)
    return outcome


def complaints_in(log: str) -> list[str]:
    """What a node may never log: an exception that it did not expect, and a secret."""
    lines = log.splitlines()
    found = [line for line in lines if UNEXPECTED.search(line)]
    return found + [f"a secret: {line}" for line in lines if any(each in line for each in SECRETS)]


def good_clients(node: SecuredNode) -> list[dict[str, Any]]:
    """Settings of clients that are to be served whatever happens."""
    login = {"sasl_mechanism": "PLAIN", "sasl_username": "alice", "sasl_password": PASSWORD}
    return [
        {"bootstrap_servers": node.address("SSL"), "security_protocol": "SSL", **node.trust},
        {
            "bootstrap_servers": node.address("SASL_PLAINTEXT"),
            "security_protocol": "SASL_PLAINTEXT",
            **login,
        },
        {
            "bootstrap_servers": node.address("SASL_SSL"),
            "security_protocol": "SASL_SSL",
            **login,
            **node.trust,
        },
    ]


def refused(clients: list[dict[str, Any]], outcome: Outcome) -> list[str]:
    """What good clients complain about."""
    complaints = []
    for settings in clients:
        try:
            with Admin(**settings) as admin:
                admin.list_topics()
        except KafkaError as error:
            complaints.append(f"{settings['security_protocol']}: {error}")
        outcome.served_count += 1
    return complaints


def memory_bytes(node: SecuredNode) -> int:
    """The node's resident memory."""
    status = Path(f"/proc/{node.process.pid}/status").read_text()
    [line] = (line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


async def _storm(
    node: SecuredNode,
    dice: random.Random,
    seconds: float,
    outcome: Outcome,
    good: list[dict[str, Any]],
) -> None:
    nonsense = Nonsense(node, dice)
    end = time.monotonic() + seconds

    async def one_after_the_other() -> None:
        while time.monotonic() < end and not outcome.complaints:
            kind = dice.choice(list(nonsense.kinds))
            outcome.counts[kind] += 1
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await nonsense.kinds[kind]()

    never = asyncio.Event()

    async def watch() -> None:
        while time.monotonic() < end and not outcome.complaints:
            outcome.complaints += await asyncio.to_thread(refused, good, outcome)
            outcome.peak_bytes = max(outcome.peak_bytes, memory_bytes(node))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(never.wait(), CHECK_S)

    async with asyncio.TaskGroup() as group:
        group.create_task(watch())
        for _ in range(AT_ONCE):
            group.create_task(one_after_the_other())
    nonsense.close()


def main() -> int:
    """The command; returns its exit status."""
    parser = soak_parser("make fuzz-listeners", "Nonsense at TLS and SASL listeners.")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--keep", type=Path, help="leave the node's directory there")
    options = parser.parse_args()
    with fault_run(options) as (directory, seed, say):
        directory.mkdir(parents=True, exist_ok=True)
        outcome = fuzz(directory, seed=seed, seconds=options.minutes * 60, say=say)
    print(*outcome.complaints, outcome.line(), sep="\n")
    return 1 if outcome.complaints else 0


if __name__ == "__main__":
    sys.exit(main())
