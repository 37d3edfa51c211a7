"""Settings as the storage needs them: of a topic, of the log manager, of compaction.

Owns: the translation from Kafka's keys to plain numbers, and the limits derived from them.
Must not: validate what an administrator typed (`moldau.config` does).
Invariant: immutable; a changed topic gets a new LogConfig through `Log.update_config`. Intervals
are milliseconds, and one of at least `NEVER_MS` never fires.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from moldau.config.settings import KeyedSettings, of_key
from moldau.protocol.records import Codec

NEVER_MS: Final = 2**62
MIN_MAP_BYTES = 1024 * 1024
"""The least memory for a cleaner's key table."""

ConfigValues = Mapping[str, Any]
"""A node's or topic's settings under Kafka's keys, each of its key's own type."""

_CODEC_BY_NAME = {"uncompressed": Codec.NONE, **{codec.name.lower(): codec for codec in Codec}}


@dataclass(frozen=True, slots=True)
class LogConfig(KeyedSettings):
    """What a log does with its segments, by the keys of its topic.

    -1 in `retention_ms` and `retention_bytes` means without limit.
    """

    segment_bytes: int = of_key("segment.bytes")
    segment_ms: int = of_key("segment.ms")
    segment_jitter_ms: int = of_key("segment.jitter.ms")
    index_interval_bytes: int = of_key("index.interval.bytes")
    segment_index_bytes: int = of_key("segment.index.bytes")
    retention_ms: int = of_key("retention.ms")
    retention_bytes: int = of_key("retention.bytes")
    flush_messages: int = of_key("flush.messages")
    flush_ms: int = of_key("flush.ms")
    max_message_bytes: int = of_key("max.message.bytes")
    compression_type: str = of_key("compression.type")
    compression_gzip_level: int = of_key("compression.gzip.level")
    compression_lz4_level: int = of_key("compression.lz4.level")
    compression_zstd_level: int = of_key("compression.zstd.level")
    message_timestamp_type: str = of_key("message.timestamp.type")
    message_timestamp_before_max_ms: int = of_key("message.timestamp.before.max.ms")
    message_timestamp_after_max_ms: int = of_key("message.timestamp.after.max.ms")
    cleanup_policy: tuple[str, ...] = of_key("cleanup.policy")
    delete_retention_ms: int = of_key("delete.retention.ms")
    min_cleanable_dirty_ratio: float = of_key("min.cleanable.dirty.ratio")
    min_compaction_lag_ms: int = of_key("min.compaction.lag.ms")
    max_compaction_lag_ms: int = of_key("max.compaction.lag.ms")
    file_delete_delay_ms: int = of_key("file.delete.delay.ms")
    preallocate: bool = of_key("preallocate")

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
