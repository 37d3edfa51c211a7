"""`python -m tests.system.security.front_ends --minutes N --seed S`: nonsense and greed.

Two real nodes with a listener of each kind (`storm_nodes.py`). Many connections at once send what
no client would: noise, frames of every length, conversations with changed tokens, pieces of TLS,
TLS where there is none and the other way round, and some that say nothing and stay. Beside them
processes of greedy clients take what they can get at every listener (`greedy_plays.py`): slow,
huge, many, silent, nested, pipelined. All the time a good client of each kind is served:
a refusal, or a request that takes longer than its usual timeout, is a complaint. In the end the
nodes have to run, with no broker fenced; memory has never been above what budgets allow; logs have
neither an exception nor a secret, nor a line again and again. Ends with status 1 otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import ssl
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from moldau.protocol.headers import encode_request
from moldau.protocol.messages.p17_sasl_handshake import SaslHandshakeRequest
from moldau.protocol.messages.p18_api_versions import ApiVersionsRequest
from moldau.protocol.messages.p36_sasl_authenticate import SaslAuthenticateRequest
from moldau.protocol.schema import Message
from moldau.runtime.garbage_collector import CHECK_S as MEMORY_CHECK_S
from tests.kit.repeated_lines import repeated_lines
from tests.kit.soaks import Say, fault_run, soak_parser
from tests.kit.waiting import patience, until
from tests.system.replication.chaos_cluster import UNEXPECTED
from tests.system.security.nodes import HOST, PASSWORD, SecuredNode
from tests.system.security.storm_nodes import (
    FENCED,
    LARGE_TOPIC,
    PEAK_BYTES,
    USERS,
    GoodClient,
    StormNodes,
    good_clients,
    resident_bytes,
)

LISTENERS: Final = (
    *("PLAINTEXT", "SSL", "MTLS", "SASL_PLAINTEXT", "SASL_SSL"),
    *("INTERNAL", "CONTROLLER", "HTTP"),
)
TLS_LISTENERS: Final = ("SSL", "MTLS", "SASL_SSL", "INTERNAL", "CONTROLLER")
SASL_LISTENERS: Final = ("SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", "žluť", "")
SENDER: Final = "127.0.2.1"
"""The address that nonsense comes from: good clients are at another."""

AT_ONCE: Final = 24
MOST_SILENT: Final = 150
MOST_BYTES: Final = 70_000
ANSWER_S: Final = 0.15
SECRETS: Final = (PASSWORD, "b-secret", "t-secret")
#: What a node may hold more in the end than at the beginning: groups, ids and tokens stay.
GROWTH_BYTES: Final = 192 * 2**20
HALVED_S: Final = 600.0
"""A storm that is as long has a rest in the middle."""
MORE_BYTES: Final = 32 * 2**20
"""What its second half may add to what a node holds in that rest. Behind 30 minutes 117 of Python's
arenas, of 1 MiB each, had 46 MiB in use, and the C library held 254 MiB for 99: fragments, of which
the first half should leave most. What is lost with each connection grows on in the second.
"""
SETTLED_S: Final = MEMORY_CHECK_S + 30.0
"""A node gives memory back when it looks for that, which is once a minute."""

CHECK_S: Final = 0.5
ATTACKERS: Final = 3
REQUEST_TIMEOUT_MS: Final = 30_000
"""What clients have by themselves."""

PAUSE_S: Final = 0.3
"""The pause between two rounds of a good client."""

MOST_PLAY_S: Final = 12.0
ROOT: Final = Path(__file__).parents[3]
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
    """What one run came to.

    Attributes:
        counts, plays: cases of nonsense, and plays of greed, by kind.
        served: rounds of good clients, and the longest in seconds, by name.
        before_bytes, peak_bytes, after_bytes: memory of the node that takes most.
    """

    counts: Counter[str] = field(default_factory=Counter)
    plays: Counter[str] = field(default_factory=Counter)
    served: dict[str, tuple[int, float]] = field(default_factory=dict)
    before_bytes: int = 0
    peak_bytes: int = 0
    after_bytes: int = 0
    complaints: list[str] = field(default_factory=list)

    def complain(self, found: list[str]) -> None:
        """Add them, but for those that are known."""
        self.complaints += [each for each in found if each not in self.complaints]

    def line(self) -> str:
        """The result in one line."""
        cases, plays = (
            ", ".join(f"{kind} {count:,}" for kind, count in sorted(each.items()))
            for each in (self.counts, self.plays)
        )
        rounds = ", ".join(
            f"{name} {count:,} (longest {longest_s:.2f} s)"
            for name, (count, longest_s) in self.served.items()
        )
        sizes = (self.before_bytes, self.peak_bytes, self.after_bytes)
        before, peak, after = (f"{size / 2**20:.0f}" for size in sizes)
        return (
            f"{self.counts.total():,} cases ({cases}); greed: {plays}; rounds of good clients: "
            f"{rounds}; memory {before} MiB before, {peak} at most, {after} in the end"
        )


class Nonsense:
    """Connections of every kind, each from the dice alone."""

    def __init__(self, node: StormNodes, dice: random.Random) -> None:
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
        """The first words of TLS, changed, cut, or where no peer expects them."""
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
        return await asyncio.open_connection(
            HOST, self._node.port(name), ssl=context, local_addr=(SENDER, 0)
        )

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


class Attackers:
    """Processes of greedy clients, each with dice of its own. Use as a context: starts them, and
    `go` lets them begin.
    """

    def __init__(self, directory: Path) -> None:
        self._said = [directory / f"attacker-{number}.out" for number in range(ATTACKERS)]
        self._processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        for path in self._said:
            with path.open("wb") as out:
                self._processes.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "tests.system.security.greedy_plays"],
                        cwd=ROOT,
                        env={**os.environ, "PYTHONPATH": str(ROOT)},
                        stdin=subprocess.PIPE,
                        stdout=out,
                        stderr=out,
                        text=True,
                    )
                )
        return self

    def go(self, nodes: StormNodes, dice: random.Random, most_s: float, only: list[str]) -> None:
        """Attack these nodes; a play takes so many seconds at most, and is one of those, or any."""
        for process in self._processes:
            order = {
                "seed": dice.getrandbits(32),
                "listeners": nodes.ports(),
                "certificates": {each: str(nodes.certificate(each)) for each in USERS},
                "password": PASSWORD,
                "most_s": most_s,
                "large_topic": LARGE_TOPIC,
                "topic_id": nodes.large_topic_id,
                "only": only,
            }
            assert process.stdin is not None
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.close()

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Their connections end with them."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
            process.kill()
            process.wait()

    def complaints(self) -> list[str]:
        """What has ended by itself: a fault of the attacker."""
        return [
            f"an attacker has ended: {path.read_text()[-2_000:]}"
            for path, process in zip(self._said, self._processes, strict=True)
            if process.poll() is not None
        ]

    def counts(self) -> Counter[str]:
        """Their plays, by kind, and their connections."""
        total: Counter[str] = Counter()
        for path in self._said:
            lines = path.read_text().splitlines()
            total.update(json.loads(lines[-1]) if lines else {})
        return total


def fuzz(
    directory: Path,
    *,
    seed: int,
    seconds: float,
    say: Say,
    timeout_ms: int = REQUEST_TIMEOUT_MS,
    most_play_s: float = MOST_PLAY_S,
    only: Collection[str] = (),
) -> Outcome:
    """Run it.

    Args:
        timeout_ms: good clients' request timeout.
        most_play_s: how long a play of the greedy lasts at most.
        only: plays of the greedy, by name; empty for all.
    """
    outcome = Outcome()
    dice = random.Random(seed)
    halves = 2 if seconds >= HALVED_S else 1
    with StormNodes(directory) as nodes:
        good = good_clients(nodes, timeout_ms, PAUSE_S)
        for each in good:
            each.start()
        until(lambda: _have_begun(good, outcome), what="good clients are served before the storm")
        outcome.before_bytes = outcome.peak_bytes = max(nodes.memory_bytes())
        limit_s = timeout_ms / 1000 * patience()
        most_bytes = outcome.before_bytes + GROWTH_BYTES
        for half in range(halves):
            with Attackers(directory) as attackers:
                attackers.go(nodes, dice, most_play_s, [*only])
                storm = _storm(nodes, dice, seconds / halves, outcome, good, attackers, limit_s)
                asyncio.run(storm)
                outcome.plays += attackers.counts()
            say("the storm is over")
            if half + 1 < halves and not outcome.complaints:
                rest_bytes = _at_rest(nodes, 0)
                say(f"{rest_bytes >> 20} MiB at rest")
                most_bytes = max(most_bytes, rest_bytes + MORE_BYTES)
        _judge_end(nodes, outcome, good, limit_s, most_bytes)
        if outcome.complaints:
            nodes.kill()
    outcome.complain(complaints_in(nodes.log()))
    for node in nodes.nodes.values():
        log = node.log_path.read_text(encoding="utf-8")
        outcome.complain(repeated_lines(log, with_left_out=False))
    return outcome


def _have_begun(good: list[GoodClient], outcome: Outcome) -> bool:
    outcome.complain([each.failure for each in good if each.failure])
    return bool(outcome.complaints) or all(each.rounds for each in good)


def _at_rest(nodes: StormNodes, enough_bytes: int) -> int:
    """The least that the larger node holds until it has given back what it can, or is below a
    bound: silent connections are cut by the node itself, or end with the storm.
    """
    seen = [max(nodes.memory_bytes(), default=0)]

    def is_enough() -> bool:
        seen.append(max(nodes.memory_bytes(), default=0))
        return seen[-1] < enough_bytes

    with contextlib.suppress(TimeoutError):
        until(is_enough, what="memory is given back", deadline_s=SETTLED_S)
    return min(seen)


def _judge_end(
    nodes: StormNodes,
    outcome: Outcome,
    good: list[GoodClient],
    limit_s: float,
    most_bytes: int,
) -> None:
    """What good clients, memory and processes are like when the storm is over."""
    for each in good:
        each.begin_to_end()
    end_s = time.monotonic() + limit_s
    for each in good:
        outcome.complain(each.end(max(0.0, end_s - time.monotonic())))
        outcome.served[each.name] = (each.rounds, each.longest_s)
    if not outcome.complaints:
        outcome.after_bytes = _at_rest(nodes, most_bytes)
    outcome.complain(complaints_about_nodes(nodes, outcome))
    if outcome.after_bytes >= most_bytes:
        outcome.complain([f"{outcome.after_bytes} bytes in the end, {most_bytes} are allowed"])


def complaints_about_nodes(nodes: StormNodes, outcome: Outcome) -> list[str]:
    """What may never be, at any moment."""
    found = [
        f"node {node_id} has ended: {node.log_tail()}"
        for node_id, node in nodes.nodes.items()
        if not node.running
    ]
    now_bytes = max(nodes.memory_bytes(), default=0)
    outcome.peak_bytes = max(outcome.peak_bytes, now_bytes)
    if outcome.peak_bytes > outcome.before_bytes + PEAK_BYTES:
        found.append(f"memory was at more than {PEAK_BYTES} bytes above what it was before")
    return found


def complaints_in(log: str) -> list[str]:
    """What a node may never log: an exception that it did not expect, a secret, and that its broker
    is fenced.
    """
    lines = log.splitlines()
    found = [line for line in lines if UNEXPECTED.search(line) or FENCED in line]
    return found + [f"a secret: {line}" for line in lines if any(each in line for each in SECRETS)]


def memory_bytes(node: SecuredNode) -> int:
    """The node's resident memory."""
    return resident_bytes(node.process.pid)


async def _storm(
    nodes: StormNodes,
    dice: random.Random,
    seconds: float,
    outcome: Outcome,
    good: list[GoodClient],
    attackers: Attackers,
    limit_s: float,
) -> None:
    nonsense = Nonsense(nodes, dice)
    end = time.monotonic() + seconds

    def goes_on() -> bool:
        return time.monotonic() < end and not outcome.complaints

    async def one_after_the_other() -> None:
        while goes_on():
            kind = dice.choice(list(nonsense.kinds))
            outcome.counts[kind] += 1
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await nonsense.kinds[kind]()

    never = asyncio.Event()

    async def watch() -> None:
        while goes_on():
            for each in good:
                outcome.complain(each.complaint(limit_s))
            outcome.complain(attackers.complaints())
            outcome.complain(complaints_about_nodes(nodes, outcome))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(never.wait(), CHECK_S)

    async with asyncio.TaskGroup() as group:
        cases = [group.create_task(one_after_the_other()) for _ in range(AT_ONCE)]
        await watch()
        for case in cases:  # a node that is stuck would keep them
            case.cancel()
    nonsense.close()


def main() -> int:
    """The command; returns its exit status."""
    parser = soak_parser("make fuzz-listeners", "Nonsense and greedy clients at every listener.")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--only", default="", metavar="PLAY,…", help="of the greedy: these alone")
    parser.add_argument("--keep", type=Path, help="leave the nodes' directories there")
    options = parser.parse_args()
    with fault_run(options) as (directory, seed, say):
        directory.mkdir(parents=True, exist_ok=True)
        outcome = fuzz(
            directory,
            seed=seed,
            seconds=options.minutes * 60,
            say=say,
            only=[each for each in options.only.split(",") if each],
        )
    print(*outcome.complaints, outcome.line(), sep="\n")
    return 1 if outcome.complaints else 0


if __name__ == "__main__":
    sys.exit(main())
