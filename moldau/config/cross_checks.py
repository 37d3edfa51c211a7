"""Checks that involve more than one key, on a node's parsed configuration.

Owns: the rules between roles, listeners, quorum and related limits; they are those Kafka 4.3
applies at start-up.
Must not: parse anything or change values.
Invariant: every failed check names the key to change.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from moldau.config.errors import ConfigError
from moldau.config.listeners import META_ADDRESSES, Endpoint, SecurityProtocol

if TYPE_CHECKING:
    from moldau.config.node_config import NodeConfig

RACK_AWARE_REPLICA_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
"""The one value of `replica.selector.class` that is served, besides none (KIP-392)."""

CONSUMER_GROUP_ASSIGNORS: Final = {
    "uniform": "uniform",
    "range": "range",
    "org.apache.kafka.coordinator.group.assignor.UniformAssignor": "uniform",
    "org.apache.kafka.coordinator.group.assignor.RangeAssignor": "range",
}
"""The values of `group.consumer.assignors` that are served, and what each of them stands for."""

_NOT_ABOVE = (
    ("replica.fetch.wait.max.ms", "replica.socket.timeout.ms"),
    ("replica.fetch.wait.max.ms", "replica.lag.time.max.ms"),
    ("group.min.session.timeout.ms", "group.max.session.timeout.ms"),
    ("group.consumer.heartbeat.interval.ms", "group.consumer.session.timeout.ms"),
    ("group.share.heartbeat.interval.ms", "group.share.session.timeout.ms"),
    ("group.streams.heartbeat.interval.ms", "group.streams.session.timeout.ms"),
    ("group.streams.num.standby.replicas", "group.streams.max.standby.replicas"),
)
_BETWEEN = (
    ("group.consumer.", "heartbeat.interval.ms"),
    ("group.consumer.", "session.timeout.ms"),
    ("group.consumer.", "assignment.interval.ms"),
    ("group.share.", "heartbeat.interval.ms"),
    ("group.share.", "session.timeout.ms"),
    ("group.share.", "assignment.interval.ms"),
    ("group.share.", "record.lock.duration.ms"),
    ("group.share.", "delivery.count.limit"),
    ("group.share.", "partition.max.record.locks"),
    ("group.streams.", "heartbeat.interval.ms"),
    ("group.streams.", "session.timeout.ms"),
    ("group.streams.", "assignment.interval.ms"),
)


def check_node(config: NodeConfig) -> Iterator[str]:
    """Runs every check; yields warnings.

    Raises:
        ConfigError: the first rule that does not hold.
    """
    _check_roles(config)
    _check_quorum(config)
    _check_listener_ports(config)
    _check_controller_listeners(config)
    _check_security_protocols(config)
    _check_advertised(config)
    if config.is_broker:
        _check_inter_broker_listener(config)
    _check_early_start_listeners(config)
    _check_log(config)
    _check_limits(config)
    _check_replica_selector(config)
    _check_assignors(config)
    if not config.is_controller and len(config.controller_listener_names) > 1:
        yield (
            "controller.listener.names has several entries; a broker connects to "
            f"{config.controller_listener_names[0]} only"
        )
    if config["broker.heartbeat.interval.ms"] * 2 > config["broker.session.timeout.ms"]:
        yield (
            "broker.heartbeat.interval.ms should be at most half of broker.session.timeout.ms; "
            "one lost heartbeat may fence this broker"
        )


def _check_roles(config: NodeConfig) -> None:
    if not config.process_roles:
        raise ConfigError("process.roles", "", "must hold broker, controller or both")
    if not config.log_directories or not all(config.log_directories):
        raise ConfigError("log.dirs", ",".join(config.log_directories), "must name directories")
    if len(set(config.log_directories)) != len(config.log_directories):
        raise ConfigError("log.dirs", ",".join(config.log_directories), "names a directory twice")


def _check_quorum(config: NodeConfig) -> None:
    if not config.quorum_voters and not config.quorum_bootstrap_servers:
        raise ConfigError(
            "controller.quorum.bootstrap.servers", None, "is required (or controller.quorum.voters)"
        )
    for voter in config.quorum_voters:
        if voter.host in META_ADDRESSES:
            raise ConfigError("controller.quorum.voters", voter.host, "must be a routable address")
    if config.quorum_voters:
        is_voter = any(voter.node_id == config.node_id for voter in config.quorum_voters)
        if is_voter != config.is_controller:
            rule = "must" if config.is_controller else "must not"
            raise ConfigError(
                "controller.quorum.voters",
                config.text("controller.quorum.voters"),
                f"{rule} contain node.id {config.node_id} with these process.roles",
            )


def _check_listener_ports(config: NodeConfig) -> None:
    """Two listeners may share a port only when one is IPv4 and the other IPv6."""
    endpoints = config.listeners
    for index, endpoint in enumerate(endpoints):
        for other in endpoints[:index]:
            if not endpoint.port or endpoint.port != other.port:
                continue
            if not (_is_address(endpoint) and _is_address(other)) or (
                (":" in endpoint.host) == (":" in other.host)
            ):
                raise ConfigError(
                    "listeners", config.text("listeners"), f"uses port {endpoint.port} twice"
                )


def _is_address(endpoint: Endpoint) -> bool:
    return ":" in endpoint.host or (
        endpoint.host.replace(".", "").isdigit() and endpoint.host.count(".") == 3
    )


def _check_controller_listeners(config: NodeConfig) -> None:
    names = config.controller_listener_names
    shown = ",".join(names)
    if not names:
        raise ConfigError("controller.listener.names", "", "must name at least one listener")
    for name in names:
        if name not in config.listener_security_protocols:
            raise ConfigError(
                "controller.listener.names",
                shown,
                f"{name} is not in listener.security.protocol.map",
            )
    here = [endpoint.listener_name for endpoint in config.listeners]
    if not config.is_controller:
        for name in here:
            if name in names:
                raise ConfigError(
                    "listeners",
                    name,
                    "is a controller listener, but process.roles has no controller",
                )
        return
    for name in names:
        if name not in here:
            raise ConfigError(
                "listeners", ",".join(here), f"must contain the controller listener {name}"
            )
    if not config.is_broker:
        for name in here:
            if name not in names:
                raise ConfigError(
                    "listeners",
                    name,
                    "is not a controller listener, but process.roles has no broker",
                )


def _check_security_protocols(config: NodeConfig) -> None:
    for key, endpoints in (
        ("listeners", config.listeners),
        ("advertised.listeners", config.advertised_listeners),
    ):
        for endpoint in endpoints:
            protocol = endpoint.security_protocol
            if protocol is not SecurityProtocol.PLAINTEXT:
                raise ConfigError(
                    key, str(endpoint), f"{protocol.name} is not served yet, only PLAINTEXT"
                )


def _check_advertised(config: NodeConfig) -> None:
    names = {endpoint.listener_name for endpoint in config.listeners}
    for endpoint in config.advertised_listeners:
        if endpoint.host in META_ADDRESSES and (
            endpoint.listener_name not in config.controller_listener_names
            or "advertised.listeners" in config.explicit
        ):
            raise ConfigError(
                "advertised.listeners",
                str(endpoint),
                "clients cannot connect to a meta-address; advertise a routable one",
            )
        if endpoint.listener_name not in names:
            raise ConfigError("advertised.listeners", str(endpoint), "is not one of listeners")
    if config.is_broker and not config.broker_listeners:
        raise ConfigError("listeners", config.text("listeners"), "must contain one for clients")


def _check_inter_broker_listener(config: NodeConfig) -> None:
    name = config.inter_broker_listener_name
    key = "inter.broker.listener.name"
    if key in config.explicit and "security.inter.broker.protocol" in config.explicit:
        raise ConfigError(key, name, "cannot be combined with security.inter.broker.protocol")
    if name in config.controller_listener_names:
        raise ConfigError(key, name, "cannot be a controller listener")
    advertised = [endpoint.listener_name for endpoint in config.advertised_listeners]
    if name not in advertised:
        raise ConfigError(
            key, name, f"must be one of the advertised listeners ({', '.join(advertised)})"
        )


def _check_early_start_listeners(config: NodeConfig) -> None:
    names = [endpoint.listener_name for endpoint in config.listeners]
    for name in config["early.start.listeners"] or ():
        if name.upper() not in names:
            raise ConfigError("early.start.listeners", name, "is not one of listeners")


def _check_log(config: NodeConfig) -> None:
    for key in ("log.retention.ms", "log.retention.minutes", "log.retention.hours"):
        value = config[key]
        if value is not None and value < 1 and value != -1:
            raise ConfigError(key, str(value), "must be at least 1, or -1 for no limit")
    if config["log.cleaner.dedupe.buffer.size"] <= config["log.cleaner.threads"] * 1024 * 1024:
        raise ConfigError(
            "log.cleaner.dedupe.buffer.size",
            config.text("log.cleaner.dedupe.buffer.size"),
            "must be above 1 MiB per cleaner thread",
        )


def _check_limits(config: NodeConfig) -> None:
    for lower, upper in _NOT_ABOVE:
        if config[lower] > config[upper]:
            raise ConfigError(
                lower, config.text(lower), f"must not exceed {upper}={config.text(upper)}"
            )
    for prefix, suffix in _BETWEEN:
        key = prefix + suffix
        minimum, maximum = config[f"{prefix}min.{suffix}"], config[f"{prefix}max.{suffix}"]
        if not minimum <= config[key] <= maximum:
            raise ConfigError(
                key,
                config.text(key),
                f"must be between {prefix}min.{suffix}={minimum} and {prefix}max.{suffix}"
                f"={maximum}",
            )
    queued = config["queued.max.request.bytes"]
    if 0 < queued < config["socket.request.max.bytes"]:
        raise ConfigError(
            "queued.max.request.bytes",
            str(queued),
            "must be at least socket.request.max.bytes, or -1",
        )
    if config["max.connections.per.ip"] == 0 and not config["max.connections.per.ip.overrides"]:
        raise ConfigError(
            "max.connections.per.ip", "0", "may be 0 only with max.connections.per.ip.overrides"
        )


def _check_replica_selector(config: NodeConfig) -> None:
    class_name = config["replica.selector.class"]
    if class_name and class_name != RACK_AWARE_REPLICA_SELECTOR:
        raise ConfigError(
            "replica.selector.class",
            class_name,
            f"is not served; leave it out, or choose {RACK_AWARE_REPLICA_SELECTOR}",
        )


def _check_assignors(config: NodeConfig) -> None:
    for name in config["group.consumer.assignors"]:
        if name not in CONSUMER_GROUP_ASSIGNORS:
            raise ConfigError(
                "group.consumer.assignors", name, "is not served; choose uniform, range or both"
            )
