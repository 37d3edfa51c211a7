"""LogConfig: a topic's settings as the log needs them, read once and held as plain numbers.

Owns: the translation from Kafka's topic keys to attributes, and the limits derived from them.
Must not: validate what an administrator typed (`moldau.config` does) or know node-level keys.
Invariant: immutable; a changed topic gets a new LogConfig through `Log.update_config`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

from moldau.protocol.records import Codec, TimestampType

MAX_INT64 = 2**63 - 1

_CODEC_BY_NAME = {
    "uncompressed": Codec.NONE,
    "none": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}

_TIMESTAMP_TYPE_BY_NAME = {
    "CreateTime": TimestampType.CREATE_TIME,
    "LogAppendTime": TimestampType.LOG_APPEND_TIME,
}


@dataclass(frozen=True, slots=True)
class LogConfig:
    """What a log does with its segments; defaults are Kafka's.

    Sizes of -1 in `retention_ms` and `retention_bytes` mean without limit.
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
        if self.compression_type != "producer":
            object.__setattr__(self, "target_codec", _CODEC_BY_NAME[self.compression_type])
        timestamp_type = _TIMESTAMP_TYPE_BY_NAME[self.message_timestamp_type]
        object.__setattr__(
            self, "uses_log_append_time", timestamp_type is TimestampType.LOG_APPEND_TIME
        )
        object.__setattr__(self, "compacts", "compact" in self.cleanup_policy)
        object.__setattr__(self, "looks_at_records", self.compacts or self.target_codec is not None)
        max_segment_ms = self.segment_ms
        if self.compacts and self.max_compaction_lag_ms > 0:
            max_segment_ms = min(max_segment_ms, self.max_compaction_lag_ms)
        object.__setattr__(self, "max_segment_ms", max_segment_ms)

    @property
    def deletes(self) -> bool:
        """Whether retention by time and size applies."""
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
