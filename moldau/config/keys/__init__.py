"""The declaration of every key, split by area.

Owns: `ALL_BROKER_KEYS` and `ALL_TOPIC_KEYS`, the concatenation of the areas.
Must not: interpret them.
Invariant: no name occurs twice among the broker's keys nor among the topic's.
"""

from __future__ import annotations

from moldau.config.definition import ConfigKey
from moldau.config.keys import (
    group,
    log,
    metrics,
    network,
    quorum,
    remote,
    replication,
    sasl,
    security,
    share,
    tls,
    topic,
    transaction,
)

AREAS = (
    network,
    log,
    replication,
    quorum,
    group,
    share,
    transaction,
    security,
    sasl,
    tls,
    remote,
    metrics,
)

ALL_BROKER_KEYS: tuple[ConfigKey, ...] = sum((area.KEYS for area in AREAS), ())
ALL_TOPIC_KEYS: tuple[ConfigKey, ...] = topic.KEYS
