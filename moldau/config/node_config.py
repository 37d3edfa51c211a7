"""One node's static configuration: file, environment and overrides merged, typed and checked.

Owns: precedence (file < environment < overrides), defaults, parsed addresses, warnings, and the
rules that Kafka 4.3 applies at start-up between roles, listeners, quorum and related limits.
Must not: know dynamic values (that is `dynamic_config`), open sockets, create directories.
Invariant: an existing `NodeConfig` has passed every check, is immutable and shows no secret; every
failed check names the key to change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, NoReturn

from moldau.config.definition import HIDDEN, REQUIRED, ConfigError, ConfigKey, Status, Values
from moldau.config.listeners import (
    META_ADDRESSES,
    Endpoint,
    HostPort,
    QuorumVoter,
    SecurityProtocol,
    parse_bootstrap_servers,
    parse_connection_overrides,
    parse_endpoints,
    parse_quorum_voters,
    parse_security_protocol_map,
)
from moldau.config.mechanisms import MECHANISMS, NAMES
from moldau.config.principals import NODES_OF_OLD, NodePrincipals
from moldau.config.properties import properties_of_environment, read_node_properties
from moldau.config.providers import PROVIDERS, configures_a_provider, resolved
from moldau.config.table import (
    BROKER_KEYS,
    LIMITED_GROUP_KEYS,
    LISTENER_PREFIX,
    ONLY_PER_MECHANISM_KEYS,
    PER_LISTENER_KEYS,
    PER_MECHANISM_KEYS,
    PLUGIN_PREFIXES,
    TOPIC_KEYS,
    find_broker_key,
    listener_key_suffix,
    nearest_key,
    removed_answer,
)
from moldau.config.values import accept_value, format_value

BROKER_ROLE = "broker"
CONTROLLER_ROLE = "controller"

# Of several missing keys, these are reported first: they say most about what is wrong.
_FIRST_ASKED_FOR = ("process.roles",)

RACK_AWARE_REPLICA_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
"""The one value of `replica.selector.class` that is served, besides none (KIP-392)."""

STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
"""The one value of `authorizer.class.name` that is served, besides none (KIP-801)."""

NO_AUTHORIZER: Final = "no authorizer is configured: authorizer.class.name is empty"
"""The refusal of requests about access control entries then."""

_SERVED_CLASSES: Final = {
    "replica.selector.class": RACK_AWARE_REPLICA_SELECTOR,
    "authorizer.class.name": STANDARD_AUTHORIZER,
}

CONSUMER_GROUP_ASSIGNORS: Final = {
    "uniform": "uniform",
    "range": "range",
    "org.apache.kafka.coordinator.group.assignor.UniformAssignor": "uniform",
    "org.apache.kafka.coordinator.group.assignor.RangeAssignor": "range",
}
"""The values of `group.consumer.assignors` that are served, and what each of them stands for."""

_LOGS_IN: Final = ("sasl.mechanism.inter.broker.protocol", "sasl.mechanism.controller.protocol")

_NOT_ABOVE = (
    ("replica.fetch.wait.max.ms", "replica.socket.timeout.ms"),
    ("replica.fetch.wait.max.ms", "replica.lag.time.max.ms"),
    ("group.min.session.timeout.ms", "group.max.session.timeout.ms"),
    ("group.consumer.heartbeat.interval.ms", "group.consumer.session.timeout.ms"),
    ("group.share.heartbeat.interval.ms", "group.share.session.timeout.ms"),
    ("group.streams.heartbeat.interval.ms", "group.streams.session.timeout.ms"),
    ("group.streams.num.standby.replicas", "group.streams.max.standby.replicas"),
)


class NodeConfig(Mapping[str, Any]):
    """Typed values of every broker key, by Kafka's dotted name, and what follows from them.

    The mapping has every key of the table: the configured value, or the default.

    Attributes:
        explicit: the texts that were set, by key (unredacted: never log it). Setting one of node.id
            and broker.id sets both, as in Apache Kafka.
        warnings: one line per key that is unknown, removed, or without effect here.
        listeners, advertised_listeners: endpoints; a port 0 and a host "" are still to be resolved,
            see `resolve_advertised`.
        listener_security_protocols: protocol by listener name (upper case).
        process_roles: "broker", "controller" or both.
        log_directories: `log.dirs`, or else `log.dir`.
        metadata_log_directory: `metadata.log.dir`, or else the first log directory.
        broker_listeners: those that clients and brokers connect to.
        controller_listeners: those of this node's controller, empty when it is only a broker.
        controller_addresses: where to ask for the quorum's leader: the bootstrap servers, else the
            static voters.
        has_authorizer: whether access control entries decide who may do what.
        has_static_voters: whether `controller.quorum.voters` has the voters (kraft.version 0).
        principals: who the cluster's nodes are, and which names are reserved.
    """

    def __init__(
        self, properties: Mapping[str, str], *, quiet_keys: frozenset[str] = frozenset()
    ) -> None:
        """Builds a configuration from merged properties; see `load` for the usual way.

        Args:
            properties: texts by dotted key.
            quiet_keys: unknown keys without a warning unless a known key looks like them
                (environment variables that merely share the prefix).

        Raises:
            ConfigError: the first key that cannot be used, with what is allowed.
        """
        self.explicit: Mapping[str, str] = MappingProxyType(_with_both_ids(properties))
        warnings: list[str] = []
        self._values, self._listener_values = _typed_values(properties, warnings, quiet_keys)
        self.node_id: int = self["node.id"]
        self.process_roles: tuple[str, ...] = self["process.roles"]
        self.is_broker = BROKER_ROLE in self.process_roles
        self.is_controller = CONTROLLER_ROLE in self.process_roles
        self.rack: str | None = self["broker.rack"]
        self.log_directories: tuple[str, ...] = self["log.dirs"] or self["log.dir"]
        first = next(iter(self.log_directories), "")
        self.metadata_log_directory: str = self["metadata.log.dir"] or first
        self.has_authorizer = bool(self["authorizer.class.name"])
        self._parse_addresses()
        self.principals = NodePrincipals(
            self["moldau.node.principals"],
            log_in_by_scram=any(properties.get(key, "").startswith("SCRAM-") for key in _LOGS_IN),
        )
        warnings.extend(_listener_warnings(self))
        warnings.extend(_check_node(self))
        self.warnings = tuple(warnings)

    @classmethod
    def load(
        cls,
        path: str | None,
        overrides: Mapping[str, str] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> NodeConfig:
        """Reads a node's configuration; later sources win: file, environment, overrides.

        Args:
            path: a `.properties` file, or None for none.
            overrides: texts by dotted key, as given with `--override`.
            environ: an environment to take `KAFKA_…` variables from, and those that values refer
                to (see `providers`); None for none.

        Raises:
            ConfigError: an unreadable file, a bad value, or values that contradict each other.
        """
        properties = read_node_properties(path) if path is not None else {}
        from_environment = properties_of_environment(environ or {})
        quiet_keys = (
            frozenset(from_environment) - frozenset(properties) - frozenset(overrides or {})
        )
        properties.update(from_environment)
        properties.update(overrides or {})
        return cls(resolved(properties, environ or {}), quiet_keys=quiet_keys)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"NodeConfig({self.redacted()!r})"

    def redacted(self) -> dict[str, str]:
        """What was set explicitly, fit for a log: secrets and unknown keys' values are hidden."""
        shown: dict[str, str] = {}
        for name, text in sorted(self.explicit.items()):
            key = find_broker_key(name)
            shown[name] = HIDDEN if key is None or key.sensitive else text
        return shown

    def text(self, name: str) -> str | None:
        """The canonical text of a value, hidden when sensitive, None when null."""
        return format_value(BROKER_KEYS[name], self._values[name])

    def get_int(self, name: str) -> int:
        """The value of a whole-number key that has one."""
        value = self._values[name]
        assert isinstance(value, int)
        return value

    def get_boolean(self, name: str) -> bool:
        value = self._values[name]
        assert isinstance(value, bool)
        return value

    def get_string(self, name: str) -> str:
        """The value of a string key that has one."""
        value = self._values[name]
        assert isinstance(value, str)
        return value

    def listener_value(
        self,
        listener_name: str,
        name: str,
        mechanism: str | None = None,
        values: Values | None = None,
    ) -> Any:
        """A key's value for one listener, and for one of its SASL mechanisms.

        The first that is set: `listener.name.LISTENER.MECHANISM.KEY` (for the keys that have it),
        `listener.name.LISTENER.KEY`, `KEY`. `sasl.jaas.config` and the class that checks tokens are
        taken from the first alone, as in Apache Kafka: users of one mechanism are none of another.

        Args:
            values: what the keys without a prefix have now, where that may have changed.
        """
        prefix = f"{LISTENER_PREFIX}{listener_name.lower()}."
        if mechanism is not None and name in PER_MECHANISM_KEYS:
            own = f"{prefix}{mechanism.lower()}.{name}"
            if own in self._listener_values or name in ONLY_PER_MECHANISM_KEYS:
                return self._listener_values.get(own)
        own = prefix + name
        if own in self._listener_values:
            return self._listener_values[own]
        return (self._values if values is None else values)[name]

    def is_set_for_listener(self, listener_name: str, name: str) -> bool:
        """Whether the configuration names the key, for this listener or for all."""
        own = f"{LISTENER_PREFIX}{listener_name.lower()}.{name}"
        return own in self._listener_values or name in self.explicit

    def is_between_nodes(self, listener_name: str) -> bool:
        """Whether nodes connect to this listener of other nodes."""
        return (
            listener_name == self.inter_broker_listener_name
            or listener_name in self.controller_listener_names
        )

    @property
    def late_controller_listeners(self) -> frozenset[str]:
        """The controller's listeners that open after the ACLs are loaded: with an authorizer, those
        that `early.start.listeners` leaves out.
        """
        early = self._values["early.start.listeners"]
        if early is None or not self.has_authorizer:
            return frozenset()
        named = {name.upper() for name in early}
        names = (each.listener_name for each in self.controller_listeners)
        return frozenset(name for name in names if name not in named)

    @property
    def advertised_controller_listeners(self) -> tuple[Endpoint, ...]:
        """What this node's controller advertises, in the order of `controller.listener.names`.

        What `advertised.listeners` says, else where the controller listens; a host "" (also for
        a meta-address) stands for this machine. Empty when this node is only a broker.
        """
        if not self.is_controller:
            return ()
        advertised = {each.listener_name: each for each in self.advertised_listeners}
        listening = {each.listener_name: each for each in self.controller_listeners}
        endpoints = (
            advertised.get(name, listening[name]) for name in self.controller_listener_names
        )
        return tuple(
            each._replace(host="") if each.host in META_ADDRESSES else each for each in endpoints
        )

    def resolve_advertised(
        self, bound_ports: Mapping[str, int], hostname: str
    ) -> tuple[Endpoint, ...]:
        """The addresses to register: real ports for 0, this machine's name for an empty host.

        Args:
            bound_ports: port by listener name, once the listeners are bound.
            hostname: what other machines call this one.
        """
        return tuple(
            endpoint._replace(
                host=endpoint.host or hostname,
                port=endpoint.port or bound_ports.get(endpoint.listener_name, 0),
            )
            for endpoint in self.advertised_listeners
        )

    def _parse_addresses(self) -> None:
        values = self._values
        self.controller_listener_names = tuple(
            n.upper() for n in values["controller.listener.names"]
        )
        self.listener_security_protocols = self._security_protocols()
        protocols = self.listener_security_protocols
        self.listeners = parse_endpoints("listeners", values["listeners"], protocols)
        if values["advertised.listeners"] is None:
            self.advertised_listeners = self.listeners
        else:
            self.advertised_listeners = parse_endpoints(
                "advertised.listeners", values["advertised.listeners"], protocols
            )
        own = [e for e in self.listeners if e.listener_name in self.controller_listener_names]
        others = [endpoint for endpoint in self.listeners if endpoint not in own]
        self.controller_listeners = tuple(own) if self.is_controller else ()
        self.broker_listeners = tuple(others) if self.is_broker else ()
        name = values["inter.broker.listener.name"] or values["security.inter.broker.protocol"]
        self.inter_broker_listener_name: str = name.upper()
        key = "max.connections.per.ip.overrides"
        self.max_connections_per_ip_overrides: Mapping[str, int] = MappingProxyType(
            parse_connection_overrides(key, values[key])
        )
        self.quorum_voters: tuple[QuorumVoter, ...] = parse_quorum_voters(
            "controller.quorum.voters", values["controller.quorum.voters"]
        )
        self.has_static_voters = bool(self.quorum_voters)
        self.quorum_bootstrap_servers: tuple[HostPort, ...] = parse_bootstrap_servers(
            "controller.quorum.bootstrap.servers", values["controller.quorum.bootstrap.servers"]
        )
        self.controller_addresses = self.quorum_bootstrap_servers or tuple(
            HostPort(voter.host, voter.port) for voter in self.quorum_voters
        )

    def _security_protocols(self) -> Mapping[str, SecurityProtocol]:
        """The protocol map; unless it is configured, controller listeners are plaintext by default.

        That default ends as soon as anything on this node is encrypted or authenticated, so that no
        controller port is open unless the configuration asks for it.
        """
        key = "listener.security.protocol.map"
        protocols = parse_security_protocol_map(key, self._values[key])
        if key not in self.explicit:
            secured = {name for name, p in protocols.items() if p is not SecurityProtocol.PLAINTEXT}
            names = [element.partition("://")[0].upper() for element in self._values["listeners"]]
            if not secured.intersection([*names, *self.controller_listener_names]):
                for name in self.controller_listener_names:
                    protocols.setdefault(name, SecurityProtocol.PLAINTEXT)
        return MappingProxyType(protocols)


def _typed_values(
    properties: Mapping[str, str], warnings: list[str], quiet_keys: frozenset[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Values of all keys, and those that are set for one listener by their whole names."""
    values: dict[str, Any] = {name: key.default for name, key in BROKER_KEYS.items()}
    of_listeners: dict[str, Any] = {}
    removed: list[str] = []
    for name, text in properties.items():
        key = find_broker_key(name)
        if key is None:
            if configures_a_provider(name, properties):
                continue
            answer = removed_answer(name)
            if answer is not None:
                removed.append(f"{name} was removed from Kafka: {answer}")
            elif (warning := _unknown_key_warning(name, quiet=name in quiet_keys)) is not None:
                warnings.append(warning)
            continue
        value = accept_value(key._replace(name=name), text)
        if name == key.name:
            values[name] = value
        else:
            of_listeners[name] = value
        warnings.extend(_status_warnings(key, name, value))
    warnings.extend(removed)
    _adopt_broker_id(values, properties)
    for name in sorted(values, key=_FIRST_ASKED_FOR.__contains__, reverse=True):
        if values[name] is REQUIRED:
            hint = f" ({removed[0]})" if removed else ""
            if not hint and "bootstrap.servers" in properties:
                hint = " (clients have bootstrap.servers: is this the file of one?)"
            raise ConfigError(name, None, f"is required{hint}")
    return values, of_listeners


def _adopt_broker_id(values: dict[str, Any], properties: Mapping[str, str]) -> None:
    """`broker.id` is the old name of `node.id`: either serves, both must agree."""
    broker_id = values["broker.id"]
    if "broker.id" not in properties:
        if values["node.id"] is not REQUIRED:
            values["broker.id"] = values["node.id"]
        return
    if values["node.id"] is REQUIRED and broker_id >= 0:
        values["node.id"] = broker_id
    elif broker_id not in (values["node.id"], -1):
        raise ConfigError("broker.id", str(broker_id), "must equal node.id")


def _with_both_ids(properties: Mapping[str, str]) -> dict[str, str]:
    texts = dict(properties)
    for given, other in (("node.id", "broker.id"), ("broker.id", "node.id")):
        if given in texts:
            texts.setdefault(other, texts[given])
    return texts


def check_keys(properties: Mapping[str, str]) -> None:
    """Refuse what a node only warns of: keys that it does not know. For what a program sets, whose
    user does not read a node's log. What belongs to plug-ins is let through.

    Raises:
        ConfigError: the first key that is unknown or removed, or has a value that it cannot have.
    """
    for name, text in properties.items():
        key = find_broker_key(name)
        if key is not None:
            accept_value(key._replace(name=name), text)
            continue
        if configures_a_provider(name, properties) or name.startswith(PLUGIN_PREFIXES):
            continue
        answer = removed_answer(name)
        if answer is not None:
            raise ConfigError(name, None, f"was removed from Kafka: {answer}")
        problem = _unknown_key_warning(name, quiet=False)
        raise ConfigError(name, None, (problem or "").removeprefix(f"{name} "))


def _unknown_key_warning(name: str, *, quiet: bool) -> str | None:
    if name.startswith(f"{PROVIDERS}."):
        return f"{name} has no effect: {PROVIDERS} does not name this provider"
    if name.startswith(PLUGIN_PREFIXES):
        return f"{name} is ignored: server-side plug-ins are not served"
    if name in TOPIC_KEYS:
        key = TOPIC_KEYS[name]
        hint = f" (the node's default is {key.synonyms[0]})" if key.synonyms else ""
        return f"{name} is a topic configuration and has no effect on a node{hint}"
    hint = nearest_key(name, BROKER_KEYS)
    return f"{name} is not a known key and has no effect{hint}" if hint or not quiet else None


def _status_warnings(key: ConfigKey, name: str, value: object) -> Iterator[str]:
    if key.status is Status.IGNORED and value != key.default:
        yield f"{name} has no effect: {key.note}"
    elif isinstance(value, tuple) and (idle := [e for e in key.idle_elements if e in value]):
        yield f"{', '.join(idle)} in {name} has no effect: {key.refusal}"
    elif (
        name.startswith(LISTENER_PREFIX)
        and key.status is Status.SERVED
        and key.name not in PER_LISTENER_KEYS
    ):
        yield f"{name} has no effect: {listener_key_suffix(name)} is not served per listener yet"


def _listener_warnings(config: NodeConfig) -> Iterator[str]:
    """Settings of TLS and SASL that reach no listener, neither here nor of the controllers."""
    names = {*(each.listener_name for each in config.listeners), *config.controller_listener_names}
    if not config.is_broker and "listener.security.protocol.map" in config.explicit:
        # What a controller's configuration says of the brokers' listeners is for them: nodes of
        # both kinds share it.
        names.update(config.listener_security_protocols)
    prefixes = tuple(f"{LISTENER_PREFIX}{name.lower()}." for name in names)
    for name in config.explicit:
        key = find_broker_key(name)
        if key is None or key.name not in PER_LISTENER_KEYS:
            continue
        if name.startswith(LISTENER_PREFIX) and not name.startswith(prefixes):
            yield f"{name} has no effect: listeners has none of that name (in lower case here)"
        elif key.name == "sasl.jaas.config" and not _names_mechanism(name):
            yield (
                f"{name} has no effect: a listener's users are given by mechanism, as in "
                "listener.name.LISTENER.plain.sasl.jaas.config"
            )


def _names_mechanism(name: str) -> bool:
    """Whether it is `listener.name.LISTENER.MECHANISM.KEY`."""
    own = name.removeprefix(LISTENER_PREFIX).partition(".")[2]
    return name.startswith(LISTENER_PREFIX) and own != listener_key_suffix(name)


def _check_node(config: NodeConfig) -> Iterator[str]:
    """Runs every check; yields warnings. Raises ConfigError: the first rule that does not hold."""
    _check_roles(config)
    _check_quorum(config)
    _check_listener_ports(config)
    _check_controller_listeners(config)
    _check_advertised(config)
    if config.is_broker:
        _check_inter_broker_listener(config)
    _check_security_protocols(config)
    _check_early_start_listeners(config)
    _check_log(config)
    _check_limits(config)
    _check_classes(config)
    if not config.is_controller and len(config.controller_listener_names) > 1:
        yield (
            "controller.listener.names has several entries; a broker connects to "
            f"{config.controller_listener_names[0]} only"
        )
    if NODES_OF_OLD in map(str.strip, config["super.users"].split(";")):
        yield (
            f"super.users names {NODES_OF_OLD}: the certificate of each node is that of a super "
            "user; moldau.node.principals gives nodes what they need (docs/security.md)"
        )
    if config["broker.heartbeat.interval.ms"] * 2 > config["broker.session.timeout.ms"]:
        yield (
            "broker.heartbeat.interval.ms should be at most half of broker.session.timeout.ms; "
            "one lost heartbeat may fence this broker"
        )


def _refuse(config: NodeConfig, key: str, reason: str) -> NoReturn:
    """Raises ConfigError with what the key is set to."""
    raise ConfigError(key, config.text(key), reason)


def _check_roles(config: NodeConfig) -> None:
    if not config.process_roles:
        _refuse(config, "process.roles", "must hold broker, controller or both")
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
            reason = f"{rule} contain node.id {config.node_id} with these process.roles"
            _refuse(config, "controller.quorum.voters", reason)


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
                _refuse(config, "listeners", f"uses port {endpoint.port} twice")


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
            reason = f"{name} is not in listener.security.protocol.map"
            raise ConfigError("controller.listener.names", shown, reason)
    here = [endpoint.listener_name for endpoint in config.listeners]
    for name in names if config.is_controller else ():
        if name not in here:
            raise ConfigError(
                "listeners", ",".join(here), f"must contain the controller listener {name}"
            )
    for name in here:
        if name in names and not config.is_controller:
            reason = "is a controller listener, but process.roles has no controller"
            raise ConfigError("listeners", name, reason)
        if name not in names and not config.is_broker:
            reason = "is not a controller listener, but process.roles has no broker"
            raise ConfigError("listeners", name, reason)


def _check_security_protocols(config: NodeConfig) -> None:
    """Mechanisms of SASL: those offered to others, and the one that this node itself uses."""
    for endpoint in config.listeners:
        if endpoint.security_protocol.has_sasl:
            _check_mechanisms(config, endpoint.listener_name)
    if config.is_broker:
        _check_own_mechanism(
            config,
            config.inter_broker_listener_name,
            "sasl.mechanism.inter.broker.protocol",
            has_listener=True,
        )
    _check_own_mechanism(
        config,
        config.controller_listener_names[0],
        "sasl.mechanism.controller.protocol",
        has_listener=config.is_controller,
    )


def _check_own_mechanism(
    config: NodeConfig, listener_name: str, key: str, *, has_listener: bool
) -> None:
    """What this node logs in with to a listener of other nodes, which it may have itself."""
    protocol = config.listener_security_protocols.get(listener_name)
    if protocol is None or not protocol.has_sasl:
        return
    mechanism = config.get_string(key)
    if mechanism not in MECHANISMS:
        reason = f"is not served between nodes; listener {listener_name} is {protocol.name}"
        _refuse(config, key, f"{reason}: choose one of {NAMES}")
    enabled = config.listener_value(listener_name, "sasl.enabled.mechanisms")
    if has_listener and mechanism not in enabled:
        reason = f"must be one of sasl.enabled.mechanisms of listener {listener_name}"
        _refuse(config, key, f"{reason} ({', '.join(enabled)})")


def _check_mechanisms(config: NodeConfig, listener_name: str) -> None:
    mechanisms = config.listener_value(listener_name, "sasl.enabled.mechanisms")
    for mechanism in mechanisms:
        if mechanism not in MECHANISMS:
            raise ConfigError(
                "sasl.enabled.mechanisms",
                ",".join(mechanisms),
                f"listener {listener_name}: {mechanism} is not served; name some of {NAMES}",
            )
    if not mechanisms:
        raise ConfigError(
            "sasl.enabled.mechanisms", "", f"listener {listener_name} needs some of {NAMES}"
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
        _refuse(config, "listeners", "must contain one for clients")


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
    key = "early.start.listeners"
    names = [endpoint.listener_name for endpoint in config.listeners]
    for name in config[key] or ():
        if name.upper() not in (*names, *config.controller_listener_names):
            raise ConfigError(
                key, name, "is neither one of listeners nor of controller.listener.names"
            )
    late = config.late_controller_listeners
    for endpoint in config.controller_listeners:
        if endpoint.listener_name in late and not endpoint.port:
            reason = (
                f"leaves out {endpoint.listener_name}, which then needs a port other than 0 in "
                "listeners: it opens after the controller has registered"
            )
            _refuse(config, key, reason)


def _check_log(config: NodeConfig) -> None:
    for key in ("log.retention.ms", "log.retention.minutes", "log.retention.hours"):
        value = config[key]
        if value is not None and value < 1 and value != -1:
            _refuse(config, key, "must be at least 1, or -1 for no limit")
    key = "log.cleaner.dedupe.buffer.size"
    if config[key] <= config["log.cleaner.threads"] * 1024 * 1024:
        _refuse(config, key, "must be above 1 MiB per cleaner thread")


def _check_limits(config: NodeConfig) -> None:
    for lower, upper in _NOT_ABOVE:
        if config[lower] > config[upper]:
            _refuse(config, lower, f"must not exceed {upper}={config.text(upper)}")
    for kind, suffix in LIMITED_GROUP_KEYS:
        prefix = f"group.{kind}."
        key = prefix + suffix
        minimum, maximum = config[f"{prefix}min.{suffix}"], config[f"{prefix}max.{suffix}"]
        if not minimum <= config[key] <= maximum:
            lowest, highest = f"{prefix}min.{suffix}={minimum}", f"{prefix}max.{suffix}={maximum}"
            _refuse(config, key, f"must be between {lowest} and {highest}")
    key, limit = "queued.max.request.bytes", "socket.request.max.bytes"
    if 0 < config[key] < config[limit]:
        _refuse(config, key, f"must be at least {limit}, or -1")
    key, overrides = "max.connections.per.ip", "max.connections.per.ip.overrides"
    if config[key] == 0 and not config[overrides]:
        _refuse(config, key, f"may be 0 only with {overrides}")


def _check_classes(config: NodeConfig) -> None:
    for key, served in _SERVED_CLASSES.items():
        if config[key] not in (None, "", served):
            _refuse(config, key, f"is not served; leave it out, or choose {served}")
    for name in config["group.consumer.assignors"]:
        if name not in CONSUMER_GROUP_ASSIGNORS:
            raise ConfigError(
                "group.consumer.assignors", name, "is not served; choose uniform, range or both"
            )
