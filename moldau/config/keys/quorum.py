"""Keys of the node itself, the controller quorum and the metadata log.

Owns: their declaration, nothing else. Names, types, defaults, limits and update modes are those of
Apache Kafka 4.3; the sentences are ours.
Invariant: sorted by name; one entry per key.
"""

from __future__ import annotations

from moldau.config.definition import REQUIRED, ConfigKey
from moldau.config.keys.words import (
    BOOLEAN,
    HIGH,
    IGNORED,
    INT,
    LIST,
    LONG,
    LOW,
    MAX_LONG,
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
        "broker.heartbeat.interval.ms",
        INT, 2000, None,
        MEDIUM, STATIC, SERVED,
        "How often a broker reports to the controller.",
    ),
    ConfigKey(
        "broker.id",
        INT, -1, None,
        HIGH, STATIC, SERVED,
        "The former name of node.id; when both are set they must agree.",
    ),
    ConfigKey(
        "broker.session.timeout.ms",
        INT, 9000, None,
        MEDIUM, STATIC, SERVED,
        "A broker silent for this long is fenced.",
    ),
    ConfigKey(
        "controller.listener.names",
        LIST, REQUIRED, ListOf(may_be_empty=False),
        HIGH, STATIC, SERVED,
        "Which listeners belong to the controller, first the one that brokers connect to.",
    ),
    ConfigKey(
        "controller.performance.always.log.threshold.ms",
        LONG, 2000, Range(0),
        MEDIUM, STATIC, IGNORED,
        "Controller events slower than this are always logged.",
        note="slow controller events are not singled out in the log",
        internal=True,
    ),
    ConfigKey(
        "controller.performance.sample.period.ms",
        LONG, 60_000, Range(100),
        MEDIUM, STATIC, IGNORED,
        "How often the slowest controller event is logged.",
        note="slow controller events are not singled out in the log",
        internal=True,
    ),
    ConfigKey(
        "controller.quorum.append.linger.ms",
        INT, 25, Range(0),
        MEDIUM, STATIC, IGNORED,
        "How long the quorum leader gathers records before it writes them.",
        note="records are written as soon as they are there",
    ),
    ConfigKey(
        "controller.quorum.auto.join.enable",
        BOOLEAN, False, None,
        LOW, STATIC, REFUSED,
        "Whether a controller adds itself to the voters.",
        note="controllers are added with `moldau quorum add-controller` only",
    ),
    ConfigKey(
        "controller.quorum.bootstrap.servers",
        LIST, (), ListOf(),
        HIGH, STATIC, SERVED,
        "Controllers to ask who leads the quorum, as HOST:PORT.",
    ),
    ConfigKey(
        "controller.quorum.election.backoff.max.ms",
        INT, 1000, Range(0),
        HIGH, STATIC, SERVED,
        "The ceiling of the random pause between two elections.",
    ),
    ConfigKey(
        "controller.quorum.election.timeout.ms",
        INT, 1000, Range(0),
        HIGH, STATIC, SERVED,
        "How long a candidate waits for votes.",
    ),
    ConfigKey(
        "controller.quorum.fetch.max.bytes",
        INT, 1_048_576, Range(1),
        LOW, STATIC, SERVED,
        "The most record bytes one fetch between controllers carries.",
    ),
    ConfigKey(
        "controller.quorum.fetch.snapshot.max.bytes",
        INT, 1_048_576, Range(1),
        LOW, STATIC, SERVED,
        "The most bytes one piece of a snapshot carries.",
    ),
    ConfigKey(
        "controller.quorum.fetch.timeout.ms",
        INT, 2000, Range(0),
        HIGH, STATIC, SERVED,
        "A leader that is not heard from for this long is given up.",
    ),
    ConfigKey(
        "controller.quorum.request.timeout.ms",
        INT, 2000, Range(0),
        MEDIUM, STATIC, SERVED,
        "How long a request between controllers may take.",
    ),
    ConfigKey(
        "controller.quorum.retry.backoff.ms",
        INT, 20, Range(0),
        LOW, STATIC, SERVED,
        "The pause before a failed request between controllers is repeated.",
    ),
    ConfigKey(
        "controller.quorum.voters",
        LIST, (), ListOf(),
        HIGH, STATIC, SERVED,
        (
            "The fixed voters, as ID@HOST:PORT; leave it empty when storage was formatted with its "
            "voters."
        ),
    ),
    ConfigKey(
        "controller.quota.window.num",
        INT, 11, Range(1),
        LOW, STATIC, IGNORED,
        "Samples kept for the limit on topic mutations.",
        note="quotas are not enforced yet",
    ),
    ConfigKey(
        "controller.quota.window.size.seconds",
        INT, 1, Range(1),
        LOW, STATIC, IGNORED,
        "The span of a sample for the limit on topic mutations.",
        note="quotas are not enforced yet",
    ),
    ConfigKey(
        "controller.socket.timeout.ms",
        INT, 30_000, None,
        MEDIUM, STATIC, SERVED,
        "How long a broker waits on a connection to the controller.",
    ),
    ConfigKey(
        "early.start.listeners",
        LIST, None, ListOf(),
        HIGH, STATIC, IGNORED,
        "Listeners that open before the node has caught up with the metadata.",
        note="every listener opens when the node is ready",
    ),
    ConfigKey(
        "initial.broker.registration.timeout.ms",
        INT, 60_000, None,
        MEDIUM, STATIC, SERVED,
        "How long a starting broker tries to register.",
    ),
    ConfigKey(
        "internal.metadata.delete.delay.millis",
        LONG, 60_000, None,
        LOW, STATIC, IGNORED,
        "How long deleted metadata files remain under another name.",
        note="the metadata log keeps its own segment settings yet",
        internal=True,
    ),
    ConfigKey(
        "internal.metadata.log.segment.bytes",
        INT, None, None,
        LOW, STATIC, IGNORED,
        "A segment size for the metadata log below the usual minimum, for tests.",
        note="the metadata log keeps its own segment settings yet",
        internal=True,
    ),
    ConfigKey(
        "internal.metadata.max.batch.size.in.bytes",
        INT, 8_388_608, None,
        LOW, STATIC, IGNORED,
        "The largest batch written to the metadata log.",
        note="the metadata log keeps its own segment settings yet",
        internal=True,
    ),
    ConfigKey(
        "metadata.log.dir",
        STRING, None, None,
        HIGH, STATIC, SERVED,
        "Where the metadata log is kept; the first log directory when not set.",
    ),
    ConfigKey(
        "metadata.log.max.record.bytes.between.snapshots",
        LONG, 20_971_520, Range(1),
        HIGH, STATIC, SERVED,
        "New metadata bytes after which a snapshot is taken.",
    ),
    ConfigKey(
        "metadata.log.max.snapshot.interval.ms",
        LONG, 3_600_000, Range(0),
        HIGH, STATIC, SERVED,
        "The longest time between two snapshots of changed metadata.",
    ),
    ConfigKey(
        "metadata.log.segment.bytes",
        INT, 1_073_741_824, Range(8_388_608),
        HIGH, STATIC, SERVED,
        "The size at which the metadata log begins a new segment.",
    ),
    ConfigKey(
        "metadata.log.segment.ms",
        LONG, 604_800_000, None,
        HIGH, STATIC, SERVED,
        "The age at which the metadata log begins a new segment.",
    ),
    ConfigKey(
        "metadata.max.idle.interval.ms",
        INT, 500, Range(0),
        LOW, STATIC, IGNORED,
        "How often an idle controller writes a record to prove that the quorum works.",
        note="an idle controller writes nothing",
    ),
    ConfigKey(
        "metadata.max.retention.bytes",
        LONG, 104_857_600, None,
        HIGH, STATIC, SERVED,
        "Size above which old metadata log and snapshots are deleted.",
    ),
    ConfigKey(
        "metadata.max.retention.ms",
        LONG, 604_800_000, None,
        HIGH, STATIC, SERVED,
        "Age above which old metadata log and snapshots are deleted.",
    ),
    ConfigKey(
        "node.id",
        INT, REQUIRED, Range(0),
        HIGH, STATIC, SERVED,
        (
            "The number that names this node in the cluster, the same for its broker and its "
            "controller."
        ),
    ),
    ConfigKey(
        "process.roles",
        LIST, REQUIRED, ListOf("broker", "controller", may_be_empty=False),
        HIGH, STATIC, SERVED,
        "What this process is: broker, controller, or both.",
    ),
    ConfigKey(
        "server.max.startup.time.ms",
        LONG, MAX_LONG, Range(0),
        MEDIUM, STATIC, IGNORED,
        "How long start-up may take before it is given up.",
        note="start-up is never given up",
        internal=True,
    ),
    ConfigKey(
        "unstable.api.versions.enable",
        BOOLEAN, False, None,
        HIGH, STATIC, REFUSED,
        "Whether request versions that Kafka has not released are offered.",
        note="only released versions are served",
        internal=True,
    ),
    ConfigKey(
        "unstable.feature.versions.enable",
        BOOLEAN, False, None,
        HIGH, STATIC, REFUSED,
        "Whether feature levels that Kafka has not released are offered.",
        note="only released levels are served",
        internal=True,
    ),
)
# fmt: on
