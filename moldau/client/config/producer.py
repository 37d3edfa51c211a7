"""Settings of the producer. Owns the keys that only it has, and what excludes what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final, Literal, TypeAlias, Unpack

from moldau.client.config import keys
from moldau.client.config.client import ClientConfig, ClientSettings
from moldau.client.errors import ConfigurationError

Acks: TypeAlias = Literal["all", "1", "0", "-1", -1, 0, 1]
CompressionType: TypeAlias = Literal["none", "gzip", "snappy", "lz4", "zstd"]

MAX_IN_FLIGHT_WITH_IDEMPOTENCE: Final = 5
"""As many batches of one producer and partition a broker remembers."""

REQUIRED_ACKS: Final[dict[str, int]] = {"all": -1, "-1": -1, "0": 0, "1": 1}


class ProducerSettings(ClientSettings, total=False):
    """Keyword settings of the producer; times in milliseconds, sizes in bytes."""

    acks: Acks
    batch_size: int
    buffer_memory: int
    compression_type: CompressionType
    compression_gzip_level: int
    compression_lz4_level: int
    compression_zstd_level: int
    delivery_timeout_ms: int
    enable_idempotence: bool
    linger_ms: int
    max_block_ms: int
    max_in_flight_requests_per_connection: int
    max_request_size: int
    metadata_max_idle_ms: int
    partitioner_adaptive_partitioning_enable: bool
    partitioner_availability_timeout_ms: int
    partitioner_class: str | None
    partitioner_ignore_keys: bool
    retries: int
    transaction_timeout_ms: int
    transaction_two_phase_commit_enable: bool
    transactional_id: str | None


class ProducerConfig(ClientConfig):
    """What a producer needs. Defaults are those of Kafka 4.3's Java producer.

    Idempotence is on unless it is switched off, or `acks` or `retries` rule it out while it was not
    asked for.
    """

    KIND: ClassVar[str] = "producer"

    acks: str = keys.choice("all", "all", "-1", "0", "1")
    batch_size: int = keys.byte_count(16_384)
    buffer_memory: int = keys.byte_count(33_554_432, highest=keys.MAX_LONG)
    compression_type: CompressionType = keys.choice("none", "none", "gzip", "snappy", "lz4", "zstd")
    compression_gzip_level: int = keys.checked(
        keys.integer(-1, -1, 9),
        lambda level: "1 to 9, or -1 for the default" if not level else None,
    )
    compression_lz4_level: int = keys.integer(9, 1, 17)
    compression_zstd_level: int = keys.integer(3, -131_072, 22)
    delivery_timeout_ms: int = keys.milliseconds(120_000)
    enable_idempotence: bool = keys.boolean(True)
    linger_ms: int = keys.long_milliseconds(5)
    max_block_ms: int = keys.long_milliseconds(60_000)
    max_in_flight_requests_per_connection: int = keys.integer(5, 1)
    max_request_size: int = keys.byte_count(1_048_576)
    metadata_max_idle_ms: int = keys.long_milliseconds(300_000, lowest=5_000)
    partitioner_adaptive_partitioning_enable: bool = keys.boolean(True)
    partitioner_availability_timeout_ms: int = keys.long_milliseconds(0)
    partitioner_class: str | None = keys.text(None)
    partitioner_ignore_keys: bool = keys.boolean(False)
    retries: int = keys.integer(keys.MAX_INT, 0)
    transaction_timeout_ms: int = keys.milliseconds(60_000)
    transaction_two_phase_commit_enable: bool = keys.boolean(False)
    transactional_id: str | None = keys.text(None, empty=False)

    def __init__(
        self, bootstrap_servers: str | Sequence[str] = (), **settings: Unpack[ProducerSettings]
    ) -> None:
        self._load({"bootstrap_servers": bootstrap_servers, **settings})

    @property
    def required_acks(self) -> int:
        """`acks` as Produce requests say it: -1, 0 or 1."""
        return REQUIRED_ACKS[self.acks]

    def _check(self) -> None:
        super()._check()
        if self.acks == "-1":
            self._settle(acks="all")
        self._settle_idempotence()
        if self.transaction_two_phase_commit_enable and "transaction_timeout_ms" in self.given:
            raise ConfigurationError(
                "transaction.timeout.ms has no meaning with transaction.two.phase.commit.enable: "
                "such transactions do not time out; leave it away (KIP-939)"
            )
        least_ms = min(self.linger_ms + self.request_timeout_ms, keys.MAX_INT)
        if self.delivery_timeout_ms < least_ms:
            if "delivery_timeout_ms" in self.given:
                raise ConfigurationError(
                    f"delivery.timeout.ms={self.delivery_timeout_ms}: at least linger.ms + "
                    f"request.timeout.ms, which is {least_ms}"
                )
            self._settle(delivery_timeout_ms=least_ms)

    def _settle_idempotence(self) -> None:
        if not self.enable_idempotence:
            problem: str | None = "enable.idempotence=false"
        elif self.max_in_flight_requests_per_connection > MAX_IN_FLIGHT_WITH_IDEMPOTENCE:
            raise ConfigurationError(
                f"max.in.flight.requests.per.connection="
                f"{self.max_in_flight_requests_per_connection}: at most "
                f"{MAX_IN_FLIGHT_WITH_IDEMPOTENCE} with enable.idempotence"
            )
        elif self.acks != "all":
            problem = f"acks={self.acks}"
        elif self.retries == 0:
            problem = "retries=0"
        else:
            problem = None
        if problem is None:
            return
        if self.transactional_id is not None:
            raise ConfigurationError(
                f"{problem}: transactional.id needs enable.idempotence, acks=all and retries"
            )
        if self.enable_idempotence and "enable_idempotence" in self.given:
            raise ConfigurationError(f"{problem}: enable.idempotence needs acks=all and retries")
        self._settle(enable_idempotence=False)
