"""Which settings of logins change while a broker runs: `sasl.login.*`, `sasl.kerberos.*` and
`sasl.oauthbearer.*`. In Apache Kafka none does for a listener that is open: it takes the dynamic
ones, and behind a listener's name all of them, and reads them for listeners that it opens later. A
broker of ours opens no listener while it runs, and says so; when it renews its own Kerberos tickets
does change.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from moldau.client import BrokerError, ConfigChange, ConfigResource, ConfigResourceType
from moldau.client.sync import Admin
from moldau.config.dynamic_config import TICKET_RENEWAL_KEYS
from tests.interop.differential.asking import Node, Pair

pytestmark = [pytest.mark.interop, pytest.mark.java]

OWN = ConfigResource(ConfigResourceType.BROKER, "1")
PREFIXES = ("sasl.kerberos.", "sasl.login.", "sasl.oauthbearer.")
DYNAMIC = {
    "sasl.kerberos.min.time.before.relogin": "70000",
    "sasl.kerberos.service.name": "other",
    "sasl.kerberos.ticket.renew.jitter": "0.1",
    "sasl.kerberos.ticket.renew.window.factor": "0.7",
    "sasl.login.refresh.buffer.seconds": "200",
    "sasl.login.refresh.min.period.seconds": "50",
    "sasl.login.refresh.window.factor": "0.7",
    "sasl.login.refresh.window.jitter": "0.1",
}
STATIC = {
    "sasl.login.connect.timeout.ms": "1000",
    "sasl.login.retry.backoff.ms": "50",
    "sasl.oauthbearer.assertion.claim.iss": "other",
    "sasl.oauthbearer.jwt.retriever.class": (
        "org.apache.kafka.common.security.oauthbearer.JwtBearerJwtRetriever"
    ),
    "sasl.oauthbearer.token.endpoint.url": "https://other.example/token",
}


@contextmanager
def admin_of(node: Node) -> Iterator[Admin]:
    with Admin(node.bootstrap) as admin:
        yield admin


def is_accepted(admin: Admin, name: str, value: str) -> bool:
    try:
        admin.alter_configs({OWN: [ConfigChange(name, value)]}, validate_only=True)
    except BrokerError:
        return False
    return True


def test_they_are_described_alike(pair: Pair) -> None:
    told = []
    for node in pair.nodes:
        with admin_of(node) as admin:
            entries = admin.describe_configs([OWN])[OWN].values()
        told.append({e.name: e.read_only for e in entries if e.name.startswith(PREFIXES)})
    ours, theirs = told
    assert ours == theirs
    assert not any(ours[name] for name in DYNAMIC)
    assert all(ours[name] for name in STATIC)


def test_both_refuse_what_is_read_only(pair: Pair) -> None:
    for node in pair.nodes:
        with admin_of(node) as admin:
            for name, value in STATIC.items():
                assert not is_accepted(admin, name, value), (node.name, name)


def test_ours_says_that_nothing_would_change(pair: Pair) -> None:
    """A reviewed difference: Apache Kafka takes a value that no running listener will use."""
    prefix = "listener.name.plaintext."
    of_listener = {prefix + name: value for name, value in {**DYNAMIC, **STATIC}.items()}
    with admin_of(pair.kafka) as kafka, admin_of(pair.ours) as ours:
        for name, value in {**DYNAMIC, **of_listener}.items():
            assert is_accepted(kafka, name, value), name
            if name in TICKET_RENEWAL_KEYS:
                assert is_accepted(ours, name, value), name
                continue
            with pytest.raises(BrokerError, match="cannot be changed while the broker runs"):
                ours.alter_configs({OWN: [ConfigChange(name, value)]}, validate_only=True)
