"""Keys of Kafka's Java clients that are not served here: refused with a reason, or without effect.

Owns these two tables. Invariant: whatever would silently behave otherwise than it says is refused;
what only concerns the Java process around the client is accepted, with one warning unless it holds
Java's default.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_NO_CLASSES: Final = "Java classes cannot be loaded here"
_OAUTH: Final = "org.apache.kafka.common.security.oauthbearer."
_SERDE: Final = "org.apache.kafka.common.serialization."
_BYTES: Final = (f"{_SERDE}ByteArraySerializer", f"{_SERDE}ByteArrayDeserializer")

REFUSED: Final[Mapping[str, tuple[tuple[str, ...], str]]] = MappingProxyType(
    {
        "key.serializer": (
            _BYTES,
            "give key_serializer=… to the constructor: an object or a function",
        ),
        "value.serializer": (
            _BYTES,
            "give value_serializer=… to the constructor: an object or a function",
        ),
        "key.deserializer": (
            _BYTES,
            "give key_deserializer=… to the constructor: an object or a function",
        ),
        "value.deserializer": (
            _BYTES,
            "give value_deserializer=… to the constructor: an object or a function",
        ),
        "config.providers": (
            ("", "[]", "()"),
            "values are taken as they are; put what a provider would find into the mapping",
        ),
        "ssl.engine.factory.class": ((), f"{_NO_CLASSES}; give an ssl.SSLContext as ssl_context"),
        "sasl.login.class": (
            (),
            f"{_NO_CLASSES}; tokens come from sasl_oauthbearer_token_provider",
        ),
        "sasl.client.callback.handler.class": (
            (),
            f"{_NO_CLASSES}; credentials come from sasl.jaas.config, or sasl.username and "
            "sasl.password",
        ),
        "sasl.login.callback.handler.class": (
            (
                f"{_OAUTH}OAuthBearerLoginCallbackHandler",
                f"{_OAUTH}secured.OAuthBearerLoginCallbackHandler",
            ),
            f"{_NO_CLASSES}; tokens come from sasl_oauthbearer_token_provider",
        ),
        "sasl.oauthbearer.jwt.retriever.class": (
            (
                f"{_OAUTH}DefaultJwtRetriever",
                f"{_OAUTH}ClientCredentialsJwtRetriever",
                f"{_OAUTH}FileJwtRetriever",
            ),
            f"{_NO_CLASSES}; tokens come from sasl_oauthbearer_token_provider",
        ),
    }
)
"""Key → values that mean what happens here anyway, and why all others are refused."""

_ASSERTION: Final = "sasl.oauthbearer.assertion."

for_tokens: Final = {
    f"{_ASSERTION}algorithm": "RS256",
    f"{_ASSERTION}claim.aud": "",
    f"{_ASSERTION}claim.exp.seconds": "300",
    f"{_ASSERTION}claim.iss": "",
    f"{_ASSERTION}claim.jti.include": "false",
    f"{_ASSERTION}claim.nbf.seconds": "60",
    f"{_ASSERTION}claim.sub": "",
    f"{_ASSERTION}file": "",
    f"{_ASSERTION}private.key.file": "",
    f"{_ASSERTION}private.key.passphrase": "",
    f"{_ASSERTION}template.file": "",
    # What a broker checks a token by.
    "sasl.oauthbearer.clock.skew.seconds": "30",
    "sasl.oauthbearer.expected.audience": "",
    "sasl.oauthbearer.expected.issuer": "",
    "sasl.oauthbearer.jwks.endpoint.refresh.ms": "3600000",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": "10000",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": "100",
    "sasl.oauthbearer.jwks.endpoint.url": "",
    "sasl.oauthbearer.jwt.validator.class": f"{_OAUTH}DefaultJwtValidator",
    "sasl.oauthbearer.scope.claim.name": "scope",
    "sasl.oauthbearer.sub.claim.name": "sub",
}

UNUSED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "auto.include.jmx.reporter": "true",
        "client.dns.lookup": "use_all_dns_ips",
        "enable.metrics.push": "false",
        "interceptor.classes": "",
        "internal.throw.on.fetch.stable.offset.unsupported": "false",
        "metric.reporters": "org.apache.kafka.common.metrics.JmxReporter",
        "metrics.num.samples": "2",
        "metrics.recording.level": "INFO",
        "metrics.sample.window.ms": "30000",
        "sasl.kerberos.kinit.cmd": "/usr/bin/kinit",
        "sasl.kerberos.min.time.before.relogin": "60000",
        "sasl.kerberos.service.name": "",
        "sasl.kerberos.ticket.renew.jitter": "0.05",
        "sasl.kerberos.ticket.renew.window.factor": "0.8",
        "security.providers": "",
        "share.acknowledgement.mode": "implicit",
        "share.acquire.mode": "BATCH_OPTIMIZED",
        "ssl.keymanager.algorithm": "SunX509",
        "ssl.protocol": "TLSv1.3",
        "ssl.provider": "",
        "ssl.secure.random.implementation": "",
        "ssl.trustmanager.algorithm": "PKIX",
        **for_tokens,
    }
)
"""Key → Java's default, with which it changes nothing there either."""
