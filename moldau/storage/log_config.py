"""Settings as the storage needs them: of a topic, of the log manager, of compaction.

Owns: the translation from Kafka's keys to plain numbers, and the limits derived from them.
Must not: validate what an administrator typed (`moldau.config` does).
Invariant: immutable; a changed topic gets a new LogConfig through `Log.update_config`. Intervals
are milliseconds, and one of at least `NEVER_MS` never fires.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Final

from moldau.config.settings import KeyedSettings, of_key
from moldau.protocol.records import Codec

MAX_INT64 = 2**63 - 1
NEVER_MS: Final = 2**62
MIN_MAP_BYTES = 1024 * 1024
"""The least memory for a cleaner's key table."""

ConfigValues = Mapping[str, Any]
"""A node's or topic's settings under Kafka's keys, each of its key's own type."""

_CODEC_BY_NAME = {
    "uncompressed": Codec.NONE,
    **{codec.name.lower(): codec for codec in Codec},
}


@dataclass(frozen=True, slots=True)
class LogConfig:
    """What a log does with its segments; defaults are Kafka's.

    -1 in `retention_ms` and `retention_bytes` means without limit.
    """

    segment_bytes: int = 1024**3
    segment_ms: int = 7 * 24 * 3600 * 1000
    segment_jitter_ms: int = 0
    index_interval_bytes: int = 4096
    segment_index_bytes: int = 10 * 1024**2
    retention_ms: int = 7 * 24 * 3600 * 1000
    retention_bytes: int = -1
    flush_messages: int = MAX_INT64
    flush_ms: int = MAX_INT64
    max_message_bytes: int = 1024**2 + 12
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    message_timestamp_type: str = "CreateTime"
    message_timestamp_before_max_ms: int = MAX_INT64
    message_timestamp_after_max_ms: int = 3600 * 1000
    cleanup_policy: tuple[str, ...] = ("delete",)
    delete_retention_ms: int = 24 * 3600 * 1000
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = MAX_INT64
    file_delete_delay_ms: int = 60_000
    preallocate: bool = False

    target_codec: Codec | None = field(init=False, default=None)
    """The codec every batch is stored with; None stores what the producer sent."""
    uses_log_append_time: bool = field(init=False, default=False)
    compacts: bool = field(init=False, default=False)
    """Whether of each key only the newest record needs to stay, and every record needs a key."""
    looks_at_records: bool = field(init=False, default=False)
    """Whether records may have to be decompressed before they are appended."""
    max_segment_ms: int = field(init=False, default=0)
    """How long a segment takes records: `segment_ms`, or less to keep `max_compaction_lag_ms`."""

    def __post_init__(self) -> None:
        derive = partial(object.__setattr__, self)  # the class is frozen
        if self.compression_type != "producer":
            derive("target_codec", _CODEC_BY_NAME[self.compression_type])
        derive("uses_log_append_time", self.message_timestamp_type == "LogAppendTime")
        derive("compacts", "compact" in self.cleanup_policy)
        derive("looks_at_records", self.compacts or self.target_codec is not None)
        max_segment_ms = self.segment_ms
        if self.compacts and self.max_compaction_lag_ms > 0:
            max_segment_ms = min(max_segment_ms, self.max_compaction_lag_ms)
        derive("max_segment_ms", max_segment_ms)

    @property
    def deletes(self) -> bool:
        return "delete" in self.cleanup_policy

    @property
    def compression_level(self) -> int | None:
        """The level for `target_codec`, None for a codec without levels."""
        match self.target_codec:
            case Codec.GZIP:
                return None if self.compression_gzip_level == -1 else self.compression_gzip_level
            case Codec.LZ4:
                return self.compression_lz4_level
            case Codec.ZSTD:
                return self.compression_zstd_level
            case _:
                return None

    @classmethod
    def from_topic_config(cls, values: Mapping[str, object]) -> LogConfig:
        """Build from typed values under Kafka's topic keys; keys the log has no use for are
        skipped, missing ones take Kafka's default.
        """
        known: dict[str, object] = {}
        for each in fields(cls):
            key = each.name.replace("_", ".")
            if each.init and (value := values.get(key)) is not None:
                known[each.name] = value
        policy = known.get("cleanup_policy")
        if isinstance(policy, str):
            known["cleanup_policy"] = tuple(p.strip() for p in policy.split(",") if p.strip())
        elif isinstance(policy, Sequence):
            known["cleanup_policy"] = tuple(str(p) for p in policy)
        return cls(**known)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class LogManagerSettings(KeyedSettings):
    """The node-level keys of the log manager."""

    retention_check_interval_ms: int = of_key("log.retention.check.interval.ms")
    flush_check_interval_ms: int = of_key("log.flush.scheduler.interval.ms")
    recovery_point_checkpoint_interval_ms: int = of_key("log.flush.offset.checkpoint.interval.ms")
    log_start_offset_checkpoint_interval_ms: int = of_key(
        "log.flush.start.offset.checkpoint.interval.ms"
    )
    high_watermark_checkpoint_interval_ms: int = of_key(
        "replica.high.watermark.checkpoint.interval.ms"
    )
    producer_expiration_ms: int = of_key("producer.id.expiration.ms")
    producer_expiration_check_interval_ms: int = of_key("producer.id.expiration.check.interval.ms")
    recovery_threads_per_directory: int = of_key("num.recovery.threads.per.data.dir")
    initial_delay_ms: int = of_key("log.initial.task.delay.ms")
    """How long after the start the first retention and removal may come."""
    idle_check_interval_ms: int = 10 * 60 * 1000
    """A log without an append between two checks gives its descriptors and mappings back."""
    max_open_closed_segments: int = 512
    """Descriptor budget: closed segments of all logs whose files stay open."""


@dataclass(frozen=True, slots=True)
class CleanerSettings(KeyedSettings):
    """The node-level keys of compaction, budgets for all cleaners together."""

    enabled: bool = of_key("log.cleaner.enable")
    thread_count: int = of_key("log.cleaner.threads")
    """Logs cleaned at a time; each has a child process while there is something to clean."""
    dedupe_buffer_bytes: int = of_key("log.cleaner.dedupe.buffer.size")
    buffer_load_factor: float = of_key("log.cleaner.io.buffer.load.factor")
    io_buffer_bytes: int = of_key("log.cleaner.io.buffer.size")
    io_max_bytes_per_second: float = of_key("log.cleaner.io.max.bytes.per.second")
    backoff_ms: int = of_key("log.cleaner.backoff.ms")

    @property
    def map_bytes(self) -> int:
        return max(self.dedupe_buffer_bytes // max(self.thread_count, 1), MIN_MAP_BYTES)

    @property
    def io_bytes(self) -> int:
        """Memory of one cleaner's reads, and as much for its writes."""
        return max(self.io_buffer_bytes // max(self.thread_count, 1) // 2, 4096)

    @property
    def max_bytes_per_second(self) -> float:
        """One cleaner's share of the disk budget, reads and writes together."""
        return self.io_max_bytes_per_second / max(self.thread_count, 1)
