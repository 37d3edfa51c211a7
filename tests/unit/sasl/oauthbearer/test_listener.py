"""OAUTHBEARER on the server's side: conversations, claims, signatures, and tokens that lie."""

from __future__ import annotations

import contextlib
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.config import ConfigError
from moldau.node.http.access import http_tokens
from moldau.runtime.clock import SystemClock
from moldau.sasl.mechanism import Accepted, Offer, SaslRefused
from moldau.sasl.oauthbearer.claims import (
    INSUFFICIENT_SCOPE,
    MAX_TOKEN_LENGTH,
    ClaimRules,
    TokenRefused,
    TokenUser,
    UnsecuredRules,
)
from moldau.sasl.oauthbearer.exchanges import CONFIRMATION, OAuthBearerClient, OAuthBearerServer
from moldau.sasl.oauthbearer.jwks import KeySet, parse_key_set
from moldau.sasl.oauthbearer.listener import (
    MAX_HEADER_BYTES,
    SignedTokens,
    _unsecured_rules,
    unsecured_check,
)
from moldau.sasl.oauthbearer.tokens import OAuthBearerToken
from moldau.server.authentication.core.session import SaslSession
from tests.kit.counting import Newcomers, collector_at_rest
from tests.kit.identity_provider import (
    AUDIENCE,
    ISSUER,
    Signer,
    claims_of,
    encoded,
    symmetric,
    unsecured,
)
from tests.unit.server.authentication.test_listener_security import configured as node_configured
from tests.unit.server.authentication.test_listener_security import security

RULES = ClaimRules(ISSUER, (AUDIENCE, "other"))
SIGNERS = [Signer("rsa"), Signer("pss", algorithm="PS384"), Signer("ec", "EC"), Signer("ed", "OKP")]
RSA = SIGNERS[0]


class Keys:
    """A source of keys that is what it is."""

    def __init__(self, *entries: object) -> None:
        self._set = parse_key_set(json.dumps({"keys": list(entries)}).encode())
        self.missing: list[str] = []

    def keys(self) -> KeySet:
        return self._set

    def is_missing(self, key_id: str) -> None:
        self.missing.append(key_id)

    async def start(self) -> None: ...

    async def close(self) -> None: ...


def checker(*entries: object, rules: ClaimRules = RULES) -> SignedTokens:
    known = entries or tuple(signer.public() for signer in SIGNERS)
    return SignedTokens(Keys(*known), rules, SystemClock())


def refusal(check: Any, token: str) -> TokenRefused:
    with pytest.raises(TokenRefused) as refused:
        check(token)
    assert token[:40] not in str(refused.value)
    return refused.value


# -- conversations -------------------------------------------------------------------------------


def accept(token: str) -> TokenUser:
    if token != "good":
        raise TokenRefused("it is bad")
    return TokenUser("erin", 1_000.0)


@pytest.mark.parametrize(
    "message",
    [
        b"n,,\x01auth=Bearer good\x01\x01",
        b"n,,\x01auth=bEARER   good\x01\x01",
        b"n,a=erin,\x01auth=Bearer good\x01\x01",
        b"n,,\x01host=h\x01port=1\x01auth=Bearer good\x01traceId=1\x01\x01",
        OAuthBearerClient(OAuthBearerToken("good", extensions=(("a", "b"),))).first(),
    ],
)
def test_messages_of_clients(message: bytes) -> None:
    assert OAuthBearerServer(accept).step(message) == Accepted("erin", left_ms=1_000.0)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        CONFIRMATION,
        b"n,,",
        b"n,,\x01\x01",
        b"n,,\x01auth=Bearer good\x01",
        b"n,,\x01auth=Bearer good\x01\x01x",
        b"y,,\x01auth=Bearer good\x01\x01",
        b"p=tls-unique,,\x01auth=Bearer good\x01\x01",
        b"n,,\x01auth=Basic good\x01\x01",
        b"n,,\x01auth=Bearer\x01\x01",
        b"n,,\x01auth=Bearer go\xc3\xb6d\x01\x01",
        b"n,,\x01auth=Bearer good\x01x1=y\x01\x01",
        b"n,,\x01auth=Bearer good\x01x=\x01\x01",
        b"n,,\x01host=h\x01\x01",
        b"n,a=bob,\x01auth=Bearer good\x01\x01",
        b"n,,\x01auth=Bearer good\xff\x01\x01",
    ],
)
def test_messages_that_break_the_rules(message: bytes) -> None:
    with pytest.raises(SaslRefused) as refused:
        OAuthBearerServer(accept).step(message)
    assert "good" not in str(refused.value)


def test_a_refusal_takes_two_steps() -> None:
    """RFC 7628, section 3.2.3: a client that goes on otherwise has no second try."""
    for answer in (CONFIRMATION, b"n,,\x01auth=Bearer good\x01\x01"):
        exchange = OAuthBearerServer(accept)
        told = exchange.step(b"n,,\x01auth=Bearer bad\x01\x01")
        assert isinstance(told, bytes)
        assert json.loads(told) == {"status": "invalid_token"}
        with pytest.raises(SaslRefused, match="it is bad") as refused:
            exchange.step(answer)
        assert refused.value.told == told.decode()


@given(st.lists(st.binary(max_size=200), max_size=3))
def test_no_bytes_do_more_than_be_refused(messages: list[bytes]) -> None:
    exchange = OAuthBearerServer(accept)
    for message in messages:
        try:
            assert not isinstance(exchange.step(message), Accepted)
        except SaslRefused:
            continue


@pytest.mark.parametrize(
    ("max_session_ms", "left_ms", "told_ms"),
    [(0.0, 1_000.0, 1_000), (400.0, 1_000.0, 400), (5_000.0, 1_000.0, 1_000), (0.0, 0.0, 0)],
)
def test_a_session_ends_with_its_token(max_session_ms: float, left_ms: float, told_ms: int) -> None:
    """KIP-368: also where `connections.max.reauth.ms` is 0."""

    def begin() -> OAuthBearerServer:
        return OAuthBearerServer(lambda token: TokenUser("erin", left_ms))

    session = SaslSession({"OAUTHBEARER": Offer(begin, max_session_ms)})
    session.handshake("OAUTHBEARER", 1, 0.0)
    outcome = session.token(b"n,,\x01auth=Bearer good\x01\x01", 0.0)
    assert outcome is not None
    assert outcome.response is not None
    assert outcome.response.session_lifetime_ms == told_ms  # type: ignore[attr-defined]
    assert session.request("Fetch", told_ms) is None
    ended = session.request("Fetch", told_ms + 1.0)
    assert ended is not None
    assert ended.failure is not None


# -- claims --------------------------------------------------------------------------------------


@pytest.mark.parametrize("signer", SIGNERS, ids=lambda signer: signer.algorithm)
def test_good_tokens(signer: Signer) -> None:
    found = checker()(signer.token())
    assert found.name == "erin"
    assert 500_000 < found.left_ms <= 600_000


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": ["x", AUDIENCE]},
        {"scope": ["a", "b"]},
        {"scope": None},
        {"nbf": 0},
        {"left_s": 0.5},
        {"left_s": -29, "age_s": 60},
        {"iat": 1.5},
        {"exp": 1e300},
    ],
    ids=str,
)
def test_what_a_token_may_say(claims: dict[str, Any]) -> None:
    assert checker()(RSA.token(claims_of(**claims))).name == "erin"


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"left_s": -31, "age_s": 60}, "expired"),
        ({"exp": None}, "no exp"),
        ({"exp": "soon"}, "exp is no time"),
        ({"exp": True}, "exp is no time"),
        ({"exp": float("nan")}, "exp is no time"),
        ({"exp": float("inf")}, "exp is no time"),
        ({"exp": -1}, "exp is no time"),
        ({"iat": None}, "no iat"),
        ({"iat": [1]}, "iat is no time"),
        ({"age_s": -700}, "before it is issued"),
        ({"nbf": 1e11}, "not valid yet"),
        ({"nbf": "now"}, "nbf is no time"),
        ({"iss": None}, "iss"),
        ({"iss": ISSUER + "/"}, "iss"),
        ({"iss": [ISSUER]}, "iss"),
        ({"aud": None}, "aud"),
        ({"aud": "another"}, "aud"),
        ({"aud": []}, "aud"),
        ({"aud": {AUDIENCE: 1}}, "aud"),
        ({"aud": [[AUDIENCE]]}, "aud"),
        ({"sub": None}, "sub"),
        ({"sub": " "}, "sub"),
        ({"sub": ["erin"]}, "sub"),
        ({"scope": ""}, "scope"),
        ({"scope": ["a", "a"]}, "scope"),
        ({"scope": ["a", 1]}, "scope"),
    ],
    ids=str,
)
def test_claims_that_are_refused(claims: dict[str, Any], reason: str) -> None:
    assert reason in str(refusal(checker(), RSA.token(claims_of(**claims))))


def test_other_names_and_no_expectations() -> None:
    check = checker(rules=ClaimRules(subject_claim="client", scope_claim="roles"))
    token = RSA.token(claims_of(client="frank", aud=None, iss=None, roles=["a"], scope=""))
    assert check(token).name == "frank"
    # As Apache Kafka: a token that is for an audience is for no cluster without a name.
    assert "aud" in str(refusal(check, RSA.token(claims_of(client="frank"))))
    assert "roles" in str(refusal(check, RSA.token(claims_of(client="f", aud=None, roles=[1]))))


# -- signatures ----------------------------------------------------------------------------------


def test_tokens_that_lie_about_their_signature() -> None:
    check = checker()
    header, payload, signature = RSA.token().split(".")

    def with_header(**members: object) -> str:
        return f"{encoded(members)}.{payload}.{signature}"

    stranger = Signer("rsa")
    lies = {
        "another key of the same name": stranger.token(),
        "another key": Signer("elsewhere").token(),
        "the key's public half as a secret": RSA.signed_by_hmac(),
        "the key's public half as a longer secret": RSA.signed_by_hmac("HS512"),
        "no signature": f"{header}.{payload}.",
        "none": unsecured(),
        "None": unsecured(algorithm="None"),
        "no text": unsecured(algorithm=["RS256"]),
        "none, with the signature": with_header(alg="none", kid="rsa"),
        "other claims": f"{header}.{encoded(claims_of('admin'))}.{signature}",
        "another algorithm of the key": with_header(alg="PS256", kid="rsa"),
        "another key's algorithm": with_header(alg="ES256", kid="ec"),
        "an inner key": stranger.token(jwk=stranger.public(), kid="inner"),
        "keys from elsewhere": stranger.token(jku="http://127.0.0.1/keys"),
        "critical parameters": RSA.token(crit=["b64"], b64=True),
        "a kid that is no text": RSA.token(kid=["rsa"]),
        "padding": RSA.token() + "==",
        "four parts": RSA.token() + ".x",
        "one part": header,
        "a nested header": f"{encoded(b'[' * 5_000)}.{payload}.{signature}",
        "a large header": RSA.token(x="x" * 9_000),
        "no JSON": f"{encoded(b'x')}.{payload}.{signature}",
        "no object": RSA.token([1]),
        "too large": RSA.token(claims_of(x="x" * MAX_TOKEN_LENGTH)),
        "nothing": "..",
    }
    for name, token in lies.items():
        assert refusal(check, token).status == "invalid_token", name


def test_symmetric_keys_of_a_set_are_left_out() -> None:
    entry, token = symmetric()
    check = checker(entry, RSA.public())
    assert check.keys.keys().unusable_count == 1  # type: ignore[union-attr]
    refusal(check, token)


def test_keys_without_names() -> None:
    signers = [Signer(None), Signer(None, "EC")]
    check = checker(*(signer.public() for signer in signers))
    for signer in signers:
        assert check(signer.token()).name == "erin"
    refusal(check, Signer(None).token())
    refusal(check, signers[0].token(kid="made up"))


def test_unknown_key_ids_are_looked_for_and_known_ones_are_not() -> None:
    check = checker()
    refusal(check, Signer("newer").token())
    refusal(check, Signer("rsa").token())
    refusal(check, Signer(None).token())
    assert isinstance(check.keys, Keys)
    assert check.keys.missing == ["newer"]


@settings(max_examples=400)
@given(st.sampled_from(SIGNERS), st.data())
def test_no_changed_token_is_accepted(signer: Signer, data: st.DataObject) -> None:
    """One character another, gone or new, or a piece taken from another token of the same key."""
    token = _TOKENS[signer.algorithm]
    kind = data.draw(st.sampled_from(["other", "gone", "new", "piece"]))
    at = data.draw(st.integers(0, len(token) - 1))
    character = data.draw(st.sampled_from("AQgw-_.=/+ \nz0"))
    if kind == "other":
        changed = token[:at] + character + token[at + 1 :]
    elif kind == "gone":
        changed = token[:at] + token[at + 1 :]
    elif kind == "new":
        changed = token[:at] + character + token[at:]
    else:
        parts, others = token.split("."), _OTHERS[signer.algorithm].split(".")
        place = data.draw(st.sampled_from([1, 2]))
        changed = ".".join([*parts[:place], others[place], *parts[place + 1 :]])
    if changed != token:
        with pytest.raises(TokenRefused):
            _CHECK(changed)


_CHECK = checker()
_TOKENS = {signer.algorithm: signer.token(claims_of(left_s=86_400)) for signer in SIGNERS}
_OTHERS = {signer.algorithm: signer.token(claims_of("bob", left_s=86_400)) for signer in SIGNERS}


# -- unsecured tokens ----------------------------------------------------------------------------


def test_unsecured_tokens() -> None:
    rules = UnsecuredRules(required_scope=("a", "b"), clock_skew_ms=1_000.0)
    check = unsecured_check(rules, SystemClock())
    good = ["a", "b", "c"]
    assert check(unsecured(claims_of(scope=good))).name == "erin"
    of_one = unsecured_check(UnsecuredRules(required_scope=("a",)), SystemClock())
    assert of_one(unsecured(claims_of(scope=" a "))).name == "erin"
    refusal(of_one, unsecured(claims_of(scope="a b")))
    lacking = refusal(check, unsecured(claims_of(scope="a")))
    assert (lacking.status, lacking.scope) == ("insufficient_scope", "a b")
    for token in (
        unsecured(claims_of(scope={"a": 1})),
        unsecured(claims_of(scope=good, exp=None)),
        unsecured(claims_of(scope=good, age_s=-60)),
        unsecured(claims_of(scope=good, age_s=60, left_s=-30)),
        unsecured(claims_of(scope=good, sub=None)),
        unsecured(claims_of(scope=good), signature=b"x"),
        RSA.token(claims_of(scope=good)),
        "x" * (MAX_TOKEN_LENGTH + 1),
    ):
        refusal(check, token)


# -- settings ------------------------------------------------------------------------------------

HANDLER = "listener.name.outside.oauthbearer.sasl.server.callback.handler.class"
PACKAGE = "org.apache.kafka.common.security.oauthbearer"
UNSECURED = f"{PACKAGE}.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
JAAS = "listener.name.outside.oauthbearer.sasl.jaas.config"
MODULE = f"{PACKAGE}.OAuthBearerLoginModule required"
URL = "sasl.oauthbearer.jwks.endpoint.url"
ALLOWED = "moldau.sasl.oauthbearer.allowed"


def configured(**keys: str) -> Any:
    made = security("SASL_PLAINTEXT", **{"sasl.enabled.mechanisms": "OAUTHBEARER", **keys})
    assert made.sasl is not None
    return made.sasl


def test_unsecured_tokens_are_served_where_the_configuration_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for keys in (
        {HANDLER: UNSECURED},
        {JAAS: f'{MODULE} unsecuredLoginStringClaim_sub="x";'},
        {HANDLER: UNSECURED, JAAS: f'{MODULE} unsecuredValidatorPrincipalClaimName="sub";'},
    ):
        with caplog.at_level(logging.WARNING):
            sasl = configured(**keys)
        assert "listener OUTSIDE accepts unsecured tokens" in caplog.text
        caplog.clear()
        message = OAuthBearerClient(OAuthBearerToken(unsecured())).first()
        accepted = sasl.mechanisms["OAUTHBEARER"].begin().step(message)
        assert accepted.user == "erin"
        assert sasl.mechanisms["OAUTHBEARER"].keys is None


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({}, f"{URL}: listener OUTSIDE: OAUTHBEARER needs it"),
        ({JAAS: f"{MODULE};"}, f"{URL}: listener OUTSIDE: OAUTHBEARER needs it"),
        ({HANDLER: "com.example.Mine"}, "com.example.Mine: listener OUTSIDE: one of "),
        ({URL: "https://x/keys"}, f"https://x/keys: is not allowed: {ALLOWED}.urls"),
        ({URL: "https://x/keys", f"{ALLOWED}.urls": "https://x/"}, "is not allowed"),
        ({URL: "ftp://x/keys"}, "is no https:, http: or file: URL"),
        ({URL: "https://user:s3cret@x/keys"}, "without a password"),
        ({URL: "http://[x"}, "is no https:, http: or file: URL"),
        ({URL: "file:///x", f"{ALLOWED}.urls": "file:///x"}, f"{ALLOWED}.files must have it"),
        (
            {URL: "file:///x", f"{ALLOWED}.urls": "file:///x", f"{ALLOWED}.files": "/x"},
            "/x: No such file",
        ),
        (
            {
                URL: "http://x/",
                f"{ALLOWED}.urls": "http://x/",
                "sasl.oauthbearer.jwks.endpoint.refresh.ms": "0",
            },
            "refresh.ms=0: must be at least 1",
        ),
        (
            {
                URL: "https://x/",
                f"{ALLOWED}.urls": "https://x/",
                JAAS: f'{MODULE} ssl.truststore.location="/nowhere";',
            },
            "/nowhere",
        ),
        (
            {HANDLER: UNSECURED, JAAS: f'{MODULE} unsecuredValidatorAllowableClockSkewMs="-1";'},
            "AllowableClockSkewMs is a number",
        ),
        ({JAAS: "org.example.PlainLoginModule required;"}, "needs OAuthBearerLoginModule"),
    ],
    ids=str,
)
def test_settings_that_cannot_work(keys: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        configured(**keys)
    assert reason in str(refused.value)
    assert "s3cret" not in str(refused.value)


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    keys = {URL: "http://x/", f"{ALLOWED}.urls": "http://x/"}
    with pytest.raises(ConfigError, match=r"joserfc: pip install 'moldau\[server\]'"):
        configured(**keys)


def test_keys_from_a_file_that_changes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "keys.json"
    first, second = Signer("first", "EC"), Signer("second", "EC")

    def write(*entries: object) -> None:
        newer = tmp_path / "newer"
        newer.write_text(json.dumps({"keys": entries}))
        newer.rename(path)

    write(first.public())
    url = f"file://{path}"
    sasl = configured(
        **{
            f"listener.name.outside.oauthbearer.{URL}": url,
            f"{ALLOWED}.urls": url,
            f"{ALLOWED}.files": str(path),
            "sasl.oauthbearer.expected.audience": AUDIENCE,
        }
    )

    def answer(signer: Signer) -> object:
        message = OAuthBearerClient(OAuthBearerToken(signer.token())).first()
        return sasl.mechanisms["OAUTHBEARER"].begin().step(message)

    assert isinstance(answer(first), Accepted)
    assert isinstance(answer(second), bytes)
    write(second.public())
    assert isinstance(answer(second), Accepted)
    assert isinstance(answer(first), bytes)
    path.write_text("no JSON")
    assert isinstance(answer(second), Accepted)
    path.unlink()
    assert isinstance(answer(second), Accepted)
    assert len([each for each in caplog.records if each.levelno == logging.ERROR]) == 2


@pytest.mark.parametrize("more", [0, 1])
def test_a_token_has_so_many_characters_and_no_more(more: int) -> None:
    """A signed one is looked at up to there, an unsecured one accepted."""
    length = MAX_TOKEN_LENGTH + more
    for size in range(length * 3 // 4 - 300, length):
        for name in ("x", "xx", "xxx"):
            token = unsecured(claims_of(**{name: "x" * size}))
            if len(token) == length:
                break
        if len(token) == length:
            break
    check = unsecured_check(UnsecuredRules(), SystemClock())
    if more:
        assert "more than" in str(refusal(check, token))
        assert "more than" in str(refusal(checker(), token))
    else:
        assert check(token).name == "erin"
        assert "no known key" in str(refusal(checker(), token))


def test_a_token_that_fits_no_known_key_is_refused_for_that() -> None:
    known = checker(RSA.public())
    assert "no known key has" in str(refusal(known, Signer("another").token()))
    assert known.keys.missing == ["another"]  # type: ignore[attr-defined]
    # A kid that is known, with an algorithm that its key has not: nothing newer is looked for.
    other = Signer(RSA.key_id, "EC")
    assert "no known key has" in str(refusal(known, other.token()))
    assert known.keys.missing == ["another"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("key", ["refresh.ms", "retry.backoff.ms", "retry.backoff.max.ms"])
def test_the_times_of_an_endpoint_begin_at_one_millisecond(key: str) -> None:
    whole = f"sasl.oauthbearer.jwks.endpoint.{key}"
    good = {URL: "http://x/", f"{ALLOWED}.urls": "http://x/"}
    assert configured(**good, **{whole: "1"}).mechanisms["OAUTHBEARER"].keys is not None
    with pytest.raises(ConfigError, match="must be at least 1"):
        configured(**good, **{whole: "0"})


def http(**keys: str) -> SignedTokens:
    """What checks the tokens of a node's HTTP listener."""
    config, _ = node_configured("PLAINTEXT", **{f"{ALLOWED}.urls": "http://x/,http://y/", **keys})
    return http_tokens(config, SystemClock())


def test_the_http_listener_has_settings_of_its_own_and_the_others_where_it_has_none() -> None:
    with pytest.raises(ConfigError, match="BEARER needs it"):
        http()
    issuer, own = "sasl.oauthbearer.expected.issuer", "moldau.http.sasl.oauthbearer"
    common = http(**{URL: "http://x/", issuer: "them"})
    assert common.keys._settings.url == "http://x/"  # type: ignore[attr-defined]
    assert common._rules.issuer == "them"
    both = http(
        **{
            URL: "http://x/",
            issuer: "them",
            f"{own}.jwks.endpoint.url": "http://y/",
            f"{own}.expected.issuer": "us",
        }
    )
    assert both.keys._settings.url == "http://y/"  # type: ignore[attr-defined]
    assert both._rules.issuer == "us"


def test_an_extension_may_hold_a_sign_of_equality() -> None:
    message = b"n,,\x01auth=Bearer " + unsecured().encode() + b"\x01name=a=b=c\x01\x01"
    check = unsecured_check(UnsecuredRules(), SystemClock())
    accepted = OAuthBearerServer(check).step(message)
    assert isinstance(accepted, Accepted)
    assert accepted.user == "erin"


@pytest.mark.parametrize("more", [0, 1])
def test_a_token_s_header_has_so_many_bytes_and_no_more(more: int) -> None:
    header = json.dumps({"alg": "RS256", "kid": "x"}).encode()
    header += b" " * (MAX_HEADER_BYTES + more - len(header))
    token = f"{encoded(header)}.{encoded(claims_of())}.{encoded(b'x')}"
    reason = str(refusal(checker(), token))
    assert ("header has more than" in reason) is bool(more)
    assert ("no known key" in reason) is not bool(more)


@pytest.mark.parametrize(
    ("skew", "skew_ms"),
    [("0", 0.0), ("999999999", 999_999_999.0), ("1000000000", None), ("²", None), ("1.5", None)],
)
def test_a_skew_of_clocks_has_nine_digits_at_most(skew: str, skew_ms: float | None) -> None:
    options = {"unsecuredValidatorAllowableClockSkewMs": f" {skew} "}
    if skew_ms is None:
        with pytest.raises(ConfigError, match="AllowableClockSkewMs is a number from 0"):
            _unsecured_rules(options)
    else:
        assert _unsecured_rules(options) == UnsecuredRules("sub", "scope", (), skew_ms)


def test_what_an_unsecured_token_is_held_against_is_what_the_options_say() -> None:
    options = {
        "unsecuredValidatorPrincipalClaimName": "who",
        "unsecuredValidatorScopeClaimName": "scp",
        "unsecuredValidatorRequiredScope": " a  b ",
    }
    assert _unsecured_rules(options) == UnsecuredRules("who", "scp", ("a", "b"), 0.0)
    assert _unsecured_rules({}) == UnsecuredRules("sub", "scope", (), 0.0)


def test_a_refusal_says_which_scope_is_needed() -> None:
    def refuse(token: str) -> TokenUser:
        raise TokenRefused("it lacks a scope", INSUFFICIENT_SCOPE, "a b")

    told = OAuthBearerServer(refuse).step(b"n,,\x01auth=Bearer good\x01\x01")
    assert isinstance(told, bytes)
    assert json.loads(told) == {"status": "insufficient_scope", "scope": "a b"}


def test_a_confirmed_refusal_leaves_no_cycle() -> None:
    """It would hold the connection of a stranger."""

    def refuse(token: str) -> TokenUser:
        raise TokenRefused("no such key")

    new = Newcomers(OAuthBearerServer)
    with collector_at_rest():
        server = OAuthBearerServer(refuse)
        assert b"status" in bytes(server.step(b"n,,\x01auth=Bearer abc\x01\x01"))
        with contextlib.suppress(SaslRefused):
            server.step(CONFIRMATION)
        del server
        assert new.objects() == []
