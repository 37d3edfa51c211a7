"""Keys of metrics, client quotas' windows and this project's own keys.

Owns: their declaration, nothing else. Names, types, defaults, limits and update modes are those of
Apache Kafka 4.3; the sentences are ours.
Invariant: sorted by name; one entry per key.
"""

from __future__ import annotations

from moldau.config.definition import ConfigKey
from moldau.config.keys.words import (
    CLUSTER,
    IGNORED,
    INT,
    LIST,
    LONG,
    LOW,
    MEDIUM,
    SERVED,
    STATIC,
    STRING,
)
from moldau.config.validators import BindAddress, ListOf, OneOf, Range

# fmt: off
KEYS = (
    ConfigKey(
        "kafka.metrics.polling.interval.secs",
        INT, 10, Range(1),
        LOW, STATIC, IGNORED,
        "How often reporters of the older metrics library are called.",
        note="metrics are read from the HTTP listener",
    ),
    ConfigKey(
        "kafka.metrics.reporters",
        LIST, (), ListOf(),
        LOW, STATIC, IGNORED,
        "Reporters for Kafka's older metrics library.",
        note="metrics are read from the HTTP listener",
    ),
    ConfigKey(
        "metric.reporters",
        LIST, ("org.apache.kafka.common.metrics.JmxReporter",), ListOf(),
        LOW, CLUSTER, IGNORED,
        "Classes that publish metrics.",
        note="metrics are read from the HTTP listener",
    ),
    ConfigKey(
        "metrics.num.samples",
        INT, 2, Range(1),
        LOW, STATIC, IGNORED,
        "Samples kept for a windowed metric.",
        note="windows are chosen by whoever scrapes the metrics",
    ),
    ConfigKey(
        "metrics.recording.level",
        STRING, "INFO", None,
        LOW, STATIC, IGNORED,
        "The finest metrics that are recorded.",
        note="every metric is always recorded",
    ),
    ConfigKey(
        "metrics.sample.window.ms",
        LONG, 30_000, Range(1),
        LOW, STATIC, IGNORED,
        "The span of a metric's sample.",
        note="windows are chosen by whoever scrapes the metrics",
    ),
    ConfigKey(
        "moldau.http.listener",
        STRING, "", BindAddress(),
        MEDIUM, STATIC, SERVED,
        (
            "Our own: HOST:PORT for metrics, health and read-only JSON over HTTP; empty switches "
            "it off."
        ),
    ),
    ConfigKey(
        "moldau.log.format",
        STRING, "console", OneOf("console", "json"),
        LOW, STATIC, SERVED,
        "Our own: whether log lines are for people (console) or for machines (json).",
    ),
    ConfigKey(
        "moldau.log.level",
        STRING, "INFO", OneOf("DEBUG", "INFO", "WARNING", "ERROR", any_case=True),
        LOW, CLUSTER, SERVED,
        "Our own: the least severity that is logged; may be changed while the node runs.",
    ),
    ConfigKey(
        "quota.window.num",
        INT, 11, Range(1),
        LOW, STATIC, IGNORED,
        "Samples kept for client quotas.",
        note="quotas are not enforced yet",
    ),
    ConfigKey(
        "quota.window.size.seconds",
        INT, 1, Range(1),
        LOW, STATIC, IGNORED,
        "The span of a sample for client quotas.",
        note="quotas are not enforced yet",
    ),
    ConfigKey(
        "telemetry.max.bytes",
        INT, 1_048_576, Range(1),
        LOW, STATIC, IGNORED,
        "The largest telemetry push accepted from a client.",
        note="clients' telemetry is not collected",
    ),
)
# fmt: on
