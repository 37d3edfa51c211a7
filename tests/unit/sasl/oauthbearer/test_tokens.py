"""OAUTHBEARER tokens: when the next one is asked for, and what is no token."""

from __future__ import annotations

import asyncio
import json
import random
from base64 import urlsafe_b64encode
from typing import Any

import pytest

from moldau.config.backoff import Backoff
from moldau.runtime.authentication import AuthenticationError, SecuritySettingError
from moldau.sasl.oauthbearer.exchanges import OAuthBearerClient
from moldau.sasl.oauthbearer.tokens import (
    RENEWAL_PATIENCE_S,
    CachedTokens,
    OAuthBearerToken,
    RefreshRules,
    from_function,
    token_of,
)
from tests.kit.manual_clock import ManualClock


def jwt(**claims: Any) -> str:
    body = urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    return f"e30.{body}.x"


def test_the_end_of_a_jwt_is_read_off_it():
    assert token_of(jwt(exp=7)).expires_at_ms == 7_000
    assert token_of("opaque").expires_at_ms is None
    assert token_of("a.b.c").expires_at_ms is None
    assert "opaque" not in repr(token_of("opaque"))


async def test_a_token_is_shared_until_most_of_its_time_is_over():
    clock = ManualClock()
    asked: list[int] = []

    def provider() -> OAuthBearerToken:
        asked.append(clock.now_ms())
        return OAuthBearerToken(f"t{len(asked)}", clock.now_ms() + 1_000_000)

    tokens = CachedTokens(from_function(provider), clock, random.Random(1), RefreshRules())
    assert (await tokens()).value == "t1"
    clock.advance(690_000)
    assert (await tokens()).value == "t1"
    # 300 seconds before its end at the latest.
    clock.advance(20_000)
    assert (await tokens()).value == "t2"


class Endpoint:
    """Gives tokens of 100 seconds, or fails; with `gate` closed it hangs."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.asked = 0
        self.is_down = False
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self) -> OAuthBearerToken:
        self.asked += 1
        number = self.asked
        await self.gate.wait()
        if self.is_down:
            raise AuthenticationError(f"down {number}")
        return OAuthBearerToken(f"t{number}", self.clock.now_ms() + 100_000)


RULES = RefreshRules(0.8, 0.0, 0, 0)


async def test_one_request_is_under_way_however_many_ask():
    endpoint = Endpoint(ManualClock())
    tokens = CachedTokens(endpoint, endpoint.clock, random.Random(1), RULES)
    endpoint.gate.clear()
    callers = [asyncio.create_task(tokens()) for _ in range(20)]
    await asyncio.sleep(0)
    callers[0].cancel()
    endpoint.gate.set()
    given = await asyncio.gather(*callers, return_exceptions=True)
    assert isinstance(given[0], asyncio.CancelledError)
    assert [each.value for each in given[1:]] == ["t1"] * 19
    assert endpoint.asked == 1


async def test_the_old_token_is_used_until_its_end_while_there_is_no_new_one(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = Endpoint(clock := ManualClock())
    tokens = CachedTokens(endpoint, clock, random.Random(1), RULES)
    assert (await tokens()).value == "t1"
    clock.advance(80_000)
    endpoint.is_down = True
    assert [(await tokens()).value, (await tokens()).value] == ["t1", "t1"]
    assert endpoint.asked == 3
    warnings = [each.getMessage() for each in caplog.records]
    assert warnings == ["no new token, the last one is good for 20 s more: down 2"]
    # An endpoint that hangs holds up no login for long.
    monkeypatch.setattr("moldau.sasl.oauthbearer.tokens.RENEWAL_PATIENCE_S", 0.0)
    endpoint.gate.clear()
    assert (await tokens()).value == "t1"
    assert (await tokens()).value == "t1"
    assert endpoint.asked == 4
    endpoint.is_down = False
    endpoint.gate.set()
    monkeypatch.undo()
    assert (await tokens()).value == "t4"
    clock.advance(100_000)
    endpoint.is_down = True
    with pytest.raises(AuthenticationError, match="down"):
        await tokens()


async def test_a_source_that_fails_is_asked_again_after_a_pause():
    endpoint = Endpoint(clock := ManualClock())
    tokens = CachedTokens(endpoint, clock, random.Random(1), RULES, Backoff(100, 200))
    endpoint.is_down = True
    for pause_ms, number in ((100, 1), (200, 2), (200, 3)):
        for _ in range(3):
            with pytest.raises(AuthenticationError, match=f"down {number}"):
                await tokens()
        assert endpoint.asked == number
        clock.advance(pause_ms)
    endpoint.is_down = False
    assert (await tokens()).value == "t4"
    clock.advance(80_000)
    endpoint.is_down = True
    assert [(await tokens()).value for _ in range(3)] == ["t4"] * 3
    assert endpoint.asked == 5


async def test_without_an_end_each_connection_asks():
    clock = ManualClock()
    values = iter(["one", "two", "three"])

    async def provider() -> str:
        return next(values)

    tokens = CachedTokens(from_function(provider), clock, random.Random(1), RefreshRules())
    assert [(await tokens()).value, (await tokens()).value] == ["one", "two"]
    clock.set_wall_clock(clock.now_ms() - 3_600_000)
    assert (await tokens()).value == "three"


async def test_what_is_no_token():
    clock = ManualClock()
    rules = RefreshRules()
    for given, reason in ((7, "returned a int"), ("", "returned a str")):
        tokens = CachedTokens(
            from_function(lambda given=given: given), clock, random.Random(1), rules
        )
        with pytest.raises(AuthenticationError, match=reason):
            await tokens()
    old = OAuthBearerToken("old", clock.now_ms() - 1)
    tokens = CachedTokens(from_function(lambda: old), clock, random.Random(1), rules)
    with pytest.raises(AuthenticationError, match="expired already"):
        await tokens()


def test_messages():
    token = OAuthBearerToken("abc", extensions=(("logicalCluster", "lkc-1"),))
    exchange = OAuthBearerClient(token)
    assert exchange.first() == b"n,,\x01auth=Bearer abc\x01logicalCluster=lkc-1\x01\x01"
    assert exchange.answer(b"") is None
    assert exchange.is_complete
    assert exchange.answer(b'{"status":"invalid_token"}') == b"\x01"
    assert not exchange.is_complete
    with pytest.raises(AuthenticationError, match="invalid_token"):
        exchange.answer(b"more")
    for bad in (
        OAuthBearerToken("a b"),
        OAuthBearerToken("a", extensions=(("auth", "x"),)),
        OAuthBearerToken("a", extensions=(("x-y", "x"),)),
        OAuthBearerToken("a", extensions=(("x", "\x01"),)),
    ):
        with pytest.raises(SecuritySettingError):
            OAuthBearerClient(bad)


class Dice(random.Random):
    """Draws the most there is, and remembers between what."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[tuple[float, float]] = []

    def uniform(self, a: float, b: float) -> float:
        self.drawn.append((a, b))
        return b


@pytest.mark.parametrize(
    ("life_s", "rules", "asked_again_s"),
    [
        (1_000, RefreshRules(0.8, 0.05, 60, 100), 850),
        (1_000, RefreshRules(0.8, 0.0, 60, 200), 800),
        (1_000, RefreshRules(0.8, 0.05, 60, 300), 700),
        (1_000, RefreshRules(0.1, 0.0, 400, 300), 400),
        (1_000, RefreshRules(0.1, 0.0, 700, 300), 700),
        (1_000, RefreshRules(0.5, 0.0, 701, 300), 500),
        (1_000, RefreshRules(1.0, 0.25, 0, -500), 1_000),
    ],
)
async def test_when_another_token_is_asked_for(
    life_s: int, rules: RefreshRules, asked_again_s: int
):
    """A share of its life, not sooner than the least period, not later than the buffer before its
    end; where the two contradict each other neither counts.
    """
    clock, dice = ManualClock(), Dice()
    asked: list[int] = []

    def provider() -> OAuthBearerToken:
        asked.append(clock.now_ms())
        return OAuthBearerToken("t", clock.now_ms() + life_s * 1000)

    tokens = CachedTokens(from_function(provider), clock, dice, rules)
    await tokens()
    assert dice.drawn == [(0, rules.window_jitter)]
    clock.advance(asked_again_s * 1000 - 1)
    await tokens()
    assert len(asked) == 1
    clock.advance(1)
    await tokens()
    assert len(asked) == 2


@pytest.mark.parametrize(("left_ms", "is_good"), [(1, True), (0, False), (-5, False)])
async def test_a_token_that_is_over_when_it_comes_is_refused(left_ms: int, is_good: bool):
    clock = ManualClock()
    source = from_function(lambda: OAuthBearerToken("t", clock.now_ms() + left_ms))
    tokens = CachedTokens(source, clock, random.Random(1), RefreshRules())
    if is_good:
        assert (await tokens()).value == "t"
    else:
        with pytest.raises(AuthenticationError, match="has expired already"):
            await tokens()


async def test_the_end_of_what_is_no_token_of_three_parts_is_unknown():
    for value in ("a.b", "a.b.c.d", "e30.e30.x", jwt(exp="soon"), jwt(exp=None)):
        assert token_of(value).expires_at_ms is None
    named = OAuthBearerToken(" x ", None, (("a", "b"),))
    assert token_of(jwt(exp=1), named).extensions == (("a", "b"),)
    assert token_of(f" {jwt(exp=1)} ").expires_at_ms == 1_000


@pytest.mark.parametrize(("left_ms", "is_used"), [(1, True), (0, False)])
async def test_in_a_pause_the_last_token_is_used_to_its_very_end(
    left_ms: int, is_used: bool
) -> None:
    endpoint = Endpoint(clock := ManualClock())
    tokens = CachedTokens(endpoint, clock, random.Random(1), RULES, Backoff(50_000, 50_000))
    await tokens()
    clock.advance(80_000)
    endpoint.is_down = True
    assert (await tokens()).value == "t1"
    clock.advance(20_000 - left_ms)
    if is_used:
        assert (await tokens()).value == "t1"
    else:
        with pytest.raises(AuthenticationError, match="down 2"):
            await tokens()
    assert endpoint.asked == 2


@pytest.mark.parametrize(("left_ms", "warnings"), [(1_000, 1), (1, 1), (0, 0), (-1_000, 0)])
async def test_that_the_last_token_is_still_good_is_said_only_while_it_is(
    caplog: pytest.LogCaptureFixture, left_ms: int, warnings: int
) -> None:
    endpoint = Endpoint(clock := ManualClock())
    tokens = CachedTokens(endpoint, clock, random.Random(1), RULES)
    await tokens()
    endpoint.is_down = True
    clock.advance(100_000 - left_ms)
    if left_ms > 0:
        await tokens()
    else:
        with pytest.raises(AuthenticationError, match="down 2"):
            await tokens()
    assert len(caplog.records) == warnings


async def test_without_a_first_token_no_last_one_is_spoken_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    endpoint = Endpoint(ManualClock())
    endpoint.is_down = True
    tokens = CachedTokens(endpoint, endpoint.clock, random.Random(1), RULES)
    for number in (1, 2):
        with pytest.raises(AuthenticationError, match=f"down {number}"):
            await tokens()
    assert caplog.records == []


async def test_a_request_that_is_ended_is_no_failure() -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: told.append(context))
    endpoint = Endpoint(ManualClock())
    tokens = CachedTokens(endpoint, endpoint.clock, random.Random(1), RULES, Backoff(100, 200))
    endpoint.gate.clear()
    caller = asyncio.create_task(tokens())
    await asyncio.sleep(0)  # it asks
    await asyncio.sleep(0)  # and is under way
    assert endpoint.asked == 1
    assert tokens._renewal is not None
    tokens._renewal.cancel()
    await asyncio.wait((caller,))
    assert tokens._renewal is None
    endpoint.gate.set()
    assert (await tokens()).value == "t2"
    assert told == []


@pytest.mark.parametrize(
    ("challenge", "told"),
    [
        (b'{"status": "invalid_token"}', "invalid_token"),
        (b'{"error": "x"}', '{"error": "x"}'),
        (b"[1]", "[1]"),
        (b"no JSON", "no JSON"),
        (b"\xff", "\ufffd"),
    ],
)
def test_what_a_broker_says_of_a_token_is_in_the_error(challenge: bytes, told: str) -> None:
    exchange = OAuthBearerClient(OAuthBearerToken("abc"))
    assert exchange.is_complete
    assert exchange.answer(challenge) == b"\x01"
    assert not exchange.is_complete
    with pytest.raises(AuthenticationError) as refused:
        exchange.answer(challenge)
    assert str(refused.value) == f"OAUTHBEARER: {told}"


async def test_a_success_ends_a_row_of_failures(caplog: pytest.LogCaptureFixture) -> None:
    endpoint = Endpoint(clock := ManualClock())
    tokens = CachedTokens(endpoint, clock, random.Random(1), RULES, Backoff(100, 1_000))
    for number in range(1, 4):
        endpoint.is_down = False
        before = endpoint.asked
        await tokens()
        assert endpoint.asked == before + 1
        clock.advance(80_000)
        endpoint.is_down = True
        for pause_ms in (100, 200):
            before = endpoint.asked
            await tokens()
            clock.advance(pause_ms - 1)
            await tokens()
            assert endpoint.asked == before + 1
            clock.advance(1)
        assert len(caplog.records) == number, "said once for each row of failures"


async def test_a_success_needs_no_pauses() -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: told.append(context))
    endpoint = Endpoint(ManualClock())
    tokens = CachedTokens(endpoint, endpoint.clock, random.Random(1), RULES)
    assert (await tokens()).value == "t1"
    await asyncio.sleep(0)
    assert told == []


@pytest.mark.parametrize(
    ("left_ms", "waits_s"), [(20_000, RENEWAL_PATIENCE_S), (400, 0.1), (4, 0.001)]
)
async def test_a_login_waits_for_a_newer_token_a_quarter_of_what_the_last_one_has_left(
    monkeypatch: pytest.MonkeyPatch, left_ms: int, waits_s: float
) -> None:
    waited: list[float] = []

    async def wait(tasks: Any, **limit: float) -> None:
        waited.append(limit["timeout"])

    endpoint = Endpoint(clock := ManualClock())
    tokens = CachedTokens(endpoint, clock, random.Random(1), RULES)
    await tokens()
    clock.advance(100_000 - left_ms)
    monkeypatch.setattr(asyncio, "wait", wait)
    assert (await tokens()).value == "t1"
    monkeypatch.undo()
    assert waited == [waits_s]
    assert tokens._renewal is not None
    await tokens._renewal


@pytest.mark.parametrize("name", ["", "a", "ab", "abc"])
@pytest.mark.parametrize("signature", ["", "x", "xy", "xyz", "wxyz"])
def test_the_end_of_a_jwt_is_read_whatever_its_length(name: str, signature: str) -> None:
    header, body, _ = jwt(exp=7, sub=name).split(".")
    assert token_of(f"{header}.{body}.{signature}").expires_at_ms == 7_000
