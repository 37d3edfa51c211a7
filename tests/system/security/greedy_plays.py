"""An attacker from the dice: `python -m tests.system.security.greedy_plays`, until killed.

Plays one kind of greed after the other against listeners that the dice choose, with counts, sizes
and rates from the dice, and prints the counts of its plays, a line of JSON each time. Its order is
a line of JSON, too, with the fields of `Order`. Owns what greedy clients say. Must not: judge.
"""

from __future__ import annotations

import dataclasses
import json
import random
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Final
from uuid import UUID

from moldau.protocol.messages.p01_fetch import FetchPartition, FetchRequest, FetchTopic
from moldau.protocol.messages.p03_metadata import MetadataRequest, MetadataRequestTopic
from moldau.protocol.messages.p08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from moldau.protocol.messages.p10_find_coordinator import FindCoordinatorRequest
from moldau.protocol.messages.p11_join_group import JoinGroupRequest, JoinGroupRequestProtocol
from moldau.protocol.messages.p18_api_versions import ApiVersionsRequest
from moldau.protocol.messages.p19_create_topics import CreatableTopic, CreateTopicsRequest
from moldau.protocol.messages.p20_delete_topics import DeleteTopicsRequest, DeleteTopicState
from moldau.protocol.messages.p22_init_producer_id import InitProducerIdRequest
from moldau.protocol.messages.p32_describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from moldau.protocol.messages.p38_create_delegation_token import CreateDelegationTokenRequest
from moldau.protocol.messages.p41_describe_delegation_token import DescribeDelegationTokenRequest
from moldau.protocol.messages.p44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from moldau.protocol.messages.p60_describe_cluster import DescribeClusterRequest
from moldau.protocol.messages.p66_list_transactions import ListTransactionsRequest
from moldau.protocol.messages.p68_consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from moldau.protocol.schema import Message
from moldau.protocol.varint import unsigned_varint
from tests.system.http.greedy import SENDS
from tests.system.security.greedy import STAGES, Greed, Target, framed, permit_many_files, play
from tests.system.security.greedy_requests import (
    COSTLY,
    large_describe_configs,
    large_offset_fetch,
)

WEB: Final = ("HTTP", "HTTPS")
BY_CERTIFICATE: Final = ("MTLS", "INTERNAL", "CONTROLLER")
LIMIT_S: Final = 5.0
"""How long a login may take, and what it waits for."""

MAX_TIMEOUT_MS: Final = 2**31 - 1
USERS: Final = ("mallory", "bob")
MIB: Final = 2**20


@dataclasses.dataclass(frozen=True)
class Order:
    """What an attacker is to do.

    Attributes:
        listeners: names and ports; HTTP and HTTPS are no listeners of Kafka's protocol.
        certificates: PEM files, by user.
        most_s: how long a play takes at most.
        only: names of `Plays.kinds` that it plays; empty for all.
        large_topic: one that is worth reading, and which every user may read.
        topic_id: its id.
    """

    seed: int
    listeners: list[tuple[str, int]]
    certificates: dict[str, str]
    password: str
    most_s: float
    large_topic: str
    topic_id: str
    only: list[str]
    host: str = "127.0.0.1"


class Plays:
    """Draws what to do next; `kinds` has all, by name."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._dice = random.Random(order.seed)
        self.kinds: dict[str, Callable[[], tuple[Target, Greed]]] = {
            "slow frames": self.slow,
            "huge frames": self.huge,
            "many connections": self.many,
            "churn": self.churn,
            "half logins": self.half_logins,
            "nested": self.nested,
            "decoded to the edge": self.decoded,
            "pipelined": self.pipelined,
            "unread": self.unread,
            "expressions": self.expressions,
            "producer ids": self.producer_ids,
            "forwarded": self.forwarded,
            "tokens": self.tokens,
            "ids": self.ids,
            "web": self.web,
        }

    def seconds(self) -> float:
        return self._dice.uniform(0.2, 1.0) * self._order.most_s

    def __call__(self) -> tuple[str, Target, Greed]:
        kind = self._dice.choice(self._order.only or list(self.kinds))
        return (kind, *self.kinds[kind]())

    # -- whom --------------------------------------------------------------------------------------

    def _target(self, *, web: bool = False, logs_in: bool = False, user: str = "") -> Target:
        """A listener, and as whom.

        Args:
            web: of HTTP, or of Kafka's protocol.
            logs_in: whether it must be one that knows its clients.
        """
        dice, order = self._dice, self._order
        user = user or dice.choice(USERS)
        names = [
            (name, port)
            for name, port in order.listeners
            if (name in WEB) is web and not (logs_in and name in ("PLAINTEXT", "SSL"))
        ]
        name, port = dice.choice(names)
        return Target(
            order.host,
            port,
            is_tls=name in ("SSL", "SASL_SSL", "HTTPS", *BY_CERTIFICATE),
            certificate=order.certificates[user] if name in BY_CERTIFICATE else "",
            user=user if name.startswith("SASL") else "",
            password=order.password,
            source=f"127.0.1.{dice.randint(1, 20)}",
        )

    def _up_to(self, most: int) -> int:
        """Any number; small ones as often as large ones."""
        return max(1, int(most ** self._dice.random()))

    # -- what needs no words of the protocol -------------------------------------------------------

    def slow(self) -> tuple[Target, Greed]:
        """Frames of any size at any rate: 1 byte in 4 s, up to 1.3 MiB/s."""
        dice = self._dice
        greed = Greed(
            "slow",
            self._up_to(300),
            frame_bytes=dice.choice((self._up_to(8 * MIB), 512 * 1024, 8 * MIB, 2**31 - 1)),
            pause_s=dice.uniform(0.05, 4.0),
            step_bytes=self._up_to(65_536),
            stage=dice.choice((*STAGES, "all")),
        )
        return self._target(), greed

    def huge(self) -> tuple[Target, Greed]:
        """Large frames that are sent, with or without their end."""
        dice = self._dice
        greed = Greed(
            dice.choice(("huge", "huge", "whole")),
            dice.randint(8, 40),
            frame_bytes=dice.choice((8 * MIB, 8 * MIB, 8 * MIB, self._up_to(8 * MIB) + 2048)),
            pause_s=dice.uniform(0.05, 2.0),
            stage=dice.choice(("tls", "all", "all")),
        )
        return self._target(), greed

    def many(self) -> tuple[Target, Greed]:
        stage = self._dice.choice(STAGES)
        return self._target(), Greed("silent", self._dice.randint(100, 500), stage=stage)

    def churn(self) -> tuple[Target, Greed]:
        dice = self._dice
        greed = Greed("silent", 50, stage=dice.choice(STAGES), life_s=dice.uniform(0.001, 0.3))
        return self._target(web=dice.random() < 0.2), greed

    def half_logins(self) -> tuple[Target, Greed]:
        """Half of the first words of TLS, half an exchange of SASL, and more bytes now and then."""
        dice, stage = self._dice, self._dice.choice(("hello", "mechanism", "token"))
        kind = dice.choice(("silent", "slow"))
        greed = Greed(kind, self._up_to(300), frame_bytes=self._up_to(524_288), stage=stage)
        return self._target(logs_in=stage != "hello"), greed

    # -- what does ---------------------------------------------------------------------------------

    def nested(self) -> tuple[Target, Greed]:
        """Great counts: of arrays, true or not, of what is in them, and of tagged fields."""
        dice, count = self._dice, self._up_to(1_000_000)
        frames = (
            lambda: large_describe_configs(min(count, 500_000)),
            lambda: _behind(MetadataRequest(topics=[]), 12, _tagged(min(count, 100_000))),
            lambda: _behind(MetadataRequest(topics=[]), 12, unsigned_varint(count * 4_000)),
            lambda: framed(
                MetadataRequest(
                    topics=[
                        MetadataRequestTopic(name=f"n{number}")
                        for number in range(min(count, 20_000))
                    ]
                ),
                12,
            ),
            lambda: _fetch("x", [*range(min(count, 50_000))]),
        )
        return self._target(), self._talk(dice.choice(frames)(), most=8)

    def decoded(self) -> tuple[Target, Greed]:
        """Requests that take about as much memory as is allowed to those with, or without, a right
        (1 MiB, 64 and 128 MiB).
        """
        edge = self._dice.choice((1, 64, 128)) * MIB
        count = int(edge / 136 * self._dice.uniform(0.8, 1.3))
        large = self._dice.choice((large_offset_fetch, large_describe_configs))
        return self._target(), self._talk(large(count), most=4)

    def pipelined(self) -> tuple[Target, Greed]:
        """Thousands of small requests."""
        messages: tuple[tuple[Message, int], ...] = (
            (ApiVersionsRequest(), 0),
            (MetadataRequest(topics=None), 12),
            (DescribeClusterRequest(), 1),
            (FindCoordinatorRequest(key="own-g", key_type=0), 3),
            (InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000), 4),
        )
        message, version = self._dice.choice(messages)
        return self._target(), self._talk(framed(message, version), most=30)

    def unread(self) -> tuple[Target, Greed]:
        """Large answers that are never read."""
        dice = self._dice
        configs = [DescribeConfigsResource(resource_type=2, resource_name=self._order.large_topic)]
        frames = (
            lambda: framed(MetadataRequest(topics=None), 12),
            lambda: framed(DescribeConfigsRequest(resources=configs, include_synonyms=True), 4),
            lambda: _fetch(self._order.topic_id, [0]),
        )
        request = dice.choice(frames)()
        greed = Greed("unread", self._up_to(40), request=request.hex())
        return self._target(), greed

    def expressions(self) -> tuple[Target, Greed]:
        dice = self._dice
        search = ListTransactionsRequest(transactional_id_pattern=COSTLY)
        pattern = dice.choice((COSTLY, "(.*)" * 40, "own-.*"))
        heartbeat = ConsumerGroupHeartbeatRequest(
            group_id=f"own-{dice.getrandbits(32)}",
            member_id=str(UUID(int=dice.getrandbits(128))),
            rebalance_timeout_ms=60_000,
            subscribed_topic_regex=pattern,
            topic_partitions=[],
        )
        frame = dice.choice((framed(search, 2), framed(heartbeat, 1)))
        return self._target(logs_in=True, user="bob"), self._talk(frame, most=20)

    def producer_ids(self) -> tuple[Target, Greed]:
        """With names of one's own, up to 30,000 letters long, and without."""
        dice = self._dice
        names: list[str | None] = [None]
        if dice.random() < 0.5:
            length = self._up_to(30_000)
            names = [
                f"own-{dice.getrandbits(32)}".ljust(length, "a")
                for _ in range(min(50, 300_000 // length + 1))
            ]
        frames = [
            framed(InitProducerIdRequest(transactional_id=each, transaction_timeout_ms=1000), 4)
            for each in names
        ]
        return self._target(user="bob"), self._talk(b"".join(frames), most=100)

    def forwarded(self) -> tuple[Target, Greed]:
        """Changes that may take for ever, by those who may not make them."""
        topic = CreatableTopic(name="x", num_partitions=1, replication_factor=1)
        alter = AlterConfigsResource(
            resource_type=2,
            resource_name="own-t",
            configs=[AlterableConfig(name="retention.ms", value="1000")],
        )
        messages: tuple[tuple[Message, int], ...] = (
            (CreateTopicsRequest(topics=[topic] * 10, timeout_ms=MAX_TIMEOUT_MS), 7),
            (
                DeleteTopicsRequest(
                    topics=[DeleteTopicState(name="own-t")], timeout_ms=MAX_TIMEOUT_MS
                ),
                6,
            ),
            (IncrementalAlterConfigsRequest(resources=[alter]), 1),
        )
        message, version = self._dice.choice(messages)
        return self._target(), self._talk(framed(message, version), most=30)

    def tokens(self) -> tuple[Target, Greed]:
        frame = self._dice.choice(
            (
                framed(CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=3_600_000), 3),
                framed(DescribeDelegationTokenRequest(owners=None), 3),
            )
        )
        return self._target(logs_in=True), self._talk(frame, most=8)

    def ids(self) -> tuple[Target, Greed]:
        """Groups, members and offsets, ever new ones."""
        dice, frames = self._dice, []
        filler = "m" * self._up_to(4_000)
        for _ in range(60):
            group = f"own-{dice.getrandbits(40)}"
            partition = OffsetCommitRequestPartition(committed_metadata=filler)
            topic = OffsetCommitRequestTopic(name="own-t", partitions=[partition])
            protocol = JoinGroupRequestProtocol(name="range", metadata=filler.encode())
            join = JoinGroupRequest(
                group_id=group,
                session_timeout_ms=1_800_000,
                rebalance_timeout_ms=1_800_000,
                protocol_type="consumer",
                protocols=[protocol],
            )
            frames.append(framed(OffsetCommitRequest(group_id=group, topics=[topic]), 8))
            frames.append(framed(join, 3))
        return self._target(logs_in=True, user="bob"), self._talk(b"".join(frames), most=10)

    def _talk(self, frames: bytes, *, most: int) -> Greed:
        """These requests again and again, on so many connections; sometimes without reading."""
        kind = "unread" if self._dice.random() < 0.25 else "pipelined"
        return Greed(kind, self._up_to(most), request=frames.hex())

    # -- HTTP --------------------------------------------------------------------------------------

    def web(self) -> tuple[Target, Greed]:
        """Half headers, slow bodies, slow readers, silent clients, many requests, half TLS."""
        dice = self._dice
        manner = dice.choice(list(SENDS))
        kinds = {"silent": "silent", "unread": "unread", "pipelined": "pipelined"}
        greed = Greed(
            kinds.get(manner, "drip"),
            self._up_to(200),
            frame_bytes=MIB,
            pause_s=dice.uniform(0.05, 2.0),
            request=SENDS[manner].hex(),
            stage=dice.choice(("connected", "hello", "all", "all")),
        )
        return self._target(web=True), greed


def _behind(message: Message, version: int, end: bytes) -> bytes:
    """The request with other tagged fields: these in the place of none."""
    whole = framed(message, version)[4:-1] + end
    return struct.pack(">i", len(whole)) + whole


def _tagged(count: int) -> bytes:
    """So many tagged fields of no bytes."""
    fields = (unsigned_varint(100 + number) + b"\0" for number in range(count))
    return unsigned_varint(count) + b"".join(fields)


def _fetch(topic: str, partitions: list[int]) -> bytes:
    """Fetch by name, or by id where it is one."""
    asked = [FetchPartition(partition=each, partition_max_bytes=MIB) for each in partitions]
    try:
        each = FetchTopic(topic_id=UUID(topic), partitions=asked)
    except ValueError:
        return framed(FetchRequest(topics=[FetchTopic(topic=topic, partitions=asked)]), 12)
    return framed(FetchRequest(topics=[each]), 13)


def main() -> None:
    order = Order(**json.loads(sys.stdin.readline()))
    permit_many_files()
    plays = Plays(order)
    counts: Counter[str] = Counter()
    while True:
        kind, target, greed = plays()
        counts[kind] += 1
        print(json.dumps(counts), flush=True)
        end_s = time.monotonic() + plays.seconds()
        done = play(target, greed, _pausing_until(end_s), limit_s=LIMIT_S)
        counts["connections"] += done["open"] + done["ended"]


def _pausing_until(end_s: float) -> Callable[[], bool]:
    """Whether it is over, after a moment in which others of the machine can work."""
    never = threading.Event()
    return lambda: never.wait(0.005) or time.monotonic() >= end_s


if __name__ == "__main__":
    main()
