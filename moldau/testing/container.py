"""`MoldauContainer`: a node with the methods of Testcontainers' KafkaContainer, in no container."""

from __future__ import annotations

from typing import Final, NoReturn, Self

from moldau.config.properties import PREFIX, properties_of_environment
from moldau.testing.cluster import Cluster
from moldau.testing.node_settings import node_settings

OWN_KEYS: Final = (
    *("advertised.", "broker.id", "controller.listener", "controller.quorum."),
    *("inter.broker.listener", "listener", "log.dir", "node.id", "process.roles"),
)
"""How keys begin that must be set for a container's image, and a `Cluster` decides by itself."""
CHOSEN: Final = "MoldauContainer chooses addresses, ids, roles and directories by itself"


class MoldauContainer:
    """Use as `with MoldauContainer() as kafka: kafka.get_bootstrap_server()`, or start and stop it.

    Args:
        image, port: what may be left of a container's constructor; they do not matter.
        brokers: how many; Testcontainers has one.
    """

    def __init__(self, image: str = "", port: int = 9093, *, brokers: int = 1) -> None:
        self._brokers = brokers
        self._config: dict[str, str] = {}
        self._cluster: Cluster | None = None

    def with_kraft(self) -> Self:
        """Nothing changes: there is no other way."""
        return self

    def with_name(self, name: str) -> Self:
        """Nothing changes: a node has no name on the machine, so that two never collide."""
        return self

    def with_envs(self, **variables: str) -> Self:
        """`with_env` for each. Raises: as `with_env`"""
        for key, value in variables.items():
            self.with_env(key, value)
        return self

    def with_env(self, key: str, value: str) -> Self:
        """Configure as Kafka's images are, before the start: `KAFKA_NUM_PARTITIONS` is
        `num.partitions`. Raises: ValueError: another variable, one of addresses, roles or files, a
        key that does not exist, or a value that it cannot have; RuntimeError: it runs
        """
        if self._cluster is not None:
            raise RuntimeError(f"{key}: the node runs already; configure it before start()")
        found = properties_of_environment({key: str(value)})
        if not key.startswith(PREFIX):
            raise ValueError(f"{key}: only variables {PREFIX}… are read")
        if any(name.startswith(OWN_KEYS) for name in found):
            raise ValueError(f"{key}: {CHOSEN}; leave it out")
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

    def get_container_host_ip(self) -> str:
        """The host alone, of the first broker. Raises: RuntimeError: not started"""
        return self._first_address()[0]

    def get_exposed_port(self, port: int = 9093) -> int:
        """The first broker's port, whichever a container would have. Raises: RuntimeError: not
        started
        """
        return int(self._first_address()[1])

    def _first_address(self) -> tuple[str, str]:
        host, _, port = self.get_bootstrap_server().split(",")[0].rpartition(":")
        return host, port

    def __getattr__(self, name: str) -> NoReturn:
        has = ", ".join(each for each in vars(type(self)) if not each.startswith("_"))
        raise AttributeError(f"{name}: no container runs; MoldauContainer has {has}")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
