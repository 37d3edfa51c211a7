"""Settings of the consumer. Owns the keys that only it has, and what excludes what."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar, Final, Literal, TypeAlias, Unpack

from moldau.client.config import keys
from moldau.client.config.client import ClientConfig, ClientSettings
from moldau.client.errors import ConfigurationError

GroupProtocol: TypeAlias = Literal["classic", "consumer"]
IsolationLevel: TypeAlias = Literal["read_uncommitted", "read_committed"]

DURATION: Final = re.compile(
    r"\+?P(?=[\dT+])(?:\+?(\d+)D)?(?:T(?=[\d+])(?:\+?(\d+)H)?(?:\+?(\d+)M)?(?:\+?(\d+)(?:\.(\d{0,9}))?S)?)?",
    re.ASCII | re.IGNORECASE,
)
"""A time that is not negative, as ISO 8601 writes it and Java reads it: P1DT2H3M4.5S."""

BY_DURATION: Final = "by_duration:"

_ONLY_CLASSIC: Final = (
    "heartbeat_interval_ms",
    "partition_assignment_strategy",
    "session_timeout_ms",
)


def duration_ms(text: str) -> int | None:
    """The milliseconds of an ISO 8601 duration such as PT1H; None when it is none, or negative."""
    found = DURATION.fullmatch(text)
    if found is None or text[-1] in "Tt":
        return None
    days, hours, minutes, seconds, fraction = (group or "0" for group in found.groups())
    whole = ((int(days) * 24 + int(hours)) * 60 + int(minutes)) * 60 + int(seconds)
    return whole * 1000 + int(fraction.ljust(9, "0")) // 1_000_000


def _reset_problem(text: str) -> str | None:
    if text in ("latest", "earliest", "none"):
        return None
    if text.startswith(BY_DURATION) and duration_ms(text.removeprefix(BY_DURATION)) is not None:
        return None
    return "latest, earliest, none, or by_duration:PnDTnHnMn.nS such as by_duration:PT1H"


class ConsumerSettings(ClientSettings, total=False):
    """Keyword settings of the consumer; times in milliseconds, sizes in bytes."""

    allow_auto_create_topics: bool
    auto_commit_interval_ms: int
    auto_offset_reset: str
    check_crcs: bool
    client_rack: str
    enable_auto_commit: bool
    exclude_internal_topics: bool
    fetch_buffer_bytes: int | None
    fetch_max_bytes: int
    fetch_max_wait_ms: int
    fetch_min_bytes: int
    group_id: str | None
    group_instance_id: str | None
    group_protocol: GroupProtocol
    group_remote_assignor: str | None
    heartbeat_interval_ms: int
    isolation_level: IsolationLevel
    max_partition_fetch_bytes: int
    max_poll_interval_ms: int
    max_poll_records: int
    metadata_max_idle_ms: int
    partition_assignment_strategy: str | object | Sequence[str | object]
    session_timeout_ms: int


class ConsumerConfig(ClientConfig):
    """What a consumer needs. Defaults are those of Kafka 4.3's Java consumer.

    Two keys are ours: `fetch.buffer.bytes` bounds what is fetched ahead (twice `fetch.max.bytes`
    unless set), and `metadata.max.idle.ms` is the producer's.
    `partition.assignment.strategy` takes names (range, roundrobin, sticky, cooperative-sticky, or
    Java's class names), classes and objects. Without a `group.id` nothing is committed.
    """

    KIND: ClassVar[str] = "consumer"

    allow_auto_create_topics: bool = keys.boolean(True)
    auto_commit_interval_ms: int = keys.milliseconds(5_000)
    auto_offset_reset: str = keys.checked(keys.text("latest"), _reset_problem)
    check_crcs: bool = keys.boolean(True)
    client_rack: str = keys.text("")
    enable_auto_commit: bool = keys.boolean(True)
    exclude_internal_topics: bool = keys.boolean(True)
    fetch_buffer_bytes: int = keys.byte_count(None, lowest=1, highest=keys.MAX_LONG)
    fetch_max_bytes: int = keys.byte_count(52_428_800)
    fetch_max_wait_ms: int = keys.milliseconds(500)
    fetch_min_bytes: int = keys.byte_count(1)
    group_id: str | None = keys.text(None)
    group_instance_id: str | None = keys.text(None, empty=False)
    group_protocol: GroupProtocol = keys.choice("classic", "classic", "consumer", any_case=True)
    group_remote_assignor: str | None = keys.text(None)
    heartbeat_interval_ms: int = keys.milliseconds(3_000, lowest=1)
    isolation_level: IsolationLevel = keys.choice(
        "read_uncommitted", "read_uncommitted", "read_committed"
    )
    max_partition_fetch_bytes: int = keys.byte_count(1_048_576)
    max_poll_interval_ms: int = keys.milliseconds(300_000, lowest=1)
    max_poll_records: int = keys.integer(500, 1)
    metadata_max_idle_ms: int = keys.long_milliseconds(300_000, lowest=5_000)
    partition_assignment_strategy: tuple[str | object, ...] = keys.things(
        ("range", "cooperative-sticky")
    )
    session_timeout_ms: int = keys.milliseconds(45_000, lowest=1)

    def __init__(
        self, bootstrap_servers: str | Sequence[str] = (), **settings: Unpack[ConsumerSettings]
    ) -> None:
        self._load({"bootstrap_servers": bootstrap_servers, **settings})

    def _check(self) -> None:
        super()._check()
        if self.fetch_buffer_bytes is None:
            self._settle(fetch_buffer_bytes=max(1, 2 * self.fetch_max_bytes))
        if self.group_id is None:
            if self.enable_auto_commit and "enable_auto_commit" in self.given:
                raise ConfigurationError(
                    "enable.auto.commit=true needs a group.id: there is nowhere to commit to"
                )
            self._settle(enable_auto_commit=False)
        elif not self.group_id:
            raise ConfigurationError("group.id='': leave it away to consume without a group")
        if self.group_protocol == "consumer":
            for name in _ONLY_CLASSIC:
                if name in self.given:
                    raise ConfigurationError(
                        f"{name.replace('_', '.')} cannot be set with group.protocol=consumer: "
                        "the brokers decide it"
                    )
            return
        if self.group_remote_assignor is not None:
            raise ConfigurationError(
                "group.remote.assignor cannot be set with group.protocol=classic; "
                "partition.assignment.strategy is what you want"
            )
        if not self.partition_assignment_strategy:
            raise ConfigurationError("partition.assignment.strategy: at least one is needed")
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise ConfigurationError(
                f"heartbeat.interval.ms={self.heartbeat_interval_ms}: less than session.timeout.ms"
                f", which is {self.session_timeout_ms}"
            )
