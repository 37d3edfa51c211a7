"""Settings of the producer. Owns what excludes what (`enable.idempotence`, `acks`, `retries`)."""

from __future__ import annotations

from typing import ClassVar, Final

from moldau.client.config.client import ClientConfig
from moldau.client.config.keywords import ProducerValues
from moldau.client.errors import ConfigurationError
from moldau.constants import MAX_INT32
from moldau.protocol.records import Codec

MAX_IN_FLIGHT_WITH_IDEMPOTENCE: Final = 5
"""As many batches of one producer and partition a broker remembers."""

REQUIRED_ACKS: Final[dict[str, int]] = {"all": -1, "-1": -1, "0": 0, "1": 1}


class ProducerConfig(ProducerValues, ClientConfig):
    """What a producer needs. Defaults are those of Kafka 4.3's Java producer.

    Idempotence is on unless it is switched off, or `acks` or `retries` rule it out while it was not
    asked for.
    """

    KIND: ClassVar[str] = "producer"

    codec: Codec
    compression_level: int | None

    @property
    def required_acks(self) -> int:
        """`acks` as Produce requests say it: -1, 0 or 1."""
        return REQUIRED_ACKS[self.acks]

    def _check(self) -> None:
        super()._check()
        if self.acks == "-1":
            self._settle(acks="all")
        self._settle_idempotence()
        codec = Codec[self.compression_type.upper()]
        level = getattr(self, f"compression_{self.compression_type}_level", None)
        self._settle(codec=codec, compression_level=level)
        if self.transaction_two_phase_commit_enable and "transaction_timeout_ms" in self.given:
            raise ConfigurationError(
                "transaction.timeout.ms has no meaning with transaction.two.phase.commit.enable: "
                "such transactions do not time out; leave it away (KIP-939)"
            )
        least_ms = min(self.linger_ms + self.request_timeout_ms, MAX_INT32)
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
