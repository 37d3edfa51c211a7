"""Loading a node's configuration: sources, checks, addresses, redaction."""

from __future__ import annotations

import pytest

from moldau.config import ConfigError, Endpoint, NodeConfig
from moldau.config.definition import Password, Status
from moldau.config.listeners import HostPort, SecurityProtocol
from moldau.config.table import BROKER_KEYS
from moldau.config.values import accept_value
from moldau.local.secure_files import SecureFiles, secure_properties
from tests.unit.config.samples import MINIMAL, node, node_with

PLAINTEXT = SecurityProtocol.PLAINTEXT


def test_minimal_node_has_kafkas_defaults_and_no_warnings():
    config = node()
    assert config.warnings == ()
    assert config["log.segment.bytes"] == 1 << 30
    assert config.get_boolean("auto.create.topics.enable") is True
    assert config.get_int("num.partitions") == 1
    assert config.get_string("compression.type") == "producer"
    assert (config.node_id, config.is_broker, config.is_controller) == (1, True, True)
    assert config["broker.id"] == 1
    assert config.rack is None
    assert config.log_directories == ("data",)
    assert config.metadata_log_directory == "data"
    assert len(config) == len(list(config))


def test_later_sources_win(tmp_path):
    path = tmp_path / "server.properties"
    lines = [f"{name}={text}" for name, text in MINIMAL.items()]
    path.write_text("\n".join([*lines, "num.partitions=2", "log.segment.bytes=2000000"]))
    environ = {"KAFKA_NUM_PARTITIONS": "3", "KAFKA_LOG_SEGMENT_BYTES": "3000000", "HOME": "/x"}
    config = NodeConfig.load(str(path), {"log.segment.bytes": "4000000"}, environ)
    assert config["num.partitions"] == 3
    assert config["log.segment.bytes"] == 4000000
    assert NodeConfig.load(str(path))["num.partitions"] == 2


def test_environment_names_translate_and_foreign_variables_are_left_alone():
    environ = {"KAFKA_" + name.upper().replace(".", "_"): text for name, text in MINIMAL.items()}
    environ |= {
        "KAFKA_HEAP_OPTS": "-Xmx1G",
        "KAFKA_PORT": "tcp://10.0.0.1:9092",
        "KAFKA_PORT_9092_TCP_ADDR": "10.0.0.1",
        "KAFKA_SERVICE_HOST": "10.0.0.1",
        "KAFKA_SOMETHING_ELSE": "x",
        "KAFKA_": "x",
        "KAFKA_NUM_PARTITONS": "3",
        "KAFKA_RSM_CONFIG_A__B___C": "x",
    }
    config = NodeConfig.load(None, None, environ)
    assert config.node_id == 1
    assert "rsm.config.a_b-c" in config.explicit
    assert [warning for warning in config.warnings if "rsm.config" not in warning] == [
        "num.partitons is not a known key and has no effect; did you mean num.partitions?"
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"node.id": None}, "node.id: is required"),
        ({"node.id": "-1"}, "node.id=-1: must be at least 0"),
        ({"node.id": "one"}, "node.id=one: must be a 32-bit whole number, at least 0"),
        ({"broker.id": "2"}, "broker.id=2: must equal node.id"),
        ({"process.roles": None}, "process.roles: is required"),
        (
            {"process.roles": None, "bootstrap.servers": "h:1"},
            "process.roles: is required (clients have bootstrap.servers: is this the file of one?)",
        ),
        ({"process.roles": ""}, "process.roles=: must be a non-empty list"),
        ({"process.roles": "broker,brokr"}, "out of broker, controller"),
        ({"process.roles": "broker"}, "is a controller listener, but process.roles has no contr"),
        ({"process.roles": "controller"}, "is not a controller listener, but process.roles has"),
        ({"controller.listener.names": None}, "controller.listener.names: is required"),
        ({"controller.listener.names": "OTHER"}, "listener CONTROLLER needs an entry"),
        ({"controller.quorum.bootstrap.servers": None}, "or controller.quorum.voters"),
        ({"controller.quorum.bootstrap.servers": "localhost"}, "must be HOST:PORT"),
        ({"controller.quorum.bootstrap.servers": "h:70000"}, "between 0 and 65535"),
        ({"controller.quorum.voters": "2@h:1"}, "must contain node.id 1"),
        ({"controller.quorum.voters": "1@h:1,1@h:2"}, "voter 1 is listed twice"),
        ({"controller.quorum.voters": "h:1"}, "must be ID@HOST:PORT"),
        ({"controller.quorum.voters": "1@0.0.0.0:1"}, "must be a routable address"),
        (
            {"process.roles": "broker", "listeners": "PLAINTEXT://:1"}
            | {"controller.quorum.voters": "1@h:1,2@h:2"},
            "must not contain node.id 1",
        ),
        (
            {"process.roles": "broker", "listeners": "PLAINTEXT://:1"}
            | {"controller.quorum.bootstrap.servers": None},
            "controller.quorum.bootstrap.servers: is required (or controller.quorum.voters)",
        ),
        (
            {"process.roles": "broker", "listeners": "PLAINTEXT://:1"}
            | {"advertised.listeners": "PLAINTEXT://h:1,CONTROLLER://h:2"},
            "CONTROLLER://h:2: is not one of listeners",
        ),
        (
            {"process.roles": "controller", "listeners": "CONTROLLER://:1"}
            | {"advertised.listeners": "PLAINTEXT://h:1"},
            "PLAINTEXT://h:1: is not one of listeners",
        ),
        (
            {"process.roles": "controller", "listeners": "CONTROLLER://:1"}
            | {"advertised.listeners": "CONTROLLER://0.0.0.0:1"},
            "advertise a routable one",
        ),
        (
            {"controller.listener.names": "CONTROLLER,OTHER"}
            | {
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
                "OTHER:PLAINTEXT"
            },
            "must contain the controller listener OTHER",
        ),
        ({"listeners": "PLAINTEXT://:1"}, "must contain the controller listener CONTROLLER"),
        ({"listeners": "CONTROLLER://:1"}, "listeners=CONTROLLER://:1: must contain one for cl"),
        ({"listeners": "PLAINTEXT:9092,CONTROLLER://:1"}, "must be NAME://HOST:PORT"),
        ({"listeners": "X://:9092,CONTROLLER://:1"}, "X needs an entry in listener.security"),
        ({"listeners": "PLAINTEXT://:1,CONTROLLER://:1"}, "uses port 1 twice"),
        ({"listeners": "PLAINTEXT://:1,PLAINTEXT://:2"}, "listener name PLAINTEXT is used twice"),
        ({"listeners": "PLAINTEXT://:99999,CONTROLLER://:1"}, "between 0 and 65535"),
        ({"listeners": "PLAINTEXT://::1:9092,CONTROLLER://:1"}, "IPv6 addresses in brackets"),
        (
            {
                "listeners": "SSL://:1,CONTROLLER://:2",
                "listener.security.protocol.map": "SSL:SSL,CONTROLLER:PLAINTEXT",
            },
            "must be one of the advertised listeners (SSL, CON",
        ),
        ({"listeners": "SSL://:1,CONTROLLER://:2"}, "CONTROLLER needs an entry"),
        ({"advertised.listeners": "PLAINTEXT://0.0.0.0:1"}, "advertise a routable one"),
        ({"listeners": "PLAINTEXT://0.0.0.0:1,CONTROLLER://:2"}, "advertise a routable one"),
        ({"advertised.listeners": "SSL://h:1"}, "is not one of listeners"),
        (
            {
                "advertised.listeners": "INSIDE://h:1",
                "listener.security.protocol.map": "INSIDE:PLAINTEXT,"
                "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            },
            "is not one of listeners",
        ),
        ({"listener.security.protocol.map": "PLAINTEXT:TLS"}, "the protocol must be one of PLAIN"),
        ({"listener.security.protocol.map": "PLAINTEXT"}, "must be NAME:PROTOCOL pairs"),
        ({"inter.broker.listener.name": "CONTROLLER"}, "cannot be a controller listener"),
        ({"inter.broker.listener.name": "OTHER"}, "must be one of the advertised listeners"),
        (
            {
                "inter.broker.listener.name": "PLAINTEXT",
                "security.inter.broker.protocol": "PLAINTEXT",
            },
            "cannot be combined",
        ),
        ({"security.inter.broker.protocol": "SSL"}, "must be one of the advertised listeners"),
        ({"security.inter.broker.protocol": "TLS"}, "must be one of PLAINTEXT, SSL, SASL_PLAINT"),
        ({"early.start.listeners": "OTHER"}, "is neither one of listeners nor of controller.list"),
        (
            {
                "early.start.listeners": "PLAINTEXT",
                "authorizer.class.name": (
                    "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
                ),
                "listeners": "PLAINTEXT://h:1,CONTROLLER://h:0",
            },
            "leaves out CONTROLLER, which then needs a port other than 0",
        ),
        ({"log.dirs": "a,a"}, "log.dirs=a,a: must be a non-empty list of distinct"),
        ({"log.retention.ms": "0"}, "log.retention.ms=0: must be at least 1, or -1"),
        ({"log.cleaner.dedupe.buffer.size": "1048576"}, "above 1 MiB per cleaner thread"),
        ({"log.cleanup.policy": "shred"}, "out of compact, delete"),
        (
            {"authorizer.class.name": "x.Y"},
            "is not served; leave it out, or choose org.apache.kafka.metadata",
        ),
        ({"remote.log.storage.system.enable": "true"}, "is refused: tiered storage"),
        ({"queued.max.request.bytes": "100"}, "must be at least socket.request.max.bytes"),
        ({"max.connections.per.ip": "0"}, "only with max.connections.per.ip.overrides"),
        ({"replica.fetch.wait.max.ms": "40000"}, "must not exceed replica.socket.timeout.ms=30000"),
        ({"group.consumer.session.timeout.ms": "1"}, "group.consumer.heartbeat.interval.ms=5000"),
        ({"group.consumer.session.timeout.ms": "60001"}, "must be between group.consumer.min.ses"),
        ({"auto.create.topics.enable": "yes"}, "auto.create.topics.enable=yes: must be true or f"),
        ({"compression.type": "zip"}, "one of uncompressed, zstd, lz4, snappy, gzip, producer"),
        ({"log.segment.bytes": "1048575"}, "must be at least 1048576"),
    ],
)
def test_bad_value_stops_with_key_value_and_what_is_allowed(changes, message):
    with pytest.raises(ConfigError) as caught:
        node_with(changes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_key_mentions_what_replaced_a_removed_one():
    with pytest.raises(ConfigError, match=r"process\.roles: is required \(zookeeper\.connect was"):
        NodeConfig({"node.id": "1", "zookeeper.connect": "localhost:2181"})


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("zookeeper.connect", "controller.quorum.bootstrap.servers"),
        ("zookeeper.ssl.client.enable", "controller.quorum.bootstrap.servers"),
        ("request.required.acks", "acks at the producer"),
        ("replica.lag.max.messages", "replica.lag.time.max.ms"),
        ("log.message.format.version", "format 2"),
        ("inter.broker.protocol.version", "metadata.version"),
        ("control.plane.listener.name", "controller.listener.names"),
    ],
)
def test_removed_keys_warn_with_their_replacement(name, part):
    warnings = node_with({name: "x"}).warnings
    assert len(warnings) == 1
    assert warnings[0].startswith(f"{name} was removed from Kafka: ")
    assert part in warnings[0]


@pytest.mark.parametrize(
    ("name", "text", "warning"),
    [
        ("log.segmnt.bytes", "1", "did you mean log.segment.bytes?"),
        ("LOG_SEGMENT_BYTES", "1", "did you mean log.segment.bytes?"),
        ("completely.unrelated.thing", "1", "is not a known key and has no effect"),
        ("retention.ms", "1", "(the node's default is log.retention.ms)"),
        ("num.io.threads", "3", "has no effect: work is done on event loops"),
        ("listener.name.plaintext.max.connections", "3", "not served per listener yet"),
        ("listener.name.inside.plain.sasl.jaas.config", "x", "listeners has none of that name"),
        ("listener.name.PLAINTEXT.ssl.client.auth", "none", "in lower case"),
        ("sasl.jaas.config", "x", "listener.name.LISTENER.plain.sasl.jaas.config"),
        ("listener.name.plaintext.sasl.jaas.config", "x", "are given by mechanism"),
        ("rsm.config.bucket", "x", "server-side plug-ins are not served"),
        (
            "group.coordinator.rebalance.protocols",
            "classic,share",
            "share and streams groups are not",
        ),
        ("broker.heartbeat.interval.ms", "5000", "at most half of broker.session.timeout.ms"),
    ],
)
def test_what_has_no_effect_warns(name, text, warning):
    assert any(warning in line for line in node_with({name: text}).warnings)


CONTROLLER_ALONE = {
    "process.roles": "controller",
    "listeners": "CONTROLLER://127.0.0.1:9093",
    "listener.security.protocol.map": "INTERNAL:SSL,CONTROLLER:PLAINTEXT",
    "listener.name.internal.ssl.client.auth": "required",
}


def test_what_a_controller_shares_with_brokers_does_not_warn():
    assert node_with(CONTROLLER_ALONE).warnings == ()


@pytest.mark.parametrize(
    "changes",
    [
        {"listener.name.intrenal.ssl.client.auth": "required"},
        {"listener.name.INTERNAL.ssl.client.auth": "required"},
        {"listener.security.protocol.map": None},
    ],
)
def test_a_controllers_settings_of_listeners_that_no_node_has_warn(changes):
    [warning] = node_with({**CONTROLLER_ALONE, **changes}).warnings
    assert "listeners has none of that name" in warning


def test_the_configuration_of_a_secured_cluster_does_not_warn(tmp_path):
    files = SecureFiles(tmp_path)
    (tmp_path / "certificate.pem").touch()
    config = node_with(
        {
            **{"process.roles": "controller", "listeners": "CONTROLLER://127.0.0.1:9093"},
            **secure_properties(tmp_path, files),
        }
    )
    assert config.warnings == ()


def test_ignored_key_at_its_default_does_not_warn():
    assert node_with({"num.io.threads": "8"}).warnings == ()


def test_addresses():
    config = node_with(
        {
            "listeners": "inside://[::1]:0, OUTSIDE://:9092, CONTROLLER://h-1.example:9093",
            "advertised.listeners": "INSIDE://[fe80::1%eth0]:9094,OUTSIDE://pub.example:9092",
            "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT,CONTROLLER:"
            "PLAINTEXT",
            "inter.broker.listener.name": "inside",
            "controller.quorum.voters": "1@[::1]:9093",
        }
    )
    assert config.listeners == (
        Endpoint("INSIDE", "::1", 0, PLAINTEXT),
        Endpoint("OUTSIDE", "", 9092, PLAINTEXT),
        Endpoint("CONTROLLER", "h-1.example", 9093, PLAINTEXT),
    )
    assert [str(endpoint) for endpoint in config.advertised_listeners] == [
        "INSIDE://[fe80::1%eth0]:9094",
        "OUTSIDE://pub.example:9092",
    ]
    assert [e.listener_name for e in config.broker_listeners] == ["INSIDE", "OUTSIDE"]
    assert [e.listener_name for e in config.controller_listeners] == ["CONTROLLER"]
    assert config.inter_broker_listener_name == "INSIDE"
    assert config.quorum_voters[0] == (1, "::1", 9093)
    assert config.quorum_bootstrap_servers == (HostPort("127.0.0.1", 9093),)


@pytest.mark.parametrize(
    ("changes", "listeners", "addresses"),
    [
        (
            {"process.roles": "broker", "listeners": "PLAINTEXT://:1"},
            (("PLAINTEXT",), ()),
            ["127.0.0.1:9093"],
        ),
        (
            {"process.roles": "controller", "listeners": "CONTROLLER://:2"},
            ((), ("CONTROLLER",)),
            ["127.0.0.1:9093"],
        ),
        (
            {"process.roles": "controller", "listeners": "CONTROLLER://:2"}
            | {"controller.quorum.bootstrap.servers": None}
            | {"controller.quorum.voters": "1@a:2,2@b:3"},
            ((), ("CONTROLLER",)),
            ["a:2", "b:3"],
        ),
        (
            {"process.roles": "controller,broker", "controller.quorum.voters": "1@a:2,7@b:3"},
            (("PLAINTEXT",), ("CONTROLLER",)),
            ["127.0.0.1:9093"],
        ),
    ],
)
def test_every_combination_of_roles_is_a_configuration(changes, listeners, addresses):
    config = node_with(changes)
    assert config.warnings == ()
    assert listeners == (
        tuple(each.listener_name for each in config.broker_listeners),
        tuple(each.listener_name for each in config.controller_listeners),
    )
    assert [str(address) for address in config.controller_addresses] == addresses
    assert config.has_static_voters is ("controller.quorum.voters" in changes)


def test_a_controller_advertises_what_it_says_else_where_it_listens():
    names = {
        "controller.listener.names": "SECOND,CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
        "SECOND:PLAINTEXT",
        "listeners": "PLAINTEXT://:1,CONTROLLER://0.0.0.0:2,SECOND://:3",
        "advertised.listeners": "PLAINTEXT://p:1,SECOND://s:33",
    }
    assert node_with(names).advertised_controller_listeners == (
        Endpoint("SECOND", "s", 33, PLAINTEXT),
        Endpoint("CONTROLLER", "", 2, PLAINTEXT),
    )
    broker = {"process.roles": "broker", "listeners": "PLAINTEXT://:1"}
    assert node_with(broker).advertised_controller_listeners == ()


def test_a_broker_is_warned_that_it_uses_the_first_controller_listener_only():
    config = node_with(
        {
            "process.roles": "broker",
            "listeners": "PLAINTEXT://:1",
            "controller.listener.names": "ONE,TWO",
        }
    )
    assert len(config.warnings) == 1
    assert "connects to ONE only" in config.warnings[0]


def test_same_port_on_ipv4_and_ipv6_is_fine():
    text = "PLAINTEXT://127.0.0.1:1,SIX://[::1]:1,CONTROLLER://:2"
    protocols = "PLAINTEXT:PLAINTEXT,SIX:PLAINTEXT,CONTROLLER:PLAINTEXT"
    assert (
        len(node_with({"listeners": text, "listener.security.protocol.map": protocols}).listeners)
        == 3
    )


def test_free_ports_and_empty_hosts_are_resolved_when_they_are_known():
    config = node(listeners="PLAINTEXT://:0,CONTROLLER://127.0.0.1:0")
    resolved = config.resolve_advertised({"PLAINTEXT": 4711, "CONTROLLER": 4712}, "box")
    assert resolved == (
        Endpoint("PLAINTEXT", "box", 4711, PLAINTEXT),
        Endpoint("CONTROLLER", "127.0.0.1", 4712, PLAINTEXT),
    )


def test_limits_per_client_address():
    config = node_with({"max.connections.per.ip.overrides": "10.0.0.1:5, ::1:6,[fe80::2]:0"})
    assert config.max_connections_per_ip_overrides == {"10.0.0.1": 5, "::1": 6, "fe80::2": 0}
    config = node_with(
        {"max.connections.per.ip.overrides": "2001:DB8:0:0:0:0:0:5:7,[::ffff:10.0.0.5]:8,a:9"}
    )
    assert config.max_connections_per_ip_overrides == {"2001:db8::5": 7, "10.0.0.5": 8, "a": 9}
    for bad in ("10.0.0.1", "10.0.0.1:-1", ":5", "a:1,a:2", "::1:5,0:0:0:0:0:0:0:1:6"):
        with pytest.raises(ConfigError, match=r"max\.connections\.per\.ip\.overrides="):
            node_with({"max.connections.per.ip.overrides": bad})


@pytest.mark.parametrize(
    "address", ["", ":0", "127.0.0.1:8080", "node-1.example:65535", "[::1]:80", "[fe80::1%eth0]:1"]
)
def test_an_address_to_bind_to(address):
    assert node_with({"moldau.http.listener": address})["moldau.http.listener"] == address


@pytest.mark.parametrize(
    "address", [":", "host", "host:", "host:65536", "host:-1", "host:٣", "::1:80", "a b:1", "[]:1"]
)
def test_an_address_that_cannot_be_bound_is_refused(address):
    with pytest.raises(ConfigError, match=r"moldau\.http\.listener=.*: must be HOST:PORT"):
        node_with({"moldau.http.listener": address})


def test_one_replica_selector_is_served() -> None:
    served = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
    for name in ("", served):
        assert node_with({"replica.selector.class": name})["replica.selector.class"] == name
    with pytest.raises(ConfigError, match=rf"=com\.example\.Mine: is not served; .*{served}"):
        node_with({"replica.selector.class": "com.example.Mine"})


def test_log_dir_stands_in_for_log_dirs():
    assert node_with({"log.dirs": None, "log.dir": "one"}).log_directories == ("one",)
    assert node(metadata_log_dir="meta").metadata_log_directory == "meta"


def test_secrets_are_never_shown():
    secret = "hunter2"
    config = node_with({"ssl.keystore.password": secret, "some.unknown.password": secret})
    assert config["ssl.keystore.password"] == Password(secret)
    assert config["ssl.keystore.password"].value == secret
    for shown in (
        repr(config),
        str(config.redacted()),
        str(config.warnings),
        str(config["ssl.keystore.password"]),
        str(config.text("ssl.keystore.password")),
    ):
        assert secret not in shown
    refused = BROKER_KEYS["ssl.keystore.password"]._replace(status=Status.REFUSED)
    with pytest.raises(ConfigError) as caught:
        accept_value(refused, secret)
    assert secret not in str(caught.value)


def test_error_texts_stay_short_and_on_one_line():
    with pytest.raises(ConfigError) as caught:
        node(num_partitions="1\n2" * 10_000)
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)


SECURED = {
    "listeners": "PLAINTEXT://:1,CONTROLLER://:2,OUTSIDE://:3,OTHER://:4",
    "listener.security.protocol.map": (
        "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,OUTSIDE:SASL_SSL,OTHER:SASL_SSL"
    ),
    "sasl.enabled.mechanisms": "PLAIN",
}


CONTROLLER_BY_SASL = {
    "listener.security.protocol.map": (
        "PLAINTEXT:PLAINTEXT,CONTROLLER:SASL_SSL,OUTSIDE:SASL_SSL,OTHER:SASL_SSL"
    ),
}


def test_listeners_have_settings_of_their_own():
    config = node_with(
        {
            **SECURED,
            "connections.max.reauth.ms": "1",
            "ssl.client.auth": "requested",
            "listener.name.outside.ssl.client.auth": "required",
            "listener.name.outside.connections.max.reauth.ms": "2",
            "listener.name.outside.scram-sha-256.connections.max.reauth.ms": "3",
            "listener.name.outside.plain.sasl.jaas.config": "users",
            "listener.name.outside.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
            "listener.name.outside.oauthbearer.sasl.oauthbearer.expected.issuer": "a",
            "sasl.oauthbearer.expected.issuer": "b",
            "listener.name.outside.oauthbearer.sasl.server.callback.handler.class": "x",
            "sasl.server.callback.handler.class": "y",
        }
    )
    value = config.listener_value
    for listener, client_auth, mechanisms in (
        ("OUTSIDE", "required", ("PLAIN", "SCRAM-SHA-256")),
        ("OTHER", "requested", ("PLAIN",)),
    ):
        assert value(listener, "ssl.client.auth") == client_auth
        assert value(listener, "sasl.enabled.mechanisms") == mechanisms
    key = "connections.max.reauth.ms"
    assert value("OUTSIDE", key, "SCRAM-SHA-256") == 3
    assert value("OUTSIDE", key, "PLAIN") == 2
    assert value("OTHER", key, "PLAIN") == 1
    assert value("OUTSIDE", "sasl.jaas.config", "PLAIN") == Password("users")
    assert value("OTHER", "sasl.jaas.config", "PLAIN") is None
    assert value("OUTSIDE", "sasl.oauthbearer.expected.issuer", "OAUTHBEARER") == "a"
    assert value("OTHER", "sasl.oauthbearer.expected.issuer", "OAUTHBEARER") == "b"
    handler = "sasl.server.callback.handler.class"
    assert value("OUTSIDE", handler, "OAUTHBEARER") == "x"
    assert value("OTHER", handler, "OAUTHBEARER") is None
    assert not config.warnings
    assert "users" not in repr(config)


def test_users_of_all_listeners_are_users_of_none():
    """As in Apache Kafka."""
    config = node_with({**SECURED, "sasl.jaas.config": "a", "plain.sasl.jaas.config": "b"})
    assert config.listener_value("OUTSIDE", "sasl.jaas.config", "PLAIN") is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sasl.enabled.mechanisms": ""}, "listener OUTSIDE needs some of PLAIN, SCRAM-SHA-256"),
        (
            {"listener.name.other.sasl.enabled.mechanisms": "PLAIN,GS2-KRB5"},
            "listener OTHER: GS2-KRB5 is not served",
        ),
        (
            {"inter.broker.listener.name": "OUTSIDE"},
            "sasl.mechanism.inter.broker.protocol=GSSAPI: must be one of sasl.enabled.mechanisms",
        ),
        (
            {
                "inter.broker.listener.name": "OUTSIDE",
                "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
            },
            "must be one of sasl.enabled.mechanisms of listener OUTSIDE",
        ),
        (
            {**CONTROLLER_BY_SASL, "sasl.mechanism.controller.protocol": "DIGEST-MD5"},
            "DIGEST-MD5: is not served between nodes",
        ),
        (
            {**CONTROLLER_BY_SASL, "sasl.mechanism.controller.protocol": "SCRAM-SHA-512"},
            "must be one of sasl.enabled.mechanisms of listener CONTROLLER",
        ),
    ],
)
def test_secured_listeners_that_cannot_be(changes, message):
    with pytest.raises(ConfigError) as caught:
        node_with({**SECURED, **changes})
    assert message in str(caught.value)


def test_a_broker_knows_how_to_speak_to_controllers():
    """It has no such listener itself: the map and the listener's keys say it."""
    broker = {
        "process.roles": "broker",
        "listeners": "PLAINTEXT://:1",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:SASL_SSL",
        "sasl.mechanism.controller.protocol": "SCRAM-SHA-256",
        "listener.name.controller.scram-sha-256.sasl.jaas.config": "login",
        "listener.name.controller.ssl.truststore.location": "ca.pem",
        "listener.name.controller.ssl.endpoint.identification.algorithm": "",
    }
    config = node_with(broker)
    assert not config.warnings
    assert config.listener_security_protocols["CONTROLLER"] is SecurityProtocol.SASL_SSL
    assert config.listener_value("CONTROLLER", "ssl.truststore.location") == "ca.pem"
    assert config.listener_value("CONTROLLER", "ssl.endpoint.identification.algorithm") == ""
    assert config["ssl.endpoint.identification.algorithm"] == "https"
    with pytest.raises(ConfigError, match="DIGEST-MD5: is not served between nodes; listener CON"):
        node_with({**broker, "sasl.mechanism.controller.protocol": "DIGEST-MD5"})
