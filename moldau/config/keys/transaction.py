"""Keys of transactions and producer ids.

Owns: their declaration, nothing else. Names, types, defaults, limits and update modes are those of
Apache Kafka 4.3; the sentences are ours.
Invariant: sorted by name; one entry per key.
"""

from __future__ import annotations

from moldau.config.definition import ConfigKey
from moldau.config.keys.words import (
    BOOLEAN,
    CLUSTER,
    HIGH,
    INT,
    LOW,
    SERVED,
    SHORT,
    STATIC,
)
from moldau.config.validators import Range

# fmt: off
KEYS = (
    ConfigKey(
        "add.partitions.to.txn.retry.backoff.max.ms",
        INT, 100, Range(0),
        HIGH, STATIC, SERVED,
        "The longest a broker keeps retrying to verify a transaction's partition.",
    ),
    ConfigKey(
        "add.partitions.to.txn.retry.backoff.ms",
        INT, 20, Range(1),
        HIGH, STATIC, SERVED,
        "The pause between two attempts to verify a transaction's partition.",
    ),
    ConfigKey(
        "producer.id.expiration.check.interval.ms",
        INT, 600_000, Range(1),
        LOW, STATIC, SERVED,
        "How often idle producer ids are looked for.",
        internal=True,
    ),
    ConfigKey(
        "producer.id.expiration.ms",
        INT, 86_400_000, Range(1),
        LOW, CLUSTER, SERVED,
        "A producer id that has not written for this long is forgotten.",
    ),
    ConfigKey(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        INT, 10_000, Range(1),
        LOW, STATIC, SERVED,
        "How often transactions past their timeout are looked for.",
    ),
    ConfigKey(
        "transaction.max.timeout.ms",
        INT, 900_000, Range(1),
        HIGH, STATIC, SERVED,
        "The longest timeout a transactional producer may ask for.",
    ),
    ConfigKey(
        "transaction.partition.verification.enable",
        BOOLEAN, True, None,
        LOW, CLUSTER, SERVED,
        "Whether a partition asks the coordinator before it accepts transactional records.",
    ),
    ConfigKey(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        INT, 3_600_000, Range(1),
        LOW, STATIC, SERVED,
        "How often unused transactional ids are looked for.",
    ),
    ConfigKey(
        "transaction.state.log.load.buffer.size",
        INT, 5_242_880, Range(1),
        HIGH, STATIC, SERVED,
        "Bytes read at a time when transaction state is loaded.",
    ),
    ConfigKey(
        "transaction.state.log.min.isr",
        INT, 2, Range(1),
        HIGH, STATIC, SERVED,
        "In-sync replicas the transaction topic needs.",
    ),
    ConfigKey(
        "transaction.state.log.num.partitions",
        INT, 50, Range(1),
        HIGH, STATIC, SERVED,
        "Partitions of the transaction topic; never change it later.",
    ),
    ConfigKey(
        "transaction.state.log.replication.factor",
        SHORT, 3, Range(1),
        HIGH, STATIC, SERVED,
        "Replicas of the transaction topic.",
    ),
    ConfigKey(
        "transaction.state.log.segment.bytes",
        INT, 104_857_600, Range(1),
        HIGH, STATIC, SERVED,
        "Segment size of the transaction topic.",
    ),
    ConfigKey(
        "transaction.two.phase.commit.enable",
        BOOLEAN, False, None,
        LOW, STATIC, SERVED,
        "Whether an outside coordinator may keep transactions prepared without a timeout.",
    ),
    ConfigKey(
        "transactional.id.expiration.ms",
        INT, 604_800_000, Range(1),
        HIGH, STATIC, SERVED,
        "A transactional id unused for this long is forgotten.",
    ),
)
# fmt: on
