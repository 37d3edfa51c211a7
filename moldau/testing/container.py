"""`MoldauContainer`: a node with the methods of Testcontainers' KafkaContainer, in no container."""

from __future__ import annotations

from typing import Final, Self

from moldau.config.properties import PREFIX, properties_of_environment
from moldau.testing.cluster import Cluster
from moldau.testing.node_settings import node_settings

OWN_KEYS: Final = (
    *("advertised.", "broker.id", "controller.listener", "controller.quorum."),
    *("inter.broker.listener", "listener", "log.dir", "node.id", "process.roles"),
)
"""How keys begin that must be set for a container's image, and a `Cluster` decides by itself."""


class MoldauContainer:
    """Use as `with MoldauContainer() as kafka: kafka.get_bootstrap_server()`, or start and stop it.

    Args:
        image: what may be left of a container's constructor; it does not matter.
        brokers: how many; Testcontainers has one.
    """

    def __init__(self, image: str = "", *, brokers: int = 1) -> None:
        self._brokers = brokers
        self._config: dict[str, str] = {}
        self._cluster: Cluster | None = None

    def with_kraft(self) -> Self:
        """Nothing changes: there is no other way."""
        return self

    def with_env(self, key: str, value: str) -> Self:
        """Configure as Kafka's images are, before the start: `KAFKA_NUM_PARTITIONS` is
        `num.partitions`. Raises: ValueError: another variable, one of addresses, roles or files, a
        key that does not exist, or a value that it cannot have
        """
        found = properties_of_environment({key: str(value)})
        if not key.startswith(PREFIX):
            raise ValueError(f"{key}: only variables {PREFIX}… are read")
        if any(name.startswith(OWN_KEYS) for name in found):
            raise ValueError(f"{key}: addresses, roles and directories are chosen here")
        found = node_settings(found)
        self._config.update(found)
        return self

    def start(self, timeout: float | None = None) -> Self:
        """Start and wait until it serves; `timeout` does not matter. Raises: NodeFailed"""
        if self._cluster is None:
            self._cluster = Cluster(self._brokers, config=self._config).start()
        return self

    def stop(self, force: bool = True, delete_volume: bool = True) -> None:
        """End it and remove its files; idempotent."""
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.close()

    def get_bootstrap_server(self) -> str:
        """`host:port`, of several brokers separated by commas. Raises: RuntimeError: not started"""
        if self._cluster is None:
            raise RuntimeError("not started: use start(), or `with`")
        return self._cluster.bootstrap_server

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
