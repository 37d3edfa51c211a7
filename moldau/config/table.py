"""Finding keys: by name, by nearest name, behind a listener prefix, among the removed ones.

Owns: `BROKER_KEYS`, `TOPIC_KEYS`, the removed keys and what to say about each.
Must not: parse values.
Invariant: a removed key is never also a known one.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from moldau.config.definition import ConfigKey
from moldau.config.keys import ALL_BROKER_KEYS, ALL_TOPIC_KEYS

BROKER_KEYS: Final[Mapping[str, ConfigKey]] = MappingProxyType(
    {key.name: key for key in ALL_BROKER_KEYS}
)
TOPIC_KEYS: Final[Mapping[str, ConfigKey]] = MappingProxyType(
    {key.name: key for key in ALL_TOPIC_KEYS}
)

LISTENER_PREFIX: Final = "listener.name."
PLUGIN_PREFIXES: Final = ("rsm.config.", "rlmm.config.", "config.providers.")

_ZOOKEEPER = "ZooKeeper is gone; set process.roles, node.id and controller.quorum.bootstrap.servers"

REMOVED_KEYS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "advertised.host.name": "use advertised.listeners",
        "advertised.port": "use advertised.listeners",
        "broker.id.generation.enable": "ids are not generated any more; set node.id",
        "control.plane.listener.name": "use controller.listener.names",
        "controlled.shutdown.max.retries": "there is nothing to retry by hand; remove it",
        "controlled.shutdown.retry.backoff.ms": "there is nothing to retry by hand; remove it",
        "delegation.token.master.key": "use delegation.token.secret.key",
        "host.name": "use listeners",
        "inter.broker.protocol.version": "finalize the feature metadata.version",
        "log.cleaner.hash.algorithm": "it cannot be chosen; remove it",
        "log.message.downconversion.enable": "old record formats are not served; remove it",
        "log.message.format.version": "records always use format 2; remove it",
        "log.message.timestamp.difference.max.ms": (
            "use log.message.timestamp.before.max.ms and log.message.timestamp.after.max.ms"
        ),
        "max.connections.idle.ms": "use connections.max.idle.ms",
        "offsets.commit.required.acks": "commits always wait for all in-sync replicas; remove it",
        "password.encoder.cipher.algorithm": "dynamic values are not encoded; remove it",
        "password.encoder.iterations": "dynamic values are not encoded; remove it",
        "password.encoder.key.length": "dynamic values are not encoded; remove it",
        "password.encoder.keyfactory.algorithm": "dynamic values are not encoded; remove it",
        "password.encoder.old.secret": "dynamic values are not encoded; remove it",
        "password.encoder.secret": "dynamic values are not encoded; remove it",
        "port": "use listeners",
        "producer.purgatory.purge.interval.messages": (
            "use producer.purgatory.purge.interval.requests"
        ),
        "quota.consumer.default": "quotas are dynamic; alter the default client quota",
        "quota.producer.default": "quotas are dynamic; alter the default client quota",
        "replica.lag.max.messages": "lag is measured in time; use replica.lag.time.max.ms",
        "request.required.acks": "producers choose it per request; set acks at the producer",
        "reserved.broker.max.id": "ids are not generated any more; set node.id",
        "transaction.abort.timed.out.transaction.cleanup.interval.s": (
            "use transaction.abort.timed.out.transaction.cleanup.interval.ms"
        ),
        "zookeeper.clientCnxnSocket": _ZOOKEEPER,
        "zookeeper.connect": _ZOOKEEPER,
        "zookeeper.connection.timeout.ms": _ZOOKEEPER,
        "zookeeper.max.in.flight.requests": _ZOOKEEPER,
        "zookeeper.metadata.migration.enable": _ZOOKEEPER,
        "zookeeper.session.timeout.ms": _ZOOKEEPER,
        "zookeeper.set.acl": _ZOOKEEPER,
        "zookeeper.sync.time.ms": _ZOOKEEPER,
    }
)

REMOVED_TOPIC_KEYS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "message.downconversion.enable": "old record formats are not served; remove it",
        "message.format.version": "records always use format 2; remove it",
        "message.timestamp.difference.max.ms": (
            "use message.timestamp.before.max.ms and message.timestamp.after.max.ms"
        ),
    }
)


def removed_answer(name: str) -> str | None:
    """What to do instead of a key that Kafka has removed, None for any other name."""
    if name.startswith("zookeeper.ssl."):
        return _ZOOKEEPER
    return REMOVED_KEYS.get(name)


def find_broker_key(name: str) -> ConfigKey | None:
    """The declaration behind a broker key, also behind `listener.name.LISTENER.KEY`."""
    key = BROKER_KEYS.get(name)
    if key is None and name.startswith(LISTENER_PREFIX):
        key = BROKER_KEYS.get(listener_key_suffix(name))
    return key


def listener_key_suffix(name: str) -> str:
    """`ssl.client.auth` of `listener.name.outside.ssl.client.auth`.

    For SASL settings a mechanism may stand between: `listener.name.outside.plain.sasl.jaas.config`.
    """
    suffix = name[len(LISTENER_PREFIX) :].partition(".")[2]
    mechanism_suffix = suffix.partition(".")[2]
    return mechanism_suffix if mechanism_suffix.startswith("sasl.") else suffix


def nearest_name(name: str, known: Mapping[str, ConfigKey]) -> str | None:
    """The known key that looks most like `name`, None when none comes close."""
    from difflib import get_close_matches  # only when there is something to complain about

    matches = get_close_matches(name[:200].lower().replace("_", "."), known, n=1, cutoff=0.8)
    return matches[0] if matches else None
