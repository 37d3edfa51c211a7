"""When an endpoint of keys is asked, in virtual time, and what it says of the answers."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from moldau.config import ConfigError
from moldau.sasl.oauthbearer.jwks import (
    URL_KEY,
    EndpointSettings,
    KeyEndpoint,
    KeySetError,
    _KeysRefused,
)
from tests.kit.manual_clock import ManualClock
from tests.unit.sasl.oauthbearer.test_jwks import key_set, names, unreal
from tests.virtual.machine import pass_time

pytestmark = [pytest.mark.virtual_too, pytest.mark.asyncio(loop_factories=["virtual"])]


def now_ms() -> float:
    return asyncio.get_running_loop().time() * 1000


class Scripted:
    """Answers an endpoint's requests, the last answer again and again; `asked_ms` is when they
    came.
    """

    def __init__(self, *answers: bytes | Exception) -> None:
        self.answers = list(answers)
        self.asked_ms: list[float] = []

    async def __call__(self, session: object) -> bytes:
        self.asked_ms.append(now_ms())
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def pauses_ms(self) -> list[int]:
        return [round(b - a) for a, b in itertools.pairwise(self.asked_ms)]


@asynccontextmanager
async def scripted(script: Scripted, **settings: Any) -> AsyncIterator[KeyEndpoint]:
    source = KeyEndpoint(EndpointSettings("http://x/keys", **settings), ManualClock())
    source._fetch = script  # type: ignore[method-assign]
    await source.start()
    try:
        yield source
    finally:
        await source.close()


async def test_failures_are_tried_again_after_pauses_that_grow_and_begin_again() -> None:
    down = KeySetError("down")
    script = Scripted(down, down, down, down, key_set("a"), down, down, key_set("a"), key_set("b"))
    async with scripted(
        script, refresh_ms=60_000, retry_backoff_ms=100, retry_backoff_max_ms=300
    ) as source:
        assert (names(source), len(script.asked_ms)) == ([], 1)
        await pass_time(400_000)
        assert names(source) == ["b"]
    assert script.pauses_ms[:8] == [100, 200, 300, 300, 60_000, 100, 200, 60_000]


@pytest.mark.parametrize("answer", [key_set("a"), KeySetError("down")], ids=["read", "failed"])
async def test_a_pause_is_one_millisecond_at_least(answer: bytes | Exception) -> None:
    script = Scripted(answer)
    async with scripted(script, refresh_ms=0, retry_backoff_ms=0, retry_backoff_max_ms=0):
        await pass_time(10)
    assert set(script.pauses_ms) == {1}


async def test_a_missing_key_ends_the_pause_and_is_forgotten_once_it_has_come() -> None:
    script = Scripted(key_set("a"), key_set("a", "b"))
    async with scripted(script, refresh_ms=60_000) as source:
        await pass_time(1_000)
        source.is_missing("c")
        source.is_missing("b")
        await pass_time(1_000)
        assert names(source) == ["a", "b"]
        assert list(source._missing) == ["c"]
        await pass_time(60_000)
    assert script.pauses_ms == [1_000, 60_000]


async def test_a_key_without_an_id_is_none_that_was_missing() -> None:
    nameless = json.dumps({"keys": [unreal(2_048)]}).encode()
    async with scripted(Scripted(nameless), refresh_ms=60_000) as source:
        assert names(source) == [None]


async def test_a_fault_of_the_renewal_itself_is_reported_and_ends_the_start() -> None:
    loop = asyncio.get_running_loop()
    told: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _loop, context: told.append(context))
    fault = RuntimeError("a fault")
    before = asyncio.all_tasks()
    source = KeyEndpoint(EndpointSettings("http://x/keys"), ManualClock())
    source._fetch = Scripted(fault)  # type: ignore[method-assign]
    await source.start()
    await pass_time(1)
    assert told == [
        {"message": "the renewal of bearer tokens' keys ended", "exception": fault},
    ]
    assert asyncio.all_tasks() == before, "nothing waits any more"


async def test_a_close_ends_the_renewal_and_reports_nothing() -> None:
    loop = asyncio.get_running_loop()
    told: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _loop, context: told.append(context))
    async with scripted(Scripted(key_set("a"))) as source:
        task = source._task
        assert task is not None
        await source.start()
        assert source._task is task, "it is under way"
        await source.close()
        assert task.cancelled()
        assert source._task is None
        assert names(source) == ["a"]
    await pass_time(1)
    assert told == []


async def test_a_refusal_that_ended_is_none_of_the_next_start() -> None:
    source = KeyEndpoint(EndpointSettings("http://x/keys"), ManualClock())
    refused, down = _KeysRefused("status 403"), KeySetError("down")
    script = Scripted(refused, down, refused, key_set("a"))
    source._fetch = script  # type: ignore[method-assign]
    with pytest.raises(ConfigError) as raised:
        await source.start()
    assert str(raised.value) == f"{URL_KEY}: http://x/keys: status 403"
    await pass_time(10_000)
    assert names(source) == ["a"]
    assert (source._refusal, source._failure) == (None, None)
    await source.close()


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        (["a", "a"], ["1 keys of"]),
        (["a", "b"], ["1 keys of", "1 keys of"]),
        (["a", "a b"], ["1 keys of", "2 keys of"]),
        (["down", "down", "a"], ["are not known", "1 keys of"]),
        (["a", "down", "down", "a"], ["1 keys of", "stay as they were", "1 keys of"]),
        (["down", "slow"], ["are not known", "are not known"]),
        (["", "a", "down"], ["1 keys of", "stay as they were"]),
    ],
)
async def test_what_changes_is_said(
    caplog: pytest.LogCaptureFixture, answers: list[str], said: list[str]
) -> None:
    caplog.set_level(logging.INFO)
    source = KeyEndpoint(EndpointSettings("http://x/keys"), ManualClock())
    failures = {"down", "slow"}
    script = Scripted(
        *(KeySetError(each) if each in failures else key_set(*each.split()) for each in answers)
    )
    source._fetch = script  # type: ignore[method-assign]
    for each in answers:
        assert await source._renew(None) is (each not in failures)  # type: ignore[arg-type]
    messages = [each.getMessage() for each in caplog.records if each.name.endswith("jwks")]
    assert len(messages) == len(said)
    for message, part in zip(messages, said, strict=True):
        assert part in message


class Session:
    """Remembers what is asked for, and answers with a fault."""

    def __init__(self, fault: Exception) -> None:
        self.fault = fault
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def get(self, url: str, **how: Any) -> Any:
        self.asked.append((url, how))
        raise self.fault


@pytest.mark.parametrize("is_own", [False, True])
async def test_one_request_goes_to_the_url_with_the_context_of_the_settings(is_own: bool) -> None:
    context = ssl.create_default_context() if is_own else None
    source = KeyEndpoint(EndpointSettings("https://x/keys", context=context), ManualClock())
    session = Session(OSError("no"))
    with pytest.raises(KeySetError, match=r"^no$"):
        await source._fetch(session)  # type: ignore[arg-type]
    [(url, how)] = session.asked
    assert url == "https://x/keys"
    assert how == {
        "ssl": context or True,
        "allow_redirects": False,
        "headers": {"Accept": "application/json", "Accept-Encoding": "identity"},
    }


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (aiohttp.ClientError("one\ntwo"), "one"),
        (OSError("x" * 201), "x" * 200),
        (ValueError(), "ValueError"),
        (aiohttp.ServerTimeoutError("x"), "no answer within 7 ms"),
        (TimeoutError(), "no answer within 7 ms"),
    ],
)
async def test_a_fault_of_a_request_is_one_short_line(fault: Exception, text: str) -> None:
    source = KeyEndpoint(EndpointSettings("http://x/keys", timeout_ms=7), ManualClock())
    with pytest.raises(KeySetError) as raised:
        await source._fetch(Session(fault))  # type: ignore[arg-type]
    assert str(raised.value) == text


async def test_a_session_keeps_no_connection_no_cookie_and_no_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[dict[str, Any]] = []
    make = aiohttp.ClientSession

    def session(**how: Any) -> aiohttp.ClientSession:
        made.append(how)
        return make(**how)

    monkeypatch.setattr(aiohttp, "ClientSession", session)
    source = KeyEndpoint(EndpointSettings("http://x/keys", timeout_ms=1_500), ManualClock())
    source._fetch = Scripted(key_set("a"))  # type: ignore[method-assign]
    await source.start()
    await source.close()
    [how] = made
    assert how["connector"].force_close is True
    assert isinstance(how["cookie_jar"], aiohttp.DummyCookieJar)
    assert how["timeout"] == aiohttp.ClientTimeout(total=1.5)
    assert how["auto_decompress"] is False
