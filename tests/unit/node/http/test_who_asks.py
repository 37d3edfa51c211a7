"""Who asks: passwords, tokens and certificates, what is refused, and in which words."""

from __future__ import annotations

import asyncio
import logging
import ssl
from types import SimpleNamespace
from typing import Any

import pytest

from moldau.config.definition import ConfigError
from moldau.config.principals import reserved
from moldau.metadata.image import MetadataImage
from moldau.node.http import access as http_access
from moldau.node.http.access import Authority, HttpAccess, HttpHandshakes, HttpRefused, HttpSecurity
from moldau.protocol.access_control import Operation, ResourceType
from moldau.sasl.oauthbearer.claims import TokenRefused
from moldau.server.audit_log import AuthenticationLog, DecisionLog
from moldau.server.authentication.certificates import NoMatchingRule, PrincipalMapping
from moldau.server.authorizer import Authorizer
from moldau.server.request import Sender
from tests.kit.manual_clock import ManualClock
from tests.unit.node.http.site import config
from tests.unit.node.http.test_rules import basic, users
from tests.virtual.machine import pass_time

HOST = "10.0.0.5"
BASIC_CHALLENGE = ("WWW-Authenticate", 'Basic realm="moldau", charset="UTF-8"')
BEARER_CHALLENGE = ("WWW-Authenticate", 'Bearer realm="moldau"')
INVALID = ("WWW-Authenticate", 'Bearer realm="moldau", error="invalid_token"')


class Keys:
    """The keys of tokens; the first fetch ends when `gate` is set."""

    context = None

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.is_closed = False

    async def start(self) -> None:
        await self.gate.wait()

    async def close(self) -> None:
        self.is_closed = True
        self.gate.set()


class Tokens:
    """Takes the token `good` as erin's."""

    def __init__(self) -> None:
        self.keys = Keys()

    def __call__(self, token: str) -> Any:
        if token != "good":
            raise TokenRefused("the token's signature is wrong")
        return SimpleNamespace(name="erin")


def security(*methods: str, mapping: str = "DEFAULT", delay_s: float = 0.5) -> HttpSecurity:
    return HttpSecurity(
        contexts=None,
        mapping=PrincipalMapping(mapping),
        methods=methods,
        tokens=Tokens() if "BEARER" in methods else None,  # type: ignore[arg-type]
        open_paths=frozenset({"/healthz"}),
        is_reserved=lambda name: name == "nodes",
        refusal_delay_s=delay_s,
        max_log_lines=100,
    )


def request(header: str | None = None, certificate: bytes | None = None) -> Any:
    """With this Authorization; with a certificate's DER, by TLS."""
    tls = SimpleNamespace(getpeercert=lambda *, binary_form: certificate if binary_form else {})
    transport = SimpleNamespace(get_extra_info=lambda name: tls if name == "ssl_object" else None)
    return SimpleNamespace(
        headers={} if header is None else {"Authorization": header.partition(": ")[2]},
        remote=f"::ffff:{HOST}",
        transport=None if certificate is None else transport,
    )


def access(
    made: HttpSecurity, authorizer: Authorizer | None = None, image: MetadataImage | None = None
) -> HttpAccess:
    authority = Authority(
        lambda: authorizer or Authorizer(),
        asyncio.get_running_loop,
        lambda: image or users("alice"),
    )
    return HttpAccess(made, authority)


async def refusal(asked: HttpAccess, *of_request: Any) -> HttpRefused:
    with pytest.raises(HttpRefused) as refused:
        await asked.sender(request(*of_request))
    return refused.value


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Why authentications failed, as the log has it."""
    texts = [each.getMessage() for each in caplog.records if each.name == "moldau.authentication"]
    before = f"failed authentication from host = {HOST} on listener = HTTP: "
    assert all(text.startswith(before) for text in texts)
    return [text.removeprefix(before) for text in texts]


async def test_without_methods_every_client_is_anonymous(caplog: pytest.LogCaptureFixture):
    sender = await access(security()).sender(request("Authorization: Basic nonsense"))
    assert (sender.principal, sender.client_host) == ("User:ANONYMOUS", HOST)
    assert (sender.listener_name, sender.api_key) == ("HTTP", None)
    assert lines(caplog) == []


@pytest.mark.parametrize(
    ("methods", "needed", "challenges"),
    [
        (("BASIC",), "name and password (Basic)", (BASIC_CHALLENGE,)),
        (("BEARER",), "a token (Bearer)", (BEARER_CHALLENGE,)),
        (
            ("BASIC", "BEARER"),
            "name and password (Basic) or a token (Bearer)",
            (BASIC_CHALLENGE, BEARER_CHALLENGE),
        ),
    ],
)
async def test_a_client_without_a_name_is_asked_for_one(
    caplog: pytest.LogCaptureFixture,
    methods: tuple[str, ...],
    needed: str,
    challenges: tuple[tuple[str, str], ...],
):
    refused = await refusal(access(security(*methods)))
    assert (refused.status, str(refused)) == (401, f"needed: {needed}")
    assert refused.headers == challenges
    assert lines(caplog) == []
    await refusal(access(security(*methods)), "Authorization: Digest x")
    schemes = " or ".join(method.title() for method in methods)
    unusable = f"the Authorization header is unusable: another scheme than {schemes}"
    assert lines(caplog) == [unusable]


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        ("Basic", "no name and password in it"),
        ("Basic !", "not Base64 of UTF-8"),
        ("Basic YWxpY2U6c2VjcmV0=", "not Base64 of UTF-8"),
        ("Basic /////w==", "not Base64 of UTF-8"),
        ("Basic YWxpY2U=", "no name and password in it"),
        ("Basic OnNlY3JldA==", "no name and password in it"),
        ("Bearer x", "another scheme than Basic"),
    ],
)
async def test_headers_without_a_password(
    caplog: pytest.LogCaptureFixture, header: str, problem: str
):
    refused = await refusal(access(security("BASIC")), f"Authorization: {header}")
    assert (refused.status, refused.headers) == (401, (BASIC_CHALLENGE,))
    assert lines(caplog) == [f"the Authorization header is unusable: {problem}"]


@pytest.mark.parametrize("scheme", ["Basic", "basic", "BASIC"])
async def test_a_right_password_names_the_user(caplog: pytest.LogCaptureFixture, scheme: str):
    header = basic("alice").replace("Basic", scheme)
    sender = await access(security("BASIC", "BEARER")).sender(request(header))
    assert sender.principal == "User:alice"
    assert lines(caplog) == []


async def test_a_wrong_password_is_refused_after_a_while(caplog: pytest.LogCaptureFixture):
    asked = access(security("BASIC"))
    begun_s = asyncio.get_running_loop().time()
    refused = await refusal(asked, basic("alice", "wrong"))
    assert asyncio.get_running_loop().time() - begun_s == pytest.approx(0.5)
    assert (refused.status, str(refused)) == (401, "the name or the password is wrong")
    assert refused.headers == (BASIC_CHALLENGE,)
    assert lines(caplog) == ["the name 'alice' or its password is wrong"]


async def test_too_many_tries_are_answered_at_once(caplog: pytest.LogCaptureFixture):
    asked = access(security("BASIC", delay_s=0))
    for _ in range(10):
        assert (await refusal(asked, basic("alice", "wrong"))).status == 401
    refused = await refusal(asked, basic("alice", "wrong"))
    assert (refused.status, str(refused)) == (429, "too many passwords are tried; try again later")
    assert refused.headers == (("Retry-After", "1"),)
    assert lines(caplog)[-1] == "passwords are tried too often"


async def test_a_good_token_names_the_user_once_there_are_keys():
    made = security("BASIC", "BEARER")
    asked = access(made)
    asked.start()
    waiting = asyncio.ensure_future(asked.sender(request("Authorization: bearer good ")))
    await pass_time(1_000)
    assert not waiting.done()
    assert (await asked.sender(request(basic("alice")))).principal == "User:alice"
    made.tokens.keys.gate.set()  # type: ignore[union-attr]
    assert (await waiting).principal == "User:erin"
    await asked.close()
    assert made.tokens.keys.is_closed  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("token", "problem"),
    [
        ("bad", "the token's signature is wrong"),
        ("a b", "the token has characters that no token has"),
        ("=", "the token has characters that no token has"),
        ("gööd", "the token has characters that no token has"),
    ],
)
async def test_a_bad_token_is_refused_after_a_while(
    caplog: pytest.LogCaptureFixture, token: str, problem: str
):
    begun_s = asyncio.get_running_loop().time()
    refused = await refusal(access(security("BEARER")), f"Authorization: Bearer {token}")
    assert asyncio.get_running_loop().time() - begun_s == pytest.approx(0.5)
    assert (refused.status, str(refused)) == (401, "the token is not accepted")
    assert refused.headers == (INVALID,)
    assert lines(caplog) == [f"Bearer: {problem}"]


async def test_a_header_without_a_token(caplog: pytest.LogCaptureFixture):
    refused = await refusal(access(security("BEARER")), "Authorization: Bearer ")
    assert refused.headers == (BEARER_CHALLENGE,)
    assert lines(caplog) == ["the Authorization header is unusable: no token in it"]


async def test_without_tokens_there_are_no_keys_to_wait_for():
    asked = access(security("BASIC"))
    asked.start()
    assert asked._keys_tried is None
    await asked.close()


async def test_what_was_counted_is_written_at_the_end(caplog: pytest.LogCaptureFixture):
    asked = access(security("BASIC", delay_s=0))
    for _ in range(3):
        await refusal(asked, basic("alice", "wrong"))
    assert len(lines(caplog)) == 1
    await asked.close()
    assert lines(caplog)[1].endswith("its password is wrong: 2 more times within 10 s")


async def test_names_of_nodes_are_no_client_s(caplog: pytest.LogCaptureFixture):
    asked = access(security("BASIC"), image=users("nodes"))
    begun_s = asyncio.get_running_loop().time()
    refused = await refusal(asked, basic("nodes"))
    assert asyncio.get_running_loop().time() - begun_s == pytest.approx(0.5)
    assert (refused.status, str(refused)) == (403, reserved("nodes"))
    assert lines(caplog) == [reserved("nodes")]


@pytest.fixture
def subject(monkeypatch: pytest.MonkeyPatch) -> None:
    """The certificate's bytes are its subject."""
    monkeypatch.setattr(http_access, "subject_name", bytes.decode)


@pytest.mark.usefixtures("subject")
async def test_a_certificate_names_the_client(caplog: pytest.LogCaptureFixture):
    rules = "RULE:^OU=([a-z]+)$/$1-client/"
    asked = access(security(mapping=rules))
    assert (await asked.sender(request(None, b"OU=x"))).principal == "User:x-client"
    assert (await asked.sender(request())).principal == "User:ANONYMOUS"
    refused = await refusal(asked, None, b"OU=X")
    assert (refused.status, refused.headers) == (401, ())
    assert str(refused) == "the certificate's name is mapped to no user"
    assert len(lines(caplog)) == 1
    both = access(security("BASIC", mapping=rules))
    assert (await both.sender(request(None, b"OU=x"))).principal == "User:x-client"
    assert (await both.sender(request(basic("alice"), b"OU=x"))).principal == "User:alice"
    assert (await refusal(both)).status == 401
    with pytest.raises(NoMatchingRule):
        PrincipalMapping(rules).user_name("OU=X")


async def test_open_pages():
    asked = access(security("BASIC"))
    assert asked.is_open("/healthz")
    assert not asked.is_open("/metrics")


async def test_a_node_that_starts_refuses_all():
    loop = asyncio.get_running_loop()
    asked = HttpAccess(security(), Authority(lambda: None, lambda: loop, MetadataImage))
    refused = await refusal(asked)
    assert (refused.status, str(refused)) == (503, "the node is starting")


class Rules(Authorizer):
    """One with rules, which are asked on its loop."""

    def __init__(self) -> None:
        self.log = DecisionLog(ManualClock(), 10)
        self.asked: list[tuple[Any, ...]] = []

    def authorize(self, *question: Any) -> bool:
        self.asked.append(question)
        return question[-1] != "hidden"

    def rule(self, *_: Any) -> Any:
        return SimpleNamespace(name="DefaultDeny", entry=None)


async def test_rules_are_asked_on_their_loop(monkeypatch: pytest.MonkeyPatch):
    calls = []

    async def call(loop: object, ask: Any) -> Any:
        calls.append(loop)
        return ask()

    monkeypatch.setattr(http_access, "call_on", call)
    rules = Rules()
    asked = access(security(), rules)
    sender = await asked.sender(request())
    await asked.require(sender, Operation.DESCRIBE)
    assert rules.asked[-1][3:] == (4, "kafka-cluster")
    assert await asked.allowed_topics(sender, ["a", "hidden", "b"]) == ["a", "b"]
    assert calls == [asyncio.get_running_loop()] * 2
    with pytest.raises(HttpRefused) as refused:
        await asked.require(sender, Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, "hidden")
    assert (refused.value.status, str(refused.value)) == (
        403,
        "User:ANONYMOUS may not DescribeConfigs hidden",
    )
    without = access(security())
    await without.require(sender, Operation.DESCRIBE)
    assert len(calls) == 3


async def test_topics_that_are_left_out_are_no_denials(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    rules = Rules()
    asked = access(security(), rules)
    sender = await asked.sender(request())
    await asked.allowed_topics(sender, ["hidden"])
    assert not [each for each in caplog.records if each.name == "moldau.authorizer"]
    assert not await asked.may(sender, Operation.READ, ResourceType.TOPIC, "hidden")
    assert [each for each in caplog.records if each.name == "moldau.authorizer"]


async def test_a_loop_that_does_not_answer_is_waited_for_five_seconds(
    monkeypatch: pytest.MonkeyPatch,
):
    under_way = 0
    most = 0

    async def call(loop: object, ask: Any) -> Any:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            under_way -= 1

    monkeypatch.setattr(http_access, "call_on", call)
    asked = access(security(), Rules())
    sender = Sender("User:a", Rules())
    begun_s = asyncio.get_running_loop().time()
    questions = [asked.require(sender, Operation.DESCRIBE) for _ in range(20)]
    refused = await asyncio.gather(*questions, return_exceptions=True)
    assert {(each.status, str(each)) for each in refused} == {(503, "the node is busy")}  # type: ignore[union-attr]
    assert most == 16
    assert asyncio.get_running_loop().time() - begun_s == pytest.approx(10)


# -- settings --------------------------------------------------------------------------------------


def test_settings_without_tls():
    made = HttpSecurity.of(config(open_paths="/metrics", authentication="BASIC"))
    assert (made.contexts, made.tokens, made.methods) == (None, None, ("BASIC",))
    assert made.open_paths == {"/metrics"}
    assert (made.refusal_delay_s, made.max_log_lines) == (0.1, 100)
    assert HttpSecurity.of(config()).open_paths == {"/healthz", "/readyz"}


@pytest.mark.parametrize(
    ("changed", "key", "complaint"),
    [
        ({"ssl_client_auth": "required"}, "ssl.keystore.location", "ssl.client.auth is about"),
        ({"ssl_principal_mapping_rules": "RULE:"}, "ssl.principal.mapping.rules", "RULE:"),
        ({"ssl_keystore_location": "/no/such.pem"}, "listener", "/no/such.pem: No such file"),
        ({"sasl_oauthbearer_expected_issuer": "x"}, "authentication", "needs BEARER"),
    ],
)
def test_settings_that_cannot_work(changed: dict[str, str], key: str, complaint: str):
    with pytest.raises(ConfigError) as refused:
        HttpSecurity.of(config(**changed))
    assert refused.value.key == f"moldau.http.{key}"
    assert complaint in str(refused.value)


# -- handshakes ------------------------------------------------------------------------------------


class Handshakes:
    """Under way, by host."""

    def __init__(self) -> None:
        self.served = HttpHandshakes(None, AuthenticationLog(ManualClock(), 100))  # type: ignore[arg-type]

    def begin(self, host: str) -> asyncio.Task[None]:
        async def shake() -> None:
            await asyncio.get_running_loop().create_future()

        task = asyncio.get_running_loop().create_task(shake())
        assert self.served.begin(host, task)
        return task


async def test_a_handshake_always_finds_a_place(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(http_access, "MAX_HANDSHAKES", 4)
    monkeypatch.setattr(http_access, "MAX_HANDSHAKES_PER_HOST", 3)
    handshakes = Handshakes()
    other = handshakes.begin("10.0.0.6")
    own = []
    for _ in range(5):
        await pass_time(10)
        own.append(handshakes.begin(HOST))
    third = handshakes.begin("10.0.0.7")
    await pass_time(10)
    assert [each.done() for each in (other, *own, third)] == [0, 1, 1, 1, 0, 0, 0]
    assert lines(caplog) == ["too many TLS handshakes at once"]
    for each in (other, *own, third):
        each.cancel()
    await pass_time(10)
    again = [handshakes.begin(HOST) for _ in range(3)]
    await pass_time(10)
    assert not any(each.done() for each in again)
    for each in again:
        each.cancel()
    await pass_time(10)


async def test_how_handshakes_fail(caplog: pytest.LogCaptureFixture):
    served = Handshakes().served
    assert served.timeout_ms == 5_000
    served.end(HOST, None, is_late=False)
    served.end(HOST, ConnectionResetError(), is_late=False)
    assert lines(caplog) == []
    served.end(HOST, TimeoutError(), is_late=True)
    error = ssl.SSLError(1, "x")
    error.reason = "OTHER"
    served.end(HOST, error, is_late=False)
    assert lines(caplog) == ["no TLS handshake within 5000 ms", "no TLS connection (OTHER)"]
