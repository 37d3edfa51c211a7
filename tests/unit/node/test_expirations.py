"""What expires first in each store, what the log says of it and when, by a clock of the test."""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    pkcs12,
)

from moldau.node.expirations import (
    DAY_MS,
    LOOK_EVERY_MS,
    CertificateExpiration,
    Expirations,
    WatchedLogin,
    WatchedStores,
    span,
)
from moldau.node.http import collect, views
from moldau.runtime.authentication import LoginExpiration
from moldau.runtime.authentication.listener_tls import ListenerContexts, ListenerTlsSettings
from moldau.runtime.authentication.tls import Store, TlsSettings, client_context
from tests.kit.dated_certificates import dated, key_of, key_pem, pem
from tests.kit.manual_clock import ManualClock

NOW = datetime.datetime(2026, 11, 30, 12, tzinfo=datetime.UTC)
MINUTE_MS = 60_000.0


def after(**duration: float) -> datetime.datetime:
    return NOW + datetime.timedelta(**duration)


class Node:
    """The stores and logins of a node, at NOW."""

    def __init__(self, warning_days: int = 30) -> None:
        self.clock = ManualClock(int(NOW.timestamp() * 1000))
        self.contexts: list[tuple[str, ListenerContexts]] = []
        self.fixed: list[tuple[str, ssl.SSLContext]] = []
        self.logins: list[WatchedLogin] = []
        self.expirations = Expirations(self.clock, self._stores, lambda: self.logins, warning_days)

    def _stores(self) -> list[WatchedStores]:
        loop = asyncio.get_running_loop()
        found = [*self.contexts, *self.fixed]
        return [WatchedStores(name, contexts, loop) for name, contexts in found]

    def listen(self, name: str, own: Store, trust: Store | None = None) -> ListenerContexts:
        settings = ListenerTlsSettings(
            own=own,
            trust=trust or Store("ssl.truststore"),
            client_auth="none" if trust is None else "required",
        )
        contexts = ListenerContexts(settings, name)
        self.contexts.append((name, contexts))
        return contexts

    async def found(self) -> list[tuple[str, str, str, float]]:
        """Listener, store, subject and days left."""
        await self.expirations.look()
        return [
            (
                each.listener,
                each.store,
                each.subject,
                self.expirations.seconds_left(each.expires_at_ms) / 86_400,
            )
            for each in self.expirations.certificates
        ]

    async def days_pass(self, days: float) -> None:
        self.clock.advance(days * DAY_MS)
        await self.expirations.look()


@pytest.fixture
def node() -> Node:
    return Node()


def key_store(path: Path, *chain: Any, name: str = "node") -> Store:
    path.with_suffix(".new").write_text(key_pem(name) + pem(*chain))
    os.replace(path.with_suffix(".new"), path)
    return Store("ssl.keystore", str(path))


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """What was logged since the last call."""
    found = [(each.levelname, each.getMessage()) for each in caplog.records]
    caplog.clear()
    return [each for each in found if each[0] != "INFO"]


async def test_the_first_that_expires_of_each_store_counts(node: Node, tmp_path: Path):
    """That of a chain may be an authority's, that of a trust store any certificate's."""
    own = dated("node", after(days=50), by="between")
    between = dated("between", after(days=20), by="root", is_authority=True)
    trusted = [dated(f"t{days}", after(days=days), is_authority=True) for days in (90, 40, 60)]
    marked = pem(*trusted).replace("BEGIN CERT", "BEGIN TRUSTED CERT", 1)
    (tmp_path / "trust.pem").write_text(marked.replace("END CERT", "END TRUSTED CERT", 1))
    node.listen(
        "CLIENTS",
        key_store(tmp_path / "own.pem", own, between),
        Store("ssl.truststore", str(tmp_path / "trust.pem")),
    )
    node.listen("INTERNAL", key_store(tmp_path / "other.pem", own))
    assert await node.found() == [
        ("CLIENTS", "keystore", "CN=between", 20),
        ("CLIENTS", "truststore", "CN=t40", 40),
        ("INTERNAL", "keystore", "CN=node", 50),
    ]
    first, second, third = node.expirations.certificates
    assert [first.is_own, second.is_own, third.is_own] == [False, False, True]
    assert [first.certificate_count, second.certificate_count] == [2, 3]
    assert first.key == "ssl.keystore.location"
    assert second.location == str(tmp_path / "trust.pem")


async def test_stores_in_pkcs12_and_in_the_configuration(node: Node, tmp_path: Path):
    own = dated("node", after(days=33), by="between")
    between = dated("between", after(days=44), by="root", is_authority=True)
    stored = pkcs12.serialize_key_and_certificates(
        b"node", key_of("node"), own, [between], BestAvailableEncryption(b"open")
    )
    (tmp_path / "own.p12").write_bytes(stored)
    node.listen("A", Store("ssl.keystore", str(tmp_path / "own.p12"), None, "open"))
    inline = Store("ssl.keystore", certificates=pem(own, between), key=key_pem("node"))
    trust = Store("moldau.http.ssl.truststore", certificates=pem(between))
    node.listen("B", inline, trust)
    assert await node.found() == [
        ("A", "keystore", "CN=node", 33),
        ("B", "keystore", "CN=node", 33),
        ("B", "truststore", "CN=between", 44),
    ]
    _, second, third = node.expirations.certificates
    assert (second.location, second.key) == ("", "ssl.keystore.certificate.chain")
    assert (third.store, third.key) == ("truststore", "moldau.http.ssl.truststore.certificates")


async def test_a_certificate_that_cannot_be_read_hides_no_other(node: Node, tmp_path: Path):
    """OpenSSL reads forms that certificates do not have, as elements of unknown length."""
    good, other = dated("a", after(days=3)), dated("b", after(days=2))
    odd = other.public_bytes(Encoding.DER)
    odd = b"\x30\x80" + odd[4:] + b"\0\0"
    (tmp_path / "ca.pem").write_text(ssl.DER_cert_to_PEM_cert(odd) + pem(good))
    own = key_store(tmp_path / "own.pem", dated("", after(days=9)), name="")
    node.listen("A", own, Store("ssl.truststore", str(tmp_path / "ca.pem")))
    assert await node.found() == [
        ("A", "keystore", "without a name", 9),
        ("A", "truststore", "CN=a", 3),
    ]


async def test_a_renewed_store_counts_as_soon_as_connections_get_it(
    node: Node, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    path = tmp_path / "own.pem"
    contexts = node.listen("CLIENTS", key_store(path, dated("node", after(days=5))))
    assert (await node.found())[0][3] == 5
    key_store(path, dated("node", after(days=365)))
    assert (await node.found())[0][3] == 365
    shown = contexts.last
    # Half of a renewal: the certificate of another key. The listener keeps what it has.
    lines(caplog)
    key_store(path, dated("node", after(days=700), by="x"), name="other")
    assert (await node.found())[0][3] == 365
    path.unlink()
    assert (await node.found())[0][3] == 365
    assert contexts.last is shown
    assert {level for level, _ in lines(caplog)} == {"ERROR"}
    key_store(path, dated("node", after(days=700)))
    assert (await node.found())[0][3] == 700


async def test_other_settings_of_a_listener_bring_other_stores(node: Node, tmp_path: Path):
    contexts = node.listen("A", key_store(tmp_path / "a.pem", dated("node", after(days=50))))
    assert [each.location for each in await certificates(node)] == [str(tmp_path / "a.pem")]
    other = key_store(tmp_path / "b.pem", dated("node", after(days=60)))
    await contexts.change(ListenerTlsSettings(own=other), lambda _: None)
    assert [each.location for each in await certificates(node)] == [str(tmp_path / "b.pem")]


async def certificates(node: Node) -> tuple[CertificateExpiration, ...]:
    await node.expirations.look()
    return node.expirations.certificates


async def test_a_warning_a_day_before_and_an_error_a_day_after(
    node: Node, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    path = tmp_path / "own.pem"
    node.listen("CLIENTS", key_store(path, dated("node", after(days=31))))
    await node.days_pass(0.5)
    assert lines(caplog) == []
    await node.days_pass(0.5)
    [(level, text)] = lines(caplog)
    assert level == "WARNING"
    assert text == (
        "listener CLIENTS: the certificate CN=node expires in 30 days, on 2026-12-31 12:00 UTC "
        f"(ssl.keystore.location: {path}): put a renewed one in its place, and new connections get "
        "it without a restart (`moldau certificates renew` does so where --secure has made the "
        "cluster)"
    )
    for _ in range(3):
        await node.days_pass(0.25)
        assert lines(caplog) == [], "one a day"
    for _ in range(29):
        await node.days_pass(1)
        [(level, text)] = lines(caplog)
        assert level == "WARNING"
    assert "expires in 6 hours, on 2026-12-31 12:00 UTC" in text
    await node.days_pass(0.25)
    [(level, text)] = lines(caplog)
    assert level == "ERROR"
    assert "the certificate CN=node expired just now, on 2026-12-31 12:00 UTC (" in text
    assert "), new connections fail: put a renewed one in its place" in text
    await node.days_pass(0.5)
    assert lines(caplog) == []
    await node.days_pass(2)
    [(level, text)] = lines(caplog)
    assert (level, "expired 2 days ago" in text) == ("ERROR", True)
    key_store(path, dated("node", after(days=400)))
    await node.days_pass(1)
    assert lines(caplog) == []


async def test_one_line_for_a_store_of_several_listeners(
    node: Node, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    own = key_store(tmp_path / "own.pem", dated("node", after(days=300)))
    authority = dated("old", after(days=3), is_authority=True)
    successor = dated("new", after(days=3_000), is_authority=True)
    (tmp_path / "ca.pem").write_text(pem(authority, successor))
    trust = Store("ssl.truststore", str(tmp_path / "ca.pem"))
    for name in ("CLIENTS", "INTERNAL", "INTERNAL"):  # a listener, and connections to its like
        node.listen(name, own, trust)
    await node.expirations.look()
    [(level, text)] = lines(caplog)
    assert level == "WARNING"
    assert text.startswith("listeners CLIENTS, INTERNAL: the trusted certificate CN=old expires ")
    assert "in 3 days" in text
    assert text.endswith("and take this one out when none needs it")
    await node.days_pass(4)
    [(level, text)] = lines(caplog)
    assert (level, "certificates that it has signed are refused" in text) == ("ERROR", True)
    (tmp_path / "ca.pem").write_text(pem(successor))
    await node.days_pass(1)
    assert lines(caplog) == []


@pytest.mark.parametrize(("warning_days", "levels"), [(0, ["ERROR"]), (90, ["WARNING", "ERROR"])])
async def test_when_warnings_begin_is_a_setting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, warning_days: int, levels: list[str]
):
    node = Node(warning_days)
    node.listen("CLIENTS", key_store(tmp_path / "own.pem", dated("node", after(days=89))))
    await node.expirations.look()
    await node.days_pass(89.5)
    assert [level for level, _ in lines(caplog)] == levels


@pytest.mark.parametrize(
    ("minutes", "text"),
    [(0, "in a minute"), (1.6, "in 2 minutes"), (119, "in 2 hours"), (2_880, "in 2 days")],
)
def test_durations_are_in_the_largest_unit_of_which_there_are_two(minutes: float, text: str):
    assert span(minutes * MINUTE_MS) == text


async def it_waits(node: Node) -> None:
    while not node.clock.timer_count:  # noqa: ASYNC110
        await asyncio.sleep(0)


async def test_a_node_looks_once_a_minute(
    node: Node, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    path = tmp_path / "own.pem"
    node.listen("CLIENTS", key_store(path, dated("node", after(days=100))))
    node.expirations.start()
    await it_waits(node)
    assert lines(caplog) == []
    key_store(path, dated("node", after(days=10)))
    node.clock.advance(LOOK_EVERY_MS)
    await it_waits(node)
    [(level, _)] = lines(caplog)
    assert level == "WARNING"
    await node.expirations.stop()


async def test_a_node_without_stores_and_logins_does_not_look_again(node: Node):
    node.expirations.start()
    for _ in range(5):
        await asyncio.sleep(0)
    assert node.clock.timer_count == 0
    await node.expirations.stop()
    assert node.expirations.certificates == ()


async def test_what_an_identity_provider_is_trusted_by_is_read_when_the_node_starts(
    node: Node, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    path = tmp_path / "provider.pem"
    path.write_text(pem(dated("provider", after(days=9), is_authority=True)))
    node.fixed.append(("CLIENTS", client_context(TlsSettings(Store("ssl.truststore", str(path))))))
    node.fixed.append(("INTERNAL", client_context(TlsSettings())))  # the system's authorities
    path.unlink()
    assert await node.found() == [("CLIENTS", "truststore", "CN=provider", 9)]
    [(level, text)] = lines(caplog)
    assert level == "WARNING"
    assert text.endswith("take this one out when none needs it; the node reads it when it starts")


# -- what the node logs in with --------------------------------------------------------------------


class Login:
    """What a node logs in with, as long as the test says."""

    mechanism = "OAUTHBEARER"

    def __init__(self, *found: LoginExpiration) -> None:
        self.found: Sequence[LoginExpiration] = found

    def expirations(self) -> Sequence[LoginExpiration]:
        return self.found


def login_until(at: datetime.datetime, lifetime_ms: float | None) -> LoginExpiration:
    return LoginExpiration("token file: /run/token", at.timestamp() * 1000, lifetime_ms)


async def test_a_token_that_its_program_does_not_renew_is_logged(
    node: Node, caplog: pytest.LogCaptureFixture
):
    """It is the last tenth of its life: renewals of short tokens are earlier, and no news."""
    hour_ms = 3_600_000.0
    login: Any = Login(login_until(after(minutes=7), hour_ms))
    node.logins.append(WatchedLogin("INTERNAL", login))
    await node.expirations.look()
    assert lines(caplog) == []
    await node.days_pass(MINUTE_MS / DAY_MS)
    [(level, text)] = lines(caplog)
    assert level == "WARNING"
    assert text == (
        "listener INTERNAL: what this node logs in with by OAUTHBEARER expires in 6 minutes, on "
        "2026-11-30 12:07 UTC (token file: /run/token): the program that keeps it up to date has "
        "not done so"
    )
    await node.days_pass(6 * MINUTE_MS / DAY_MS)
    [(level, text)] = lines(caplog)
    assert (level, "this node cannot log in to other nodes" in text) == ("ERROR", True)
    login.found = [login_until(after(days=100), None)]
    await node.days_pass(1)
    assert lines(caplog) == []
    await node.days_pass(100)
    assert [level for level, _ in lines(caplog)] == ["ERROR"], "no life of it is known"


# -- metrics and the page --------------------------------------------------------------------------


async def test_metrics_and_the_page_say_the_same(node: Node, tmp_path: Path):
    node.listen("CLIENTS", key_store(tmp_path / "own.pem", dated("node", after(days=10))))
    login: Any = Login(login_until(after(hours=1), None))
    node.logins.append(WatchedLogin("INTERNAL", login))
    await node.days_pass(1)
    where = str(tmp_path / "own.pem")
    certificate, token = collect.expiration_samples(node.expirations)
    assert certificate.name == "kafka.server:type=certificate-metrics,name=expiry-seconds"
    assert dict(certificate.labels) == {
        "listener": "CLIENTS", "store": "keystore", "location": where,
    }  # fmt: skip
    assert (certificate.value, token.value) == (9 * 86_400, 3_600 - 86_400)
    assert dict(token.labels)["mechanism"] == "OAUTHBEARER"
    assert json.loads(json.dumps(views.certificates(node.expirations))) == {
        "warning_days": 30,
        "certificates": [
            {
                "listener": "CLIENTS",
                "store": "keystore",
                "location": where,
                "subject": "CN=node",
                "expires_at": "2026-12-10T12:00:00Z",
                "seconds_left": 9 * 86_400,
                "certificate_count": 1,
            }
        ],
        "logins": [
            {
                "listener": "INTERNAL",
                "mechanism": "OAUTHBEARER",
                "location": "token file: /run/token",
                "expires_at": "2026-11-30T13:00:00Z",
                "seconds_left": 3_600 - 86_400,
            }
        ],
    }
