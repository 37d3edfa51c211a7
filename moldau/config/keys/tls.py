"""Keys of TLS.

Owns: their declaration, nothing else. Names, types, defaults, limits and update modes are those of
Apache Kafka 4.3; the sentences are ours.
Invariant: sorted by name; one entry per key.
"""

from __future__ import annotations

from moldau.config.definition import ConfigKey
from moldau.config.keys.words import (
    BOOLEAN,
    BROKER,
    CLASS,
    IGNORED,
    LIST,
    LOW,
    MEDIUM,
    PASSWORD,
    STATIC,
    STRING,
)
from moldau.config.validators import ListOf, OneOf

# fmt: off
KEYS = (
    ConfigKey(
        "ssl.allow.dn.changes",
        BOOLEAN, False, None,
        LOW, STATIC, IGNORED,
        "Whether a new certificate may name another subject.",
        note="TLS listeners are not served yet",
    ),
    ConfigKey(
        "ssl.allow.san.changes",
        BOOLEAN, False, None,
        LOW, STATIC, IGNORED,
        "Whether a new certificate may drop alternative names.",
        note="TLS listeners are not served yet",
    ),
    ConfigKey(
        "ssl.cipher.suites",
        LIST, (), ListOf(),
        MEDIUM, BROKER, IGNORED,
        "The cipher suites offered; all of them when empty.",
        note="TLS listeners are not served yet",
    ),
    ConfigKey(
        "ssl.client.auth",
        STRING, "none", OneOf("required", "requested", "none"),
        MEDIUM, BROKER, IGNORED,
        "Whether clients must, may, or need not show a certificate.",
        note="TLS listeners are not served yet",
    ),
    ConfigKey(
        "ssl.enabled.protocols",
        LIST, ("TLSv1.2", "TLSv1.3"), ListOf(),
        MEDIUM, BROKER, IGNORED,
        "The TLS versions offered.",
        note="TLS listeners are not served yet",
    ),
    ConfigKey(
        "ssl.endpoint.identification.algorithm",
        STRING, "https", None,
        LOW, BROKER, IGNORED,
        "How a server's host name is checked against its certificate; empty switches it off.",
        note="TLS listeners are not served yet",
    ),
    ConfigKey(
        "ssl.engine.factory.class",
        CLASS, None, None,
        LOW, BROKER, IGNORED,
        "A plug-in that provides the TLS engine.",
        note="TLS listeners are not served yet",
    ),
    ConfigKey(
        "ssl.key.password",
        PASSWORD, None, None,
        MEDIUM, BROKER, IGNORED,
        "What unlocks the private key.",
        note="TLS listeners are not served yet",
    ),
    ConfigKey(
        "ssl.keymanager.algorithm",
        STRING, "SunX509", None,
        MEDIUM, BROKER, IGNORED,
        "Java's name for its key manager.",
        note="TLS listeners are not served yet",
    ),
    ConfigKey(
        "ssl.keystore.certificate.chain",
        PASSWORD, None, None,
        MEDIUM, BROKER, IGNORED,
        "The certificate chain as PEM text.",
        note="TLS listeners are not served yet",
    ),
    ConfigKey(
        "ssl.keystore.key",
        PASSWORD, None, None,
        MEDIUM, BROKER, IGNORED,
        "The private key as PEM text.",
        note="TLS listeners are not served yet",
    ),
    ConfigKey(
        "ssl.keystore.location",
        STRING, None, None,
        MEDIUM, BROKER, IGNORED,
        "The file with key and certificates.",
        note="TLS listeners are not served yet",
    ),
    ConfigKey(
        "ssl.keystore.password",
        PASSWORD, None, None,
        MEDIUM, BROKER, IGNORED,
        "What unlocks the key store file.",
        note="TLS listeners are not served yet",
    ),
    ConfigKey(
        "ssl.keystore.type",
        STRING, "JKS", None,
        MEDIUM, BROKER, IGNORED,
        "The format of the key store.",
        note="TLS listeners are not served yet",
    ),
    ConfigKey(
        "ssl.principal.mapping.rules",
        STRING, "DEFAULT", None,
        LOW, STATIC, IGNORED,
        "How a certificate's subject becomes a user name.",
        note="TLS listeners are not served yet",
    ),
    ConfigKey(
        "ssl.protocol",
        STRING, "TLSv1.3", None,
        MEDIUM, BROKER, IGNORED,
        "The TLS version that contexts are created with.",
        note="TLS listeners are not served yet",
    ),
    ConfigKey(
        "ssl.provider",
        STRING, None, None,
        MEDIUM, BROKER, IGNORED,
        "Java's name for its TLS provider.",
        note="TLS listeners are not served yet",
    ),
    ConfigKey(
        "ssl.secure.random.implementation",
        STRING, None, None,
        LOW, BROKER, IGNORED,
        "Java's name for its random source.",
        note="TLS listeners are not served yet",
    ),
    ConfigKey(
        "ssl.trustmanager.algorithm",
        STRING, "PKIX", None,
        MEDIUM, BROKER, IGNORED,
        "Java's name for its trust manager.",
        note="TLS listeners are not served yet",
    ),
    ConfigKey(
        "ssl.truststore.certificates",
        PASSWORD, None, None,
        MEDIUM, BROKER, IGNORED,
        "Trusted certificates as PEM text.",
        note="TLS listeners are not served yet",
    ),
    ConfigKey(
        "ssl.truststore.location",
        STRING, None, None,
        MEDIUM, BROKER, IGNORED,
        "The file with trusted certificates.",
        note="TLS listeners are not served yet",
    ),
    ConfigKey(
        "ssl.truststore.password",
        PASSWORD, None, None,
        MEDIUM, BROKER, IGNORED,
        "What unlocks the trust store file.",
        note="TLS listeners are not served yet",
    ),
    ConfigKey(
        "ssl.truststore.type",
        STRING, "JKS", None,
        MEDIUM, BROKER, IGNORED,
        "The format of the trust store.",
        note="TLS listeners are not served yet",
    ),
)
# fmt: on
