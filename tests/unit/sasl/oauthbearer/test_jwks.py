"""Key sets: which keys are used, and servers that are slow, dead, wrong or too generous."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
from aiohttp import web

from moldau.config import ConfigError
from moldau.runtime.authentication import SecuritySettingError
from moldau.runtime.authentication.tls import Store, TlsSettings, client_context
from moldau.runtime.ports import Ports
from moldau.sasl.oauthbearer.jwks import (
    EARLY_FETCH_EVERY_MS,
    EARLY_FETCHES,
    MAX_KEY_ID_LENGTH,
    MAX_KEY_SET_BYTES,
    MAX_KEYS,
    MAX_TRIED,
    MISSING_FOR_MS,
    MISSING_KEY_IDS,
    EndpointSettings,
    KeyEndpoint,
    KeyFile,
    KeySetError,
    KeySource,
    SigningKey,
    parse_key_set,
)
from tests.kit.identity_provider import (
    BAD_ANSWERS,
    IdentityProvider,
    Signer,
    encoded,
    symmetric,
)
from tests.kit.manual_clock import ManualClock
from tests.kit.waiting import until_async
from tests.virtual.machine import MachineLoop, pass_time

pytestmark = [pytest.mark.real, pytest.mark.virtual_too]

SIGNER = Signer("first")


@pytest.fixture
async def provider() -> AsyncIterator[IdentityProvider]:
    with IdentityProvider(SIGNER) as running:
        yield running
    if isinstance(asyncio.get_running_loop(), MachineLoop):
        await pass_time(1_000)  # what it still answers ends


@asynccontextmanager
async def endpoint(url: str, **settings: Any) -> AsyncIterator[KeyEndpoint]:
    source = KeyEndpoint(
        EndpointSettings(url, **{"retry_backoff_ms": 5, **settings}), Ports.of_machine().clock
    )
    await source.start()
    try:
        yield source
    finally:
        await source.close()
        await source.close()


def names(source: KeySource) -> list[str | None]:
    return [key.key_id for key in source.keys().keys]


def parsed(*entries: object) -> list[str | None]:
    return [key.key_id for key in parse_key_set(json.dumps({"keys": entries}).encode()).keys]


def test_keys_that_can_check_signatures_are_used() -> None:
    curve = Signer("curve", "EC")
    assert parsed(
        SIGNER.public(use="sig"),
        SIGNER.public(kid="encrypts", use="enc"),
        SIGNER.public(kid="wraps", key_ops=["wrapKey"]),
        SIGNER.public(kid="verifies", key_ops=["verify"]),
        SIGNER.public(kid="pss", alg="PS256"),
        SIGNER.public(kid="decrypts", alg="RSA-OAEP"),
        SIGNER.public(kid="symmetric by name", alg="HS256"),
        SIGNER.public(kid=["no", "text"]),
        SIGNER.public(kid="x" * 2_000),
        SIGNER.public(kid="no modulus", n=None),
        SIGNER.public(kid="short", n="AQAB"),
        SIGNER.public(kid="zero", e="AA"),
        SIGNER.public(kid="no base64", n="!" * 342),
        SIGNER.public(kid="huge", n="z" * 100_000),
        curve.public(),
        curve.public(kid="another curve", crv="secp256k1"),
        curve.public(kid="not on it", x=curve.public()["y"]),
        Signer("edwards", "OKP").public(),
        {"kty": "AKP", "kid": "of the future", "pub": "x"},
        symmetric()[0],
        "no object",
        None,
    ) == ["first", "verifies", "pss", "curve", "edwards"]
    only_pss = parse_key_set(json.dumps({"keys": [SIGNER.public(alg="PS256")]}).encode())
    assert only_pss.candidates("first", "RS256") == []
    assert len(only_pss.candidates("first", "PS256")) == 1
    assert "HS256" not in only_pss.keys[0].algorithms


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"keys": {}}',
        b"[" * 100_000,
        b'{"keys": [' + b"1," * MAX_KEYS + b"1]}",
        b'{"keys": [1' + b"0" * 10_000 + b"]}",
    ],
    ids=lambda data: data[:20].decode("latin-1"),
)
def test_what_is_no_key_set(data: bytes) -> None:
    with pytest.raises(KeySetError):
        parse_key_set(data)


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    large = tmp_path / "large"
    large.write_bytes(b" " * (MAX_KEY_SET_BYTES + 1))
    garbage = tmp_path / "garbage"
    garbage.write_text("x")
    for path, reason in (
        (tmp_path / "nowhere", "No such file"),
        (tmp_path, "not a regular file"),
        (Path("/dev/zero"), "not a regular file"),
        (large, "larger than"),
        (garbage, "no key set"),
    ):
        with pytest.raises(SecuritySettingError, match=reason):
            KeyFile(str(path))


async def test_keys_are_loaded_when_the_first_client_comes_and_renewed(
    provider: IdentityProvider,
) -> None:
    async with endpoint(provider.url, refresh_ms=10) as source:
        assert names(source) == ["first"]
        provider.keys = [Signer("second", "EC").public()]
        await until_async(_are(source, ["second"]), what="the new key")
        # A provider that has no key any more has said so: nothing is accepted.
        provider.keys = []
        await until_async(_are(source, []), what="no key")


def _are(source: KeyEndpoint, wanted: list[str | None]) -> Any:
    async def are() -> bool:
        return names(source) == wanted

    return are


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("slow", "no answer within 300 ms|more than 1048576 bytes"),
        ("silent", "no answer within 300 ms"),
        ("megabytes", "more than 1048576 bytes"),
        ("bomb", "a compressed body"),
        ("elsewhere", "status 302, not 200"),
        ("broken", "status 500, not 200"),
        ("garbage", "no key set"),
        ("cut", "http://"),
    ],
)
async def test_a_bad_answer_changes_nothing_and_the_next_good_one_counts(
    provider: IdentityProvider, caplog: pytest.LogCaptureFixture, answer: str, reason: str
) -> None:
    caplog.set_level(logging.INFO)
    # Where the reason is another one, none of the requests may take too long on a busy machine.
    timeout_ms = 300 if answer in ("slow", "silent") else 20_000
    async with endpoint(provider.url, refresh_ms=10, timeout_ms=timeout_ms) as source:
        provider.answer = BAD_ANSWERS[answer]
        asked = provider.asked
        await until_async(_asked(provider, asked + 3), what="three more requests")
        assert names(source) == ["first"]
        warnings = [each for each in caplog.records if each.levelno == logging.WARNING]
        assert len(warnings) == 1, "the same failure is logged once"
        assert re.search(reason, warnings[0].getMessage())
        provider.keys = [Signer("second", "EC").public()]
        provider.answer = None
        await until_async(_are(source, ["second"]), what="the new key")


def _asked(provider: IdentityProvider, count: int) -> Any:
    async def asked() -> bool:
        return provider.asked >= count

    return asked


async def test_a_dead_server_at_the_start_is_no_reason_not_to_start() -> None:
    async with endpoint("http://127.0.0.1:1/keys") as source:
        assert names(source) == []


@pytest.mark.virtual_too(False)
async def test_a_server_of_tls_is_one_that_the_trust_store_knows(tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    trust = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(trust)
    trusting = client_context(TlsSettings(trust=Store("ssl.truststore", str(trust))))
    with IdentityProvider(SIGNER, context) as provider:
        async with endpoint(provider.url, context=trusting) as source:
            assert names(source) == ["first"]
        async with endpoint(provider.url) as source:
            assert names(source) == []


async def test_unknown_key_ids_cause_few_requests(provider: IdentityProvider) -> None:
    async with endpoint(provider.url) as source:
        newer = Signer("newer", "EC")
        provider.keys = [SIGNER.public(), newer.public()]
        source.is_missing("newer")
        await until_async(_are(source, ["first", "newer"]), what="the new key")
        for number in range(1_000):
            source.is_missing("newer")
            source.is_missing(f"made up {number}")
            source.is_missing("x" * 100_000)
            await asyncio.sleep(0)
        assert len(source._missing) <= MISSING_KEY_IDS
        await until_async(_asked(provider, 3), what="one more request")
        assert provider.asked <= 1 + EARLY_FETCHES


async def test_a_key_id_that_stays_missing_is_asked_for_once(provider: IdentityProvider) -> None:
    async with endpoint(provider.url) as source:
        source.is_missing("gone")
        await until_async(_asked(provider, 2), what="the early request")
        for _ in range(100):
            source.is_missing("gone")
            await asyncio.sleep(0)
        source.is_missing("another")
        await until_async(_asked(provider, 3), what="the second early request")
        assert provider.asked == 3


# -- both sides of the limits ---------------------------------------------------------------------


def unreal(bits: int, **more: Any) -> dict[str, Any]:
    """A key of RSA by its length alone: none has its other half."""
    number = (1 << bits - 1) | 1
    return {"kty": "RSA", "n": encoded(number.to_bytes((bits + 7) // 8)), "e": "AQAB", **more}


@pytest.mark.filterwarnings("ignore:Key size should be")
def test_keys_are_as_long_as_they_may_be() -> None:
    sizes = (2_047, 2_048, 8_192, 8_193)
    assert parsed(*(unreal(size, kid=str(size)) for size in sizes)) == ["2048", "8192"]
    names = ["x" * MAX_KEY_ID_LENGTH, "x" * (MAX_KEY_ID_LENGTH + 1)]
    assert parsed(*(unreal(2_048, kid=name) for name in names)) == names[:1]
    assert parsed(unreal(2_048)) == [None]
    entries = [None] * MAX_KEYS
    assert parse_key_set(json.dumps({"keys": entries}).encode()).unusable_count == MAX_KEYS
    with pytest.raises(KeySetError, match=f"{MAX_KEYS + 1} keys; at most {MAX_KEYS}"):
        parse_key_set(json.dumps({"keys": [*entries, None]}).encode())


@pytest.mark.parametrize(
    ("length", "is_looked_at"), [(340, False), (341, True), (1_638, True), (1_639, False)]
)
def test_a_modulus_that_cannot_have_the_right_length_costs_nothing(
    monkeypatch: pytest.MonkeyPatch, length: int, is_looked_at: bool
) -> None:
    seen: list[Any] = []

    def look(members: Any) -> None:
        seen.append(members)
        raise ValueError

    monkeypatch.setattr("joserfc.jwk.import_key", look)
    key = {"kty": "RSA", "n": "A" * length, "e": "AQAB", "d": "a secret"}
    assert parsed(key, {**key, "e": None}, {**key, "n": ["A"] * length}) == []
    assert seen == ([{"kty": "RSA", "n": "A" * length, "e": "AQAB"}] if is_looked_at else [])


def test_an_algorithm_goes_with_its_kind_of_key() -> None:
    edwards, curve = Signer("edwards", "OKP").public(), Signer("curve", "EC").public()
    assert parsed(edwards, {**edwards, "crv": "X25519"}, {**curve, "crv": "Ed25519"}) == ["edwards"]
    keys = parse_key_set(json.dumps({"keys": [edwards, curve, unreal(2_048)]}).encode())
    assert [len(each.algorithms) for each in keys.keys] == [2, 1, 6]
    assert [keys.candidates(None, name) for name in ("EdDSA", "Ed25519")] == [[keys.keys[0]]] * 2
    assert keys.candidates(None, "ES256") == [keys.keys[1]]
    assert keys.candidates("another", "ES256") == []


def test_a_token_is_held_against_so_many_keys() -> None:
    entries = [unreal(2_048) for _ in range(MAX_TRIED + 1)]
    keys = parse_key_set(json.dumps({"keys": entries}).encode())
    assert keys.candidates(None, "RS256") == list(keys.keys[:MAX_TRIED])


@pytest.mark.parametrize(
    ("operations", "is_taken"),
    [(None, True), (["verify"], True), (["sign"], False), ("verify", False), ({}, False)],
)
def test_a_key_that_says_what_it_is_for_is_for_that(operations: Any, is_taken: bool) -> None:
    more = {} if operations is None else {"key_ops": operations}
    assert len(parsed(unreal(2_048, **more))) == is_taken


def test_a_key_verifies_by_its_own_algorithms_alone() -> None:
    curve = Signer("curve", "EC")
    (key,) = parse_key_set(json.dumps({"keys": [curve.public()]}).encode()).keys
    message, _, signature = curve.token().rpartition(".")
    raw = base64.urlsafe_b64decode(signature + "==")
    assert key.verifies("ES256", message.encode(), raw)
    assert not key.verifies("ES384", message.encode(), raw)
    assert not key.verifies("ES256", message.encode() + b"x", raw)


def test_a_key_that_is_for_another_algorithm_verifies_nothing() -> None:
    message, _, signature = SIGNER.token().rpartition(".")
    raw = base64.urlsafe_b64decode(signature + "==")
    entries = [SIGNER.public(), SIGNER.public(alg="PS256")]
    both, other = parse_key_set(json.dumps({"keys": entries}).encode()).keys
    assert both.verifies("RS256", message.encode(), raw)
    assert not other.verifies("RS256", message.encode(), raw)
    # Of the wrong type, whatever it says of itself.
    for name in ("ES256", "EdDSA"):
        odd = SigningKey(None, frozenset({name}), both.key)
        assert odd.verifies(name, message.encode(), raw) is False


def test_a_file_is_read_again_when_it_has_changed_and_that_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    path = tmp_path / "keys.json"

    path.write_text(json.dumps({"keys": [unreal(2_048, kid="one")]}))
    source = KeyFile(str(path))
    assert [names(source), names(source)] == [["one"], ["one"]]
    path.write_text(json.dumps({"keys": [unreal(2_048, kid="one"), unreal(2_048, kid="other")]}))
    assert [names(source), names(source)] == [["one", "other"]] * 2
    path.write_text("none")
    assert [names(source), names(source)] == [["one", "other"]] * 2
    path.unlink()
    assert [names(source), names(source)] == [["one", "other"]] * 2
    assert [(each.levelname, each.getMessage()) for each in caplog.records] == [
        ("INFO", f"2 keys read again from {path}"),
        (
            "ERROR",
            f'the keys of {path} stay as they were: what was read is no key set: {{"keys": […]}}',
        ),
        ("ERROR", f"the keys of {path} stay as they were: No such file or directory"),
    ]


async def test_a_source_has_keys_and_that_is_all_it_must_have() -> None:
    source = KeySource()
    with pytest.raises(NotImplementedError):
        source.keys()
    source.is_missing("x")
    await source.start()
    await source.close()


def test_early_requests_are_few_whatever_key_ids_come() -> None:
    clock = ManualClock()
    source = KeyEndpoint(EndpointSettings("http://x/"), clock)

    def asks(key_id: str) -> bool:
        """Whether one for this id is wanted."""
        source._wanted.clear()
        source.is_missing(key_id)
        return source._wanted.is_set()

    assert not asks("x" * (MAX_KEY_ID_LENGTH + 1))
    assert asks("x" * MAX_KEY_ID_LENGTH)
    assert not asks("x" * MAX_KEY_ID_LENGTH)
    assert [asks(str(number)) for number in range(EARLY_FETCHES)] == [
        *[True] * (EARLY_FETCHES - 1),
        False,
    ]
    clock.advance(EARLY_FETCH_EVERY_MS - 1)
    assert not asks("later")
    clock.advance(1)
    assert asks("later")
    assert not asks("last")
    clock.advance(EARLY_FETCH_EVERY_MS)
    assert not asks("later"), "it is remembered"
    clock.advance(MISSING_FOR_MS - EARLY_FETCH_EVERY_MS - 1)
    assert not asks("later")
    clock.advance(1)
    assert asks("later")


def test_only_so_many_missing_key_ids_are_remembered() -> None:
    clock = ManualClock()
    source = KeyEndpoint(EndpointSettings("http://x/"), clock)
    for number in range(MISSING_KEY_IDS + 1):
        clock.advance(EARLY_FETCH_EVERY_MS)
        source.is_missing(str(number))
    assert list(source._missing) == [str(number) for number in range(1, MISSING_KEY_IDS + 1)]
    clock.advance(MISSING_FOR_MS)
    source.is_missing("1")
    source.is_missing("new")
    kept = [*map(str, range(3, MISSING_KEY_IDS + 1)), "1", "new"]
    assert list(source._missing) == kept, "the oldest request is the first to be forgotten"


async def test_a_server_that_refuses_to_give_keys_is_an_error_of_the_start(
    provider: IdentityProvider,
) -> None:
    async def refuse(request: web.Request) -> web.StreamResponse:
        return web.Response(status=403)

    provider.answer = refuse
    source = KeyEndpoint(
        EndpointSettings(provider.url, retry_backoff_ms=5), Ports.of_machine().clock
    )
    with pytest.raises(ConfigError, match="answered with status 403, not 200"):
        await source.start()
    provider.answer = None
    await until_async(_are(source, ["first"]), what="keys after all")
    await source.close()


async def test_what_is_read_and_what_is_not_is_said_once(
    provider: IdentityProvider, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    provider.answer = BAD_ANSWERS["garbage"]
    async with endpoint(provider.url, refresh_ms=10) as source:
        await until_async(_asked(provider, 3), what="three requests")
        provider.answer = None
        await until_async(_are(source, ["first"]), what="the keys")
        asked = provider.asked
        await until_async(_asked(provider, asked + 3), what="three more")
        provider.answer = BAD_ANSWERS["garbage"]
        asked = provider.asked
        await until_async(_asked(provider, asked + 3), what="three more")
    said = [
        each.getMessage() for each in caplog.records if each.name == "moldau.sasl.oauthbearer.jwks"
    ]
    assert [text.split(":")[0] for text in said] == [
        "the keys of bearer tokens are not known, tokens are refused",
        "1 keys of bearer tokens from http",
        "the keys of bearer tokens stay as they were",
    ]


def test_keys_are_asked_for_every_hour_where_nothing_else_is_said() -> None:
    settings = EndpointSettings("http://x/keys")
    assert (settings.refresh_ms, settings.timeout_ms, settings.context) == (3_600_000, 10_000, None)
    assert (settings.retry_backoff_ms, settings.retry_backoff_max_ms) == (100, 10_000)


def key_set(*key_ids: str) -> bytes:
    return json.dumps({"keys": [unreal(2_048, kid=each) for each in key_ids]}).encode()


@pytest.mark.parametrize("more", [0, 1])
async def test_an_answer_has_so_many_bytes_and_no_more(
    provider: IdentityProvider, more: int
) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(body=key_set("a").ljust(MAX_KEY_SET_BYTES + more))

    provider.answer = answer
    async with endpoint(provider.url, timeout_ms=60_000, retry_backoff_ms=60_000) as source:
        assert names(source) == ([] if more else ["a"])


@pytest.mark.parametrize(
    ("status", "is_refused"),
    [
        (200, False),
        (201, False),
        (204, False),
        (301, True),
        (404, True),
        (429, False),
        (503, False),
    ],
)
async def test_only_an_answer_of_status_200_has_keys(
    provider: IdentityProvider, status: int, is_refused: bool
) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(body=None if status == 204 else key_set("a"), status=status)

    provider.answer = answer
    source = KeyEndpoint(
        EndpointSettings(provider.url, retry_backoff_ms=60_000), Ports.of_machine().clock
    )
    try:
        if is_refused:
            with pytest.raises(ConfigError, match=f"answered with status {status}, not 200"):
                await source.start()
        else:
            await source.start()
        assert names(source) == (["a"] if status == 200 else [])
    finally:
        await source.close()


@pytest.mark.parametrize(
    ("encoding", "is_read"), [(None, True), ("identity", True), ("gzip", False), ("br", False)]
)
async def test_an_answer_is_read_as_it_is(
    provider: IdentityProvider, encoding: str | None, is_read: bool
) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        headers = {} if encoding is None else {"Content-Encoding": encoding}
        return web.Response(body=key_set("a"), headers=headers)

    provider.answer = answer
    async with endpoint(provider.url, retry_backoff_ms=60_000) as source:
        assert names(source) == (["a"] if is_read else [])
