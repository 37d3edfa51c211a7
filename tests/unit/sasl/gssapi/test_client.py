"""Kerberos' tickets, both sides of a context and the words of errors, with a double of the GSSAPI
library; tests/system/security has a KDC.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from moldau.runtime.authentication import (
    AuthenticationError,
    LoginExpiration,
    SecuritySettingError,
)
from moldau.sasl.gssapi import client
from moldau.sasl.gssapi.client import (
    DEFAULT_KEYTAB,
    GssapiClient,
    KerberosLogin,
    KeytabTickets,
    RenewalRules,
    aside,
)
from moldau.sasl.gssapi.library import (
    AcceptedContext,
    KerberosError,
    accepting,
    default_realm,
    is_true,
    service_name_of,
)
from moldau.sasl.jaas import JaasEntry
from moldau.sasl.mechanism import MechanismConfig
from tests.kit.gssapi_double import ExpiredCredentialsError, GSSError, Library, installed
from tests.kit.manual_clock import ManualClock

HOUR_MS = 3_600_000.0
RULES = RenewalRules(window_factor=0.8, window_jitter=0.0, min_pause_ms=60_000.0)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    monkeypatch.setattr(client, "_tickets", {})
    monkeypatch.delenv("KRB5_KTNAME", raising=False)
    return installed(monkeypatch)


def step(token: bytes | None, context: str = "context", **more: Any) -> SimpleNamespace:
    """What the library answers to a token."""
    rest = {"more_steps": False, "flags": {"mutual"}, "mech": "krb5", "initiator_name": "someone"}
    return SimpleNamespace(token=token, context=context, **{**rest, **more})


# -- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "text", "is_passing", "is_expired"),
    [
        (GSSError(6, " unknown client "), "unknown client (the KDC does not know", False, False),
        (GSSError(7, "a", "", "b"), "a; b (the KDC has no principal", False, False),
        (GSSError(21, "not yet"), "not yet", True, False),
        (GSSError(24, "old"), "old (the keytab does not have the present key", False, False),
        (GSSError(31, "old"), "old (the keytab does not have the present key", False, False),
        (GSSError(32, "used up"), "used up (get a ticket with kinit)", False, True),
        (GSSError(33, "not yet"), "not yet", True, False),
        (GSSError(34, "replay"), "replay", True, False),
        (GSSError(37, "skew"), "skew (the clocks of this machine", False, False),
        (GSSError(156, "no KDC"), "no KDC (is a KDC of that realm running", False, False),
        (ExpiredCredentialsError(1, "ended"), "ended", False, True),
        (GSSError(1, major_texts=("major",)), "major", False, False),
        (GSSError(None, "unsaid", major_texts=("major",)), "major", False, False),
        (GSSError(1, "minor", major_texts=("major",)), "minor", False, False),
        (GSSError(1), "an unknown error", False, False),
    ],
)
def test_an_error_says_what_the_library_says_and_what_to_do(
    library: Library, error: GSSError, text: str, is_passing: bool, is_expired: bool
) -> None:
    library.refused["accept"] = error
    with pytest.raises(KerberosError) as raised:
        accepting("/keytab", "kafka/h@R")
    if "(" in text:
        assert str(raised.value).startswith(text)
        assert str(raised.value).endswith(")")
    else:
        assert str(raised.value) == text
    assert (raised.value.is_passing, raised.value.is_expired) == (is_passing, is_expired)


def test_the_realm_of_the_machine(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_realm() == "EXAMPLE.COM"
    library.realm = b"x"
    assert default_realm() == ""

    def fail(*_: object) -> None:
        raise GSSError(1)

    monkeypatch.setattr(library, "canonicalize_name", fail)
    assert default_realm() == ""


async def test_a_loop_has_one_place_beside_it(library: Library) -> None:
    assert aside() is aside()
    assert client._asides[asyncio.get_running_loop()] is aside()


# -- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "wanted"), [("true", True), (" TRUE ", True), ("yes", False), ("", False)]
)
def test_an_option_is_on_as_java_reads_it(value: str, wanted: bool) -> None:
    assert is_true({"useKeyTab": value}, "useKeyTab") is wanted
    assert not is_true({}, "useKeyTab")


def test_the_name_of_the_service_is_said_once() -> None:
    assert service_name_of({}, "kafka") == "kafka"
    assert service_name_of({"serviceName": "kafka"}, None) == "kafka"
    assert service_name_of({"serviceName": "kafka"}, "kafka") == "kafka"
    with pytest.raises(SecuritySettingError, match="contradict each other"):
        service_name_of({"serviceName": "kafka"}, "other")
    for nothing in (None, ""):
        with pytest.raises(SecuritySettingError, match=r"needs sasl\.kerberos\.service\.name"):
            service_name_of({"serviceName": ""}, nothing)


def rules(factor: float) -> dict[str, Any]:
    """The keys that say `RULES`, with their own factor."""
    return {
        "sasl.kerberos.ticket.renew.window.factor": factor,
        "sasl.kerberos.ticket.renew.jitter": RULES.window_jitter,
        "sasl.kerberos.min.time.before.relogin": RULES.min_pause_ms,
    }


def login(**options: str) -> KerberosLogin:
    values = {"sasl.kerberos.service.name": "kafka", **rules(RULES.window_factor)}
    entry = JaasEntry("Krb5LoginModule", options)
    return client.login(MechanismConfig("GSSAPI", values.get, entry, ManualClock()))


def test_what_a_login_is_made_of(library: Library) -> None:
    keyed = login(useKeyTab="true", principal="a@R", keyTab="/keytab")
    assert (keyed.uses_keytab, keyed.principal, keyed.keytab) == (True, "a@R", "/keytab")
    assert (keyed.service_name, keyed.rules, keyed.ticket_cache) == ("kafka", RULES, None)
    assert login(useKeyTab="true", principal="a@R").keytab is None
    cached = login(useTicketCache="true", principal="a@R", ticketCache="/cache")
    assert (cached.uses_keytab, cached.principal, cached.ticket_cache) == (False, "a@R", "/cache")
    assert (cached.keytab, cached.rules) == (None, RULES)
    assert login(principal="").principal is None
    for options, complaint in (
        ({"useKeyTab": "true"}, "needs principal"),
        ({"useKeyTab": "true", "useTicketCache": "true", "principal": "a@R"}, "exclude each other"),
        ({"keyTab": "/keytab"}, "needs useKeyTab=true"),
    ):
        with pytest.raises(SecuritySettingError, match=complaint):
            login(**options)


def test_a_login_without_the_library_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)
    monkeypatch.setitem(sys.modules, "gssapi.raw", None)
    with pytest.raises(SecuritySettingError, match="needs the package gssapi"):
        login()


# -- tickets --------------------------------------------------------------------------------------


def initiated(library: Library) -> int:
    """How often a ticket was asked for."""
    return sum(each[0] == "initiate" for each in library.asked)


@pytest.mark.parametrize(("factor", "renews_at_s"), [(0.8, 2_880), (0.5, 1_800), (2.0, 3_600)])
def test_a_ticket_is_renewed_when_that_share_of_its_life_is_over(
    library: Library, factor: float, renews_at_s: int
) -> None:
    clock, tickets = ManualClock(), KeytabTickets("/keytab", "a@R")
    rules = RenewalRules(factor, 0.0, 60_000.0)
    assert tickets.current(clock, rules) == "credentials 1"
    clock.advance(renews_at_s * 1000 - 1)
    assert tickets.current(clock, rules) == "credentials 1"
    clock.advance(1)
    assert tickets.current(clock, rules) == "credentials 2"
    assert tickets.current(clock, rules) == "credentials 2"


def test_a_share_is_drawn_between_its_bounds(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds: list[tuple[float, float]] = []

    def drawn(least: float, most: float) -> float:
        bounds.append((least, most))
        return most

    monkeypatch.setattr(random, "uniform", drawn)
    clock, tickets = ManualClock(), KeytabTickets(None, "a@R")
    rules = RenewalRules(0.5, 0.25, 60_000.0)
    tickets.current(clock, rules)
    assert bounds == [(0, 0.25)]
    clock.advance(0.75 * HOUR_MS - 1)
    assert tickets.current(clock, rules) == "credentials 1"
    clock.advance(1)
    assert tickets.current(clock, rules) == "credentials 2"


def test_a_short_ticket_is_not_asked_for_more_often_than_the_least_pause(library: Library) -> None:
    clock, tickets = ManualClock(), KeytabTickets(None, "a@R")
    library.lifetime = 100
    tickets.current(clock, RenewalRules(0.1, 0.0, 60_000.0))
    clock.advance(59_999)
    assert tickets.current(clock, RULES) == "credentials 1"
    clock.advance(1)
    library.lifetime = 60
    assert tickets.current(clock, RULES) == "credentials 2"
    # The least pause would be the whole life: the share counts.
    clock.advance(47_999)
    assert tickets.current(clock, RULES) == "credentials 2"
    clock.advance(1)
    assert tickets.current(clock, RULES) == "credentials 3"


def test_a_renewal_that_fails_is_tried_again_later_while_the_ticket_is_good(
    library: Library,
) -> None:
    clock, tickets = ManualClock(), KeytabTickets(None, "a@R")
    tickets.current(clock, RULES)
    clock.advance(0.8 * HOUR_MS)
    library.refused["initiate"] = GSSError(156, "no KDC")
    assert tickets.current(clock, RULES) == "credentials 1"
    assert initiated(library) == 2
    clock.advance(59_999)
    assert tickets.current(clock, RULES) == "credentials 1"
    assert initiated(library) == 2
    clock.advance(1)
    tickets.current(clock, RULES)
    assert initiated(library) == 3
    clock.advance(0.2 * HOUR_MS - 60_001)
    tickets.current(clock, RULES)
    clock.advance(60_000)
    with pytest.raises(KerberosError, match="no KDC"):
        tickets.current(clock, RULES)
    library.refused.clear()
    assert tickets.current(clock, RULES) == f"credentials {initiated(library)}"


def test_a_renewal_that_fails_is_logged_once_until_one_succeeds(
    library: Library, caplog: pytest.LogCaptureFixture
) -> None:
    clock, tickets = ManualClock(), KeytabTickets(None, "a@R")
    tickets.current(clock, RULES)
    for _ in range(2):
        clock.advance(0.8 * HOUR_MS)
        library.refused["initiate"] = GSSError(156, "no KDC")
        for _ in range(3):
            tickets.current(clock, RULES)
            clock.advance(60_000)
        library.refused.clear()
        tickets.current(clock, RULES)
    [first, _second] = caplog.messages
    assert first.startswith("no new ticket of a@R, the last one is good for 720 s more: no KDC")


def test_a_ticket_of_a_cache_expires_and_a_keytab_does_not(library: Library) -> None:
    clock = ManualClock()
    library.lifetime = 90
    [found] = KerberosLogin("kafka", clock, "a@R", ticket_cache="/cache").expirations()
    assert found == LoginExpiration("ticket cache /cache", clock.now_ms() + 90_000)
    [found] = KerberosLogin("kafka", clock).expirations()
    assert found.source == "ticket cache of KRB5CCNAME"
    assert KerberosLogin("kafka", clock, "a@R", uses_keytab=True).expirations() == ()
    library.lifetime = None
    assert KerberosLogin("kafka", clock).expirations() == ()
    library.refused["initiate"] = GSSError(195, "no cache")
    assert KerberosLogin("kafka", clock).expirations() == ()


def test_a_ticket_is_good_to_its_very_end(library: Library) -> None:
    clock, tickets = ManualClock(), KeytabTickets(None, "a@R")
    rules = RenewalRules(1.0, 0.0, 60_000.0)
    tickets.current(clock, rules)
    library.refused["initiate"] = GSSError(156, "no KDC")
    clock.advance(HOUR_MS - 1)
    assert tickets.current(clock, rules) == "credentials 1"
    clock.advance(1)
    with pytest.raises(KerberosError, match="no KDC"):
        tickets.current(clock, rules)


def test_a_first_ticket_that_cannot_be_had_is_an_error(library: Library) -> None:
    library.lifetime = 0
    with pytest.raises(KerberosError, match="gives no new ticket"):
        KeytabTickets(None, "a@R").current(ManualClock(), RULES)
    library.lifetime = None
    with pytest.raises(KerberosError, match="gives no new ticket"):
        KeytabTickets(None, "a@R").current(ManualClock(), RULES)
    library.refused["accept"] = GSSError(181, "no key")
    with pytest.raises(KerberosError, match=r"^keytab /k: no key \(is this the right keytab"):
        KeytabTickets("/k", "a@R").current(ManualClock(), RULES)


def test_tickets_lie_in_one_of_two_caches_in_turn(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, tickets, others = ManualClock(), KeytabTickets("/keytab", "a@R"), KeytabTickets("", "b")
    for _ in range(3):
        tickets.current(clock, RULES)
        tickets.forget()
    stores = [store for usage, store, _ in library.asked if usage == "initiate"]
    caches = [store[b"ccache"] for store in stores]
    assert caches[0] != caches[1]
    assert caches[0] == caches[2]
    assert caches[0].startswith(f"MEMORY:moldau-{os.getpid()}-".encode())
    assert {store[b"client_keytab"] for store in stores} == {b"/keytab"}
    assert library.asked[0] == ("accept", {b"keytab": b"/keytab"}, (b"a@R", "principal"))
    others.current(clock, RULES)
    assert library.asked[-1][1][b"client_keytab"] == DEFAULT_KEYTAB.encode()
    assert library.asked[-1][1][b"ccache"] not in caches
    monkeypatch.setenv("KRB5_KTNAME", "FILE:/of/environment")
    others.forget()
    others.current(clock, RULES)
    assert library.asked[-1][1][b"client_keytab"] == b"FILE:/of/environment"


def test_clients_with_one_key_share_its_tickets_and_rules(library: Library) -> None:
    clock = ManualClock()
    first, second = (
        KerberosLogin(name, clock, "a@R", uses_keytab=True, keytab="/k", rules=RULES)
        for name in ("kafka", "other")
    )
    third = KerberosLogin("kafka", clock, "b@R", uses_keytab=True, keytab="/k", rules=RULES)
    assert first.credentials() == second.credentials() == "credentials 1"
    assert third.credentials() == "credentials 2"
    first.change(rules(0.5).get)
    first.forget()
    assert second.credentials() == "credentials 3"
    clock.advance(0.5 * HOUR_MS)
    assert second.credentials() == "credentials 4"
    assert third.credentials() == "credentials 2"


def test_tickets_of_a_cache_are_looked_up_for_each_login(library: Library) -> None:
    clock = ManualClock()
    plain = KerberosLogin("kafka", clock)
    assert [plain.credentials(), plain.credentials()] == ["credentials 1", "credentials 2"]
    assert library.asked[-1] == ("initiate", None, None)
    plain.forget()
    plain.change(rules(0.5).get)
    named = KerberosLogin("kafka", clock, "a@R", ticket_cache="/cache")
    named.forget()
    named.change(rules(0.5).get)
    named.credentials()
    assert library.asked[-1] == ("initiate", {b"ccache": b"/cache"}, (b"a@R", "principal"))
    assert client._tickets == {}
    library.lifetime = 0
    with pytest.raises(KerberosError, match="has expired"):
        plain.credentials()
    library.lifetime = 1
    plain.credentials()
    library.lifetime = None
    plain.credentials()


# -- the client's side ----------------------------------------------------------------------------


def exchange() -> GssapiClient:
    return GssapiClient(KerberosLogin("kafka", ManualClock()), "host")


def test_a_client_proves_its_identity_and_has_the_brokers_proved(library: Library) -> None:
    made = exchange()
    library.steps = [step(b"first", more_steps=True, flags=set()), step(b"", "established")]
    assert made.first() == b"first"
    name = (b"kafka@host", "service")
    assert library.asked[-1] == ("init", name, "credentials 1", None, None)
    assert made.answer(b"proof") == b""
    assert library.asked[-1] == ("init", name, "credentials 1", "context", b"proof")
    assert not made.is_complete
    assert made.answer(b"signed \x01\x00\x00\x00") == b"signed \x01\x00\x00\x00"
    assert made.is_complete
    assert made.answer(b"more") is None


def test_a_context_without_a_last_token_answers_with_nothing(library: Library) -> None:
    made = exchange()
    library.steps = [step(None)]
    assert made.first() == b""
    assert made.answer(b"signed \x03\xff\xff\xff") == b"signed \x01\x00\x00\x00"


@pytest.mark.parametrize("offer", [b"", b"\x01\x00\x00", b"\x02\x00\x00\x00", b"\x06\x00\x00\x00"])
def test_a_layer_of_protection_is_refused(library: Library, offer: bytes) -> None:
    made = exchange()
    library.steps = [step(b"")]
    made.first()
    with pytest.raises(AuthenticationError, match="insists on a security layer"):
        made.answer(b"signed " + offer)
    assert not made.is_complete


def test_a_broker_that_does_not_prove_itself_is_refused(library: Library) -> None:
    made = exchange()
    library.steps = [step(b"first", more_steps=True), step(b"", flags={"integrity"})]
    made.first()
    with pytest.raises(
        AuthenticationError, match=r"^GSSAPI: kafka@host: the broker's answer is refused: .*proved"
    ):
        made.answer(b"no proof")


@pytest.mark.parametrize(("number", "kind"), [(34, ConnectionError), (7, AuthenticationError)])
def test_only_a_fault_of_the_moment_is_one_of_the_connection(
    library: Library, number: int, kind: type[Exception]
) -> None:
    library.steps = [GSSError(number, "refused")]  # type: ignore[list-item]
    with pytest.raises(kind, match="GSSAPI: kafka@host: refused") as raised:
        exchange().first()
    assert type(raised.value) is kind


def test_a_ticket_that_was_used_up_when_it_came_to_use_is_got_again(library: Library) -> None:
    login = KerberosLogin("kafka", ManualClock(), "a@R", uses_keytab=True, rules=RULES)
    library.steps = [GSSError(32, "used up"), GSSError(7, "unknown"), step(b"first")]  # type: ignore[list-item]
    for _ in range(2):
        with pytest.raises(AuthenticationError):
            GssapiClient(login, "host").first()
    GssapiClient(login, "host").first()
    used = [each[2] for each in library.asked if each[0] == "init"]
    assert used == ["credentials 1", "credentials 2", "credentials 2"]


# -- the broker's side ----------------------------------------------------------------------------


def test_a_broker_accepts_with_the_key_of_its_principal(library: Library) -> None:
    context = AcceptedContext(accepting("/keytab", "kafka/h@R"))
    assert library.asked == [("accept", {b"keytab": b"/keytab"}, (b"kafka/h@R", "principal"))]
    library.steps = [step(b"more", more_steps=True), step(None, "established")]
    assert context.accept(b"one") == b"more"
    assert not context.is_established
    assert context.accept(b"two") == b""
    assert context.is_established
    assert library.asked[1:] == [
        ("accept", b"one", "credentials 0", None),
        ("accept", b"two", "credentials 0", "context"),
    ]
    assert context.principal() == "alice@EXAMPLE.COM"
    assert context.wrap(b"offer") == b"signed offer"
    assert context.unwrap(b"signed choice") == b"choice"
    library.name = b"\xff"
    with pytest.raises(KerberosError, match="not UTF-8"):
        context.principal()


def test_a_broker_without_its_own_keytab_has_the_librarys(library: Library) -> None:
    accepting(None, "kafka/h@R")
    assert library.asked[0][1] == {}


def test_a_client_with_another_mechanism_is_refused(library: Library) -> None:
    context = AcceptedContext(accepting(None, "kafka/h@R"))
    library.steps = [step(b"", mech="spnego")]
    with pytest.raises(KerberosError, match="is not Kerberos 5"):
        context.accept(b"one")
    assert not context.is_established
