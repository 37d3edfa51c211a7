"""Keys of listeners, sockets, connections and request handling.

Owns: their declaration, nothing else. Names, types, defaults, limits and update modes are those of
Apache Kafka 4.3; the sentences are ours.
Invariant: sorted by name; one entry per key.
"""

from __future__ import annotations

from moldau.config.definition import ConfigKey
from moldau.config.keys.words import (
    BROKER,
    CLUSTER,
    HIGH,
    IGNORED,
    INT,
    LIST,
    LONG,
    LOW,
    MAX_INT,
    MEDIUM,
    REFUSED,
    SERVED,
    STATIC,
    STRING,
)
from moldau.config.validators import ListOf, Range

# fmt: off
KEYS = (
    ConfigKey(
        "advertised.listeners",
        LIST, None, ListOf(may_be_empty=False),
        HIGH, STATIC, SERVED,
        (
            "The addresses registered with the controller for clients and other brokers; the "
            "listeners themselves when not set."
        ),
    ),
    ConfigKey(
        "config.providers",
        LIST, (), ListOf(),
        LOW, CLUSTER, REFUSED,
        "Aliases of plug-ins that resolve ${...} references in configuration files.",
        note="references in values would be taken literally",
    ),
    ConfigKey(
        "connections.max.idle.ms",
        LONG, 600_000, None,
        MEDIUM, STATIC, SERVED,
        "A connection without a request for this long is closed.",
    ),
    ConfigKey(
        "fetch.max.bytes",
        INT, 57_671_680, Range(1024),
        MEDIUM, STATIC, SERVED,
        (
            "The most record bytes one fetch response carries; a first batch that is larger is "
            "still sent whole."
        ),
    ),
    ConfigKey(
        "fetch.purgatory.purge.interval.requests",
        INT, 1000, None,
        MEDIUM, STATIC, IGNORED,
        "Completed fetches to let pile up before waiting lists are swept.",
        note="what has completed is dropped at once",
    ),
    ConfigKey(
        "inter.broker.listener.name",
        STRING, None, None,
        MEDIUM, STATIC, SERVED,
        "Which advertised listener the brokers use among themselves.",
    ),
    ConfigKey(
        "listener.security.protocol.map",
        STRING, "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT", None,
        LOW, BROKER, SERVED,
        "What each listener name speaks; names of controller listeners default to PLAINTEXT.",
    ),
    ConfigKey(
        "listeners",
        LIST, ("PLAINTEXT://:9092",), ListOf(may_be_empty=False),
        HIGH, BROKER, SERVED,
        (
            "The addresses to bind, as NAME://HOST:PORT; no host means every interface, port 0 a "
            "free one."
        ),
    ),
    ConfigKey(
        "max.connection.creation.rate",
        INT, MAX_INT, Range(0),
        MEDIUM, CLUSTER, IGNORED,
        "New connections accepted per second.",
        note="new connections are not rate-limited yet",
    ),
    ConfigKey(
        "max.connections",
        INT, MAX_INT, Range(0),
        MEDIUM, CLUSTER, SERVED,
        "Connections kept open on all listeners together; further ones are turned away.",
    ),
    ConfigKey(
        "max.connections.per.ip",
        INT, MAX_INT, Range(0),
        MEDIUM, CLUSTER, SERVED,
        "Connections kept open per client address.",
    ),
    ConfigKey(
        "max.connections.per.ip.overrides",
        STRING, "", None,
        MEDIUM, CLUSTER, SERVED,
        "Exceptions from the limit per client address, as ADDRESS:COUNT pairs.",
    ),
    ConfigKey(
        "max.incremental.fetch.session.cache.slots",
        INT, 1000, Range(0),
        MEDIUM, STATIC, SERVED,
        "Fetch sessions remembered at a time; more clients fetch without one.",
    ),
    ConfigKey(
        "num.io.threads",
        INT, 8, Range(1),
        HIGH, CLUSTER, IGNORED,
        "Threads for request handlers.",
        note="work is done on event loops, not in such a pool",
    ),
    ConfigKey(
        "num.network.threads",
        INT, 3, Range(1),
        HIGH, CLUSTER, IGNORED,
        "Threads for socket reads and writes.",
        note="work is done on event loops, not in such a pool",
    ),
    ConfigKey(
        "producer.purgatory.purge.interval.requests",
        INT, 1000, None,
        MEDIUM, STATIC, IGNORED,
        "Completed produce requests to let pile up before waiting lists are swept.",
        note="what has completed is dropped at once",
    ),
    ConfigKey(
        "queued.max.request.bytes",
        LONG, -1, None,
        MEDIUM, STATIC, SERVED,
        (
            "Bytes of requests in work before reading from sockets pauses; -1 leaves it to the "
            "node's own limit."
        ),
    ),
    ConfigKey(
        "queued.max.requests",
        INT, 500, Range(1),
        HIGH, STATIC, IGNORED,
        "Requests in work before reading from sockets pauses.",
        note="the bytes of requests in work are limited instead, see queued.max.request.bytes",
    ),
    ConfigKey(
        "request.timeout.ms",
        INT, 30_000, None,
        HIGH, STATIC, SERVED,
        "How long the transaction coordinator's records may wait for their replicas; connections "
        "between nodes have limits of their own.",
    ),
    ConfigKey(
        "socket.connection.setup.timeout.max.ms",
        LONG, 30_000, None,
        MEDIUM, STATIC, IGNORED,
        "The ceiling of the growing time allowed for connecting to another node.",
        note="connections between nodes have limits of their own",
    ),
    ConfigKey(
        "socket.connection.setup.timeout.ms",
        LONG, 10_000, None,
        MEDIUM, STATIC, IGNORED,
        "The time allowed for connecting to another node at first.",
        note="connections between nodes have limits of their own",
    ),
    ConfigKey(
        "socket.listen.backlog.size",
        INT, 50, Range(1),
        MEDIUM, STATIC, SERVED,
        "Connections the system may queue before they are accepted.",
    ),
    ConfigKey(
        "socket.receive.buffer.bytes",
        INT, 102_400, None,
        HIGH, STATIC, SERVED,
        "The receive buffer asked of the system per connection; -1 leaves its own default.",
    ),
    ConfigKey(
        "socket.request.max.bytes",
        INT, 104_857_600, Range(1),
        HIGH, STATIC, SERVED,
        "The largest frame read from a client; a larger one closes its connection.",
    ),
    ConfigKey(
        "socket.send.buffer.bytes",
        INT, 102_400, None,
        HIGH, STATIC, SERVED,
        "The send buffer asked of the system per connection; -1 leaves its own default.",
    ),
)
# fmt: on
