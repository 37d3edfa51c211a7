"""Keys of authorisation, principals, delegation tokens and server-side plug-in classes.

Owns: their declaration, nothing else. Names, types, defaults, limits and update modes are those of
Apache Kafka 4.3; the sentences are ours.
Invariant: sorted by name; one entry per key.
"""

from __future__ import annotations

from moldau.config.definition import ConfigKey
from moldau.config.keys.words import (
    BROKER,
    CLASS,
    IGNORED,
    INT,
    LONG,
    LOW,
    MEDIUM,
    PASSWORD,
    REFUSED,
    SERVED,
    STATIC,
    STRING,
)
from moldau.config.validators import OneOf, Range

# fmt: off
KEYS = (
    ConfigKey(
        "alter.config.policy.class.name",
        CLASS, None, None,
        LOW, STATIC, REFUSED,
        "A plug-in that vets configuration changes.",
        note="server-side plug-ins are not served",
    ),
    ConfigKey(
        "authorizer.class.name",
        STRING, "", None,
        LOW, STATIC, REFUSED,
        "The class that decides who may do what.",
        note="access control is not served yet; every client may do everything",
    ),
    ConfigKey(
        "client.quota.callback.class",
        CLASS, None, None,
        LOW, STATIC, REFUSED,
        "A plug-in that decides client quotas.",
        note="server-side plug-ins are not served",
    ),
    ConfigKey(
        "connection.failed.authentication.delay.ms",
        INT, 100, Range(0),
        LOW, STATIC, IGNORED,
        "How long a connection lingers after a failed authentication.",
        note="SASL listeners are not served yet",
    ),
    ConfigKey(
        "connections.max.reauth.ms",
        LONG, 0, None,
        MEDIUM, STATIC, IGNORED,
        "The session length after which a SASL client must authenticate again.",
        note="SASL listeners are not served yet",
    ),
    ConfigKey(
        "create.topic.policy.class.name",
        CLASS, None, None,
        LOW, STATIC, REFUSED,
        "A plug-in that vets new topics.",
        note="server-side plug-ins are not served",
    ),
    ConfigKey(
        "delegation.token.expiry.check.interval.ms",
        LONG, 3_600_000, Range(1),
        LOW, STATIC, IGNORED,
        "How often expired delegation tokens are looked for.",
        note="delegation tokens are not served",
    ),
    ConfigKey(
        "delegation.token.expiry.time.ms",
        LONG, 86_400_000, Range(1),
        MEDIUM, STATIC, IGNORED,
        "How long a delegation token lives between renewals.",
        note="delegation tokens are not served",
    ),
    ConfigKey(
        "delegation.token.max.lifetime.ms",
        LONG, 604_800_000, Range(1),
        MEDIUM, STATIC, IGNORED,
        "How long a delegation token may be renewed.",
        note="delegation tokens are not served",
    ),
    ConfigKey(
        "delegation.token.secret.key",
        PASSWORD, None, None,
        MEDIUM, STATIC, REFUSED,
        "The secret that signs delegation tokens; the same on all nodes.",
        note="delegation tokens are not served",
    ),
    ConfigKey(
        "principal.builder.class",
        CLASS, "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder", None,
        MEDIUM, BROKER, REFUSED,
        "The class that names the user behind a connection.",
        note="server-side plug-ins are not served",
    ),
    ConfigKey(
        "security.inter.broker.protocol",
        STRING, "PLAINTEXT", OneOf("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
        MEDIUM, STATIC, SERVED,
        "What brokers speak among themselves when no listener is named for it.",
        refused_values=("SSL", "SASL_PLAINTEXT", "SASL_SSL"),
        refusal="only PLAINTEXT listeners are served yet",
    ),
    ConfigKey(
        "security.providers",
        STRING, None, None,
        LOW, STATIC, REFUSED,
        "Java security providers to install.",
        note="there is no Java here",
    ),
)
# fmt: on
