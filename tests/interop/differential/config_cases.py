"""Cases about configuration: every key of topics and brokers with good and bad values, every type
of resource, described and altered.

The values to try are those of `tests/unit/config/kafka_4_3_values.txt` and some of each type.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from moldau.config.dynamic_config import NOT_AT_RUN_TIME
from moldau.protocol.api_keys import ApiKey
from tests.interop.differential.running import Case
from tests.interop.differential.topic_cases import FIXED
from tests.unit.config.facts import key_facts, value_facts

Fields = dict[str, Any]

TOPIC: Final = 2
BROKER: Final = 4
BROKER_LOGGER: Final = 8
CLIENT_METRICS: Final = 16
GROUP: Final = 32
DOCUMENTED_SINCE: Final = 3
SET, DELETE, APPEND, SUBTRACT = range(4)

OF_EACH_TYPE: Final = {
    "BOOLEAN": ["true", "FALSE", "yes", "", " true "],
    "INT": ["1", "-1", "0", "2147483648", "1.5", "x", "", " 7 "],
    "SHORT": ["1", "-1", "0", "32768", "x", ""],
    "LONG": ["1", "-1", "-2", "0", "9223372036854775808", "x", ""],
    "DOUBLE": ["0.5", "-0.5", "1.5", "x", "", "1e-3"],
    "STRING": ["x", "", "none"],
    "LIST": ["x", "", "a,b", "a,,b", "a,a", "delete", "compact,delete"],
    "CLASS": ["x", ""],
    "PASSWORD": ["x", ""],
}

GROUP_KEYS: Final = {
    "consumer.session.timeout.ms": ["45000", "1", "x", ""],
    "consumer.heartbeat.interval.ms": ["5000", "1", "x", ""],
    "share.auto.offset.reset": ["earliest", "latest", "x", ""],
    "share.isolation.level": ["read_committed", "x"],
    "share.session.timeout.ms": ["45000", "1", "x"],
    "streams.num.standby.replicas": ["0", "1", "9", "x"],
    "no.such.key": ["1"],
}

BROKER_NAMES: Final = {
    "itself": "1",
    "all": "",
    "unknown": "9",
    "no number": "x",
    "negative": "-1",
    "padded": "01",
}


def cases() -> Iterator[Case]:
    """Described as they begin; altered; described again."""
    yield from _describe("before")
    yield from _validated_topic_keys()
    yield from _validated_broker_keys()
    yield from _validated_groups()
    yield from _bad_resources()
    yield from _operations()
    yield from _stored()
    yield from _describe("after")
    yield from _legacy()
    yield from _listed()


def _alter(
    name: str, resources: list[Fields], *, changes: bool = True, validate_only: bool = False
) -> Case:
    return Case(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        name,
        lambda g: {"resources": resources, "validate_only": validate_only},
        changes=changes,
    )


def _set(kind: int, resource: str, key: str, value: str | None, operation: int = SET) -> Fields:
    config = {"name": key, "config_operation": operation, "value": value}
    return {"resource_type": kind, "resource_name": resource, "configs": [config]}


def _validated(name: str, resource: Fields) -> Case:
    """Only checked: nothing changes, and nothing has to be waited for. The values of keys do not
    depend on the version.
    """
    return replace(_alter(name, [resource], changes=False, validate_only=True), versions=(1,))


def _values(kind: str, name: str, config_type: str) -> list[str]:
    """Values worth trying, each once."""
    for facts in value_facts():
        if (facts.kind, facts.name) == (kind, name):
            found = [*list(facts.accepted)[:6], *facts.rejected[:6]]
            return list(dict.fromkeys([*found, *OF_EACH_TYPE[config_type][:2]]))
    return OF_EACH_TYPE[config_type]


def _validated_topic_keys() -> Iterator[Case]:
    for facts in key_facts():
        if facts.kind == "topic":
            for value in _values("topic", facts.name, facts.type):
                yield _validated(
                    f"topic {facts.name}={value!r}", _set(TOPIC, FIXED, facts.name, value)
                )
            yield _validated(f"topic {facts.name} null", _set(TOPIC, FIXED, facts.name, None))


def _validated_broker_keys() -> Iterator[Case]:
    for facts in key_facts():
        if facts.kind != "broker" or facts.name in NOT_AT_RUN_TIME:
            continue
        values = _values("broker", facts.name, facts.type)
        if facts.update_mode == "read-only":
            values = [facts.default if not facts.default.startswith("<") else values[0]]
        for value in values:
            yield _validated(
                f"broker {facts.name}={value!r} itself", _set(BROKER, "1", facts.name, value)
            )
        for value in values[:2]:
            yield _validated(
                f"broker {facts.name}={value!r} all", _set(BROKER, "", facts.name, value)
            )
    for name in (
        "no.such.key",
        "listener.name.plaintext.ssl.keystore.type",
        "listener.name.plaintext.ssl.keystore.password",
        "listener.name.no.such.ssl.truststore.location",
        "listener.name.other.max.connections",
        "a b",
        "",
    ):
        for word, resource in (("itself", "1"), ("all", "")):
            for value in ("x", "", None):
                yield _validated(
                    f"broker {name}={value!r} {word}", _set(BROKER, resource, name, value)
                )


def _validated_groups() -> Iterator[Case]:
    for key, values in GROUP_KEYS.items():
        for value in values:
            yield _validated(f"group {key}={value!r}", _set(GROUP, "g1", key, value))
            yield _validated(
                f"metrics {key}={value!r}", _set(CLIENT_METRICS, "subscription", key, value)
            )


def _bad_resources() -> Iterator[Case]:
    names = {TOPIC: "no-such", BROKER: "9", BROKER_LOGGER: "9", CLIENT_METRICS: "m", GROUP: "g"}
    for kind in (-1, 0, 1, TOPIC, 3, BROKER, 5, 7, BROKER_LOGGER, CLIENT_METRICS, 17, GROUP, 64):
        for name in dict.fromkeys((names.get(kind, "x"), "", "a b", "1", "-1", "x" * 300)):
            word = name if len(name) < 9 else "long"
            resource = {"resource_type": kind, "resource_name": name}
            nothing: Fields = {**resource, "configs": []}
            yield _alter(f"type {kind} {word!r}, no keys", [nothing])
            yield Case(
                ApiKey.ALTER_CONFIGS,
                f"type {kind} {word!r}, no keys",
                lambda g, nothing=nothing: {"resources": [nothing], "validate_only": True},
            )
            yield Case(
                ApiKey.DESCRIBE_CONFIGS,
                f"type {kind} {word!r}",
                lambda g, resource=resource: {
                    "resources": [{**resource, "configuration_keys": ["no.such.key"]}]
                },
            )
    good = _set(TOPIC, FIXED, "flush.ms", "70")
    yield _alter("resource twice", [good, good])
    yield _alter(
        "resource twice among others", [good, _set(TOPIC, "fixed_dotted", "flush.ms", "7"), good]
    )
    yield _alter("no resources", [])
    yield _alter("key twice", [{**good, "configs": good["configs"] * 2}])
    yield _alter(
        "good and bad",
        [
            _set(TOPIC, FIXED, "flush.ms", "71"),
            _set(TOPIC, "no-such", "flush.ms", "7"),
            _set(TOPIC, "fixed_dotted", "no.such", "7"),
        ],
    )
    yield _alter(
        "good and bad keys",
        [
            {
                **good,
                "configs": [
                    *good["configs"],
                    {"name": "no.such", "config_operation": SET, "value": "1"},
                ],
            }
        ],
    )


def _operations() -> Iterator[Case]:
    for operation in (-1, DELETE, APPEND, SUBTRACT, 4):
        for key in (
            "cleanup.policy",
            "retention.ms",
            "no.such.key",
            "",
            "follower.replication.throttled.replicas",
        ):
            for value in (None, "", "delete", "compact", "compact,delete", "x"):
                yield _alter(
                    f"operation {operation} {key} {value}",
                    [_set(TOPIC, "fixed.configured", key, value, operation)],
                    changes=False,
                    validate_only=True,
                )
        for key in (
            "log.cleanup.policy",
            "log.retention.ms",
            "node.id",
            "no.such.key",
            "min.insync.replicas",
        ):
            for value in (None, "", "delete", "compact"):
                for word, name in (("itself", "1"), ("all", "")):
                    yield _alter(
                        f"operation {operation} {key} {value} {word}",
                        [_set(BROKER, name, key, value, operation)],
                        changes=False,
                        validate_only=True,
                    )


def _stored() -> Iterator[Case]:
    yield _alter(
        "stored topic keys",
        [
            {
                "resource_type": TOPIC,
                "resource_name": FIXED,
                "configs": [
                    {"name": name, "config_operation": SET, "value": value}
                    for name, value in (
                        ("retention.ms", "8640000"),
                        ("segment.ms", "1000000"),
                        ("max.message.bytes", "999"),
                        ("compression.type", "ZSTD"),
                        ("cleanup.policy", " compact , delete "),
                        ("min.cleanable.dirty.ratio", "0.50"),
                        ("unclean.leader.election.enable", "TRUE"),
                        ("segment.jitter.ms", "+5"),
                    )
                ],
            }
        ],
    )
    yield _alter(
        "stored broker keys",
        [
            _set(BROKER, "1", "log.retention.ms", "777777"),
            _set(BROKER, "", "log.segment.bytes", "204857600"),
        ],
    )
    yield _alter("stored unknown broker key", [_set(BROKER, "1", "no.such.key", "hello")])
    yield _alter("stored unknown default", [_set(BROKER, "", "no.such.default", "hello")])
    yield _alter(
        "stored listener key",
        [_set(BROKER, "1", "listener.name.plaintext.max.connections", "1000")],
    )
    for key in ("truststore.location", "key.password"):
        name = f"listener.name.other.ssl.{key}"
        yield _alter(f"stored {name}", [_set(BROKER, "1", name, "secret")])
    yield _alter("stored group", [_set(GROUP, "g1", "consumer.session.timeout.ms", "50000")])
    yield _alter("min.insync.replicas of a broker", [_set(BROKER, "1", "min.insync.replicas", "1")])
    yield _alter("min.insync.replicas of all", [_set(BROKER, "", "min.insync.replicas", "2")])
    yield _alter(
        "min.insync.replicas removed", [_set(BROKER, "", "min.insync.replicas", None, DELETE)]
    )
    yield _alter("back to one", [_set(BROKER, "", "min.insync.replicas", "1")])


def _describe(when: str) -> Iterator[Case]:
    def case(name: str, resources: list[Fields]) -> Iterator[Case]:
        yield Case(ApiKey.DESCRIBE_CONFIGS, f"{name} {when}", lambda g: {"resources": resources})
        yield Case(
            ApiKey.DESCRIBE_CONFIGS,
            f"{name} {when}, everything",
            lambda g: {
                "resources": resources,
                "include_synonyms": True,
                **({"include_documentation": True} if g.api_version >= DOCUMENTED_SINCE else {}),
            },
        )

    topics = (FIXED, "fixed.configured")
    for topic in topics:
        yield from case(f"topic {topic}", [_of(TOPIC, topic)])
    yield from case("broker", [_of(BROKER, "1")])
    yield from case("defaults of brokers", [_of(BROKER, "")])
    yield from case("group g1", [_of(GROUP, "g1")])
    yield from case("unused group", [_of(GROUP, "unused")])
    yield from case("some keys", [_of(TOPIC, FIXED, ["retention.ms", "no.such", "segment.ms"])])
    yield from case("no keys", [_of(TOPIC, FIXED, [])])
    yield from case("a key twice", [_of(TOPIC, FIXED, ["retention.ms", "retention.ms"])])
    yield from case(
        "keys of a broker",
        [
            _of(
                BROKER,
                "1",
                [
                    "node.id",
                    "broker.id",
                    "no.such.key",
                    "log.retention.hours",
                    "log.dirs",
                    "log.dir",
                    "listeners",
                    "advertised.listeners",
                ],
            )
        ],
    )
    yield from case(
        "several", [_of(TOPIC, FIXED), _of(TOPIC, "no-such"), _of(BROKER, "1"), _of(GROUP, "g2")]
    )
    yield from case("resource twice", [_of(TOPIC, FIXED), _of(TOPIC, FIXED)])
    yield from case("no resources", [])
    yield from case(
        "internal keys",
        [
            _of(
                BROKER,
                "1",
                [facts.name for facts in key_facts() if facts.kind == "broker" and facts.internal],
            )
        ],
    )
    yield from case("metrics", [_of(CLIENT_METRICS, "m")])
    for word, name in BROKER_NAMES.items():
        yield from case(f"broker {word}", [_of(BROKER, name, ["node.id"])])
        yield from case(f"logger {word}", [_of(BROKER_LOGGER, name, ["no.such.logger"])])


def _of(kind: int, name: str, keys: list[str] | None = None) -> Fields:
    return {"resource_type": kind, "resource_name": name, "configuration_keys": keys}


def _legacy() -> Iterator[Case]:
    def case(
        name: str,
        resources: list[Fields],
        *,
        validate_only: bool = True,
        versions: tuple[int, ...] | None = None,
    ) -> Case:
        return Case(
            ApiKey.ALTER_CONFIGS,
            name,
            lambda g: {"resources": resources, "validate_only": validate_only},
            changes=not validate_only,
            versions=versions,
        )

    def one(kind: int, name: str, key: str, value: str | None) -> Fields:
        configs = [{"name": key, "value": value}]
        return {"resource_type": kind, "resource_name": name, "configs": configs}

    for facts in key_facts():
        if facts.kind == "topic":
            for value in OF_EACH_TYPE[facts.type]:
                yield case(
                    f"topic {facts.name}={value!r}",
                    [one(TOPIC, FIXED, facts.name, value)],
                    versions=(2,),
                )
    yield case("null", [one(TOPIC, FIXED, "retention.ms", None)])
    yield case("unknown key", [one(TOPIC, FIXED, "no.such.key", "1")])
    yield case("empty key", [one(TOPIC, FIXED, "", "1")])
    good = one(TOPIC, FIXED, "flush.ms", "70")
    # Not the same resource twice: Apache Kafka 4.3 never answers that.
    yield case("no resources", [])
    yield case("key twice", [{**good, "configs": good["configs"] * 2}])
    yield case("logger", [one(BROKER_LOGGER, "1", "root", "INFO")])
    for word, name in BROKER_NAMES.items():
        yield case(f"broker {word}", [one(BROKER, name, "log.retention.ms", "99999999")])
        yield case(f"broker {word}, bad", [one(BROKER, name, "log.retention.ms", "x")])
        yield case(f"broker {word}, read-only", [one(BROKER, name, "node.id", "1")])
    yield case("group", [one(GROUP, "g1", "consumer.session.timeout.ms", "46000")])
    yield case("replaced", [good], validate_only=False)
    yield from (each for each in _describe("replaced") if each.name.startswith(f"topic {FIXED} "))
    yield case("emptied", [{**good, "configs": []}], validate_only=False)
    yield from (each for each in _describe("emptied") if each.name.startswith(f"topic {FIXED} "))


def _listed() -> Iterator[Case]:
    def case(name: str, kinds: list[int]) -> Case:
        return Case(
            ApiKey.LIST_CONFIG_RESOURCES,
            name,
            lambda g: {"resource_types": kinds},
        )

    yield case("all", [])
    for kind in (-1, 0, 1, TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP, 64):
        yield case(f"type {kind}", [kind])
    yield case("two", [GROUP, TOPIC])
    yield case("twice", [TOPIC, TOPIC])
    yield case("one unknown", [TOPIC, 77])
