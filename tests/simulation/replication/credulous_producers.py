"""Producers that take any broker's word for who leads, as clients without KIP-320 and KIP-951 do.

Owns: what such a client hears of leaders' epochs, which is nothing. Must not: change what it does
with an answer. Invariant: all that they promise otherwise is what every idempotent producer does.
"""

from __future__ import annotations

from typing import Any

from moldau.client import Producer
from tests.simulation.replication.producers import ProducerClient, choose_settings
from tests.simulation.replication.record_ledger import Writer


class CredulousProducer(ProducerClient):
    """Asks for metadata often, and any broker, also one that has just failed."""

    def settings(self) -> dict[str, Any]:
        settings = choose_settings(self.random)
        for name in ("enable_idempotence", "acks", "retries"):
            settings.pop(name, None)
        settings["metadata_max_age_ms"] = self.random.choice((50, 200))
        settings["request_timeout_ms"] = 600
        settings["delivery_timeout_ms"] = settings["linger_ms"] + 15_000
        return settings

    def _watch(self, producer: Producer[bytes, bytes], writer: Writer) -> None:
        super()._watch(producer, writer)
        client, cache = producer._client, producer._client.metadata
        candidates, update = client._candidates, cache.update

        def in_any_order() -> list[Any]:
            found = candidates()
            self.random.shuffle(found)
            return found

        def believe(response: Any, **options: Any) -> None:
            for topic in response.topics:
                for partition in topic.partitions:
                    partition.leader_epoch = -1
            update(response, **options)

        client._candidates = in_any_order  # type: ignore[method-assign]
        cache.update = believe  # type: ignore[method-assign]
        cache.learn_leader = lambda *_, **__: False  # type: ignore[method-assign]
