"""SCRAM keys of delegation tokens: who they are for, how long, and how many are kept."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import pytest

from moldau.config.definition import Password
from moldau.metadata.image.security import DelegationToken
from moldau.metadata.scram_users import InventedUsers
from moldau.metadata.token_secrets import TokenSecrets
from moldau.node import token_credentials
from moldau.node.token_credentials import TokenCredentials
from moldau.protocol.scram import KnownKeys
from moldau.sasl.mechanism import Postponed, SaslRefused
from moldau.sasl.scram import ScramClient, ScramServer
from tests.kit.manual_clock import ManualClock

NOW_MS = 1_700_000_000_000
SECRETS = TokenSecrets(Password("key"))
INVENTED = InventedUsers()


def salt_of(mechanism: str, token_id: str) -> bytes:
    return INVENTED.token_keys(mechanism, token_id).salt


def token(left_ms: int = 1_000, max_left_ms: int = 5_000) -> DelegationToken:
    return DelegationToken(
        "User:bob", "User:eve", (), NOW_MS - 10, NOW_MS + max_left_ms, NOW_MS + left_ms
    )


class Making:
    """The thread: every call waits until it is let through."""

    def __init__(self, *, is_open: bool = True) -> None:
        self.names: list[str] = []
        self.gate = asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []
        if is_open:
            self.gate.set()

    async def offload(self, function: Callable[..., Any], *args: Any) -> Any:
        self.names.append(args[-1])
        await self.gate.wait()
        return function(*args)

    def start(self, work: Any) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    async def run(self) -> None:
        for task in self.tasks:
            await task


def credentials(making: Making | None = None, **tokens: DelegationToken) -> TokenCredentials:
    making = making or Making()
    return TokenCredentials(
        SECRETS, lambda: tokens, ManualClock(NOW_MS), making.offload, making.start, salt_of
    )


async def found(find: TokenCredentials, mechanism: str, token_id: str) -> KnownKeys | None:
    """What a login finds, after its wait if it has one."""
    try:
        return find(mechanism, token_id)
    except Postponed as postponed:
        wait = postponed.wait
    assert await wait(lambda: False)
    return find(mechanism, token_id)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_the_hmac_is_the_password(mechanism: str) -> None:
    find = credentials(a=token())
    hash_name = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}[mechanism]

    def keys_of(name: str, is_token: bool) -> KnownKeys:
        found = find(mechanism, name) if is_token else None
        return found or KnownKeys(INVENTED.token_keys(mechanism, name), None)

    def log_in(password: str, **extensions: str) -> object:
        exchange = ScramServer(hash_name, keys_of, "of-the-server")
        client = ScramClient(hash_name, "a", password, "of-the-client", extensions)
        proof = client.answer(exchange.step(client.first()))  # type: ignore[arg-type]
        assert proof is not None
        return exchange.step(proof)

    password = b64encode(SECRETS.hmac_of("a")).decode()
    await found(find, mechanism, "a")
    for value in ("true", "TRUE"):
        accepted = log_in(password, tokenauth=value)
        assert (accepted.user, accepted.left_ms, accepted.is_token) == ("bob", 1_000.0, True)  # type: ignore[attr-defined]
    for wrong, extensions in (("x", {"tokenauth": "true"}), (password, {}), (password, {"x": "y"})):
        with pytest.raises(SaslRefused):
            log_in(wrong, **extensions)


async def test_a_token_has_the_salt_that_its_id_would_have_without_it() -> None:
    known = await found(credentials(a=token()), "SCRAM-SHA-256", "a")
    unknown = INVENTED.token_keys("SCRAM-SHA-256", "a")
    assert known is not None
    assert (known.keys.salt, known.keys.iterations) == (unknown.salt, unknown.iterations)
    assert len(known.keys.salt) == 32


async def test_a_postponed_exchange_goes_on_with_the_same_message() -> None:
    find = credentials(a=token())
    exchange = ScramServer("sha256", lambda name, is_token: find("SCRAM-SHA-256", name), "n")  # type: ignore[arg-type, return-value]
    password = b64encode(SECRETS.hmac_of("a")).decode()
    client = ScramClient("sha256", "a", password, "c", {"tokenauth": "true"})
    first = client.first()
    with pytest.raises(Postponed):
        exchange.step(first)
    await found(find, "SCRAM-SHA-256", "a")
    proof = client.answer(exchange.step(first))  # type: ignore[arg-type]
    assert proof is not None
    assert exchange.step(proof).user == "bob"  # type: ignore[union-attr]


async def test_a_cancelled_login_leaves_the_others_their_turn() -> None:
    making = Making(is_open=False)
    find = credentials(making, a=token(), b=token())
    logins = [asyncio.ensure_future(found(find, "SCRAM-SHA-256", each)) for each in "ab"]
    for _turn in range(2):
        await asyncio.sleep(0)
    assert making.names == ["a"], "its keys are being made"
    logins[0].cancel()
    making.gate.set()
    await making.run()
    assert await logins[1] is not None


async def test_a_token_is_good_at_the_last_message_too(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = {"a": token(), "b": token()}
    making, clock = Making(), ManualClock(NOW_MS)
    find = TokenCredentials(SECRETS, lambda: tokens, clock, making.offload, making.start, salt_of)
    password = b64encode(SECRETS.hmac_of("a")).decode()

    def keys_of(name: str, is_token: bool) -> KnownKeys:
        none = KnownKeys(INVENTED.token_keys("SCRAM-SHA-256", name), None)
        return find("SCRAM-SHA-256", name) or none

    async def proved() -> tuple[ScramServer, bytes]:
        await found(find, "SCRAM-SHA-256", "a")
        exchange = ScramServer("sha256", keys_of, "of-the-server")
        client = ScramClient("sha256", "a", password, "c", {"tokenauth": "true"})
        proof = client.answer(exchange.step(client.first()))  # type: ignore[arg-type]
        assert proof is not None
        return exchange, proof

    exchange, proof = await proved()
    clock.advance(600)
    assert exchange.step(proof).left_ms == 400  # type: ignore[union-attr]
    # Its keys were dropped in between: the same message comes again when they are loaded.
    exchange, proof = await proved()
    monkeypatch.setattr(token_credentials, "MAX_KEYS", 1)
    await found(find, "SCRAM-SHA-256", "b")
    with pytest.raises(Postponed):
        exchange.step(proof)
    await found(find, "SCRAM-SHA-256", "a")
    assert exchange.step(proof).user == "bob"  # type: ignore[union-attr]
    exchange, proof = await proved()
    clock.advance(400)
    with pytest.raises(SaslRefused, match="the token has ended"):
        exchange.step(proof)
    tokens["a"] = token(10_000, 10_000)
    exchange, proof = await proved()
    del tokens["a"]
    with pytest.raises(SaslRefused, match="the token has ended"):
        exchange.step(proof)


async def test_tokens_past_their_end_have_no_keys() -> None:
    making = Making()
    find = credentials(making, over=token(0), ended=token(1_000, -1), good=token())
    assert find("SCRAM-SHA-256", "over") is None
    assert find("SCRAM-SHA-256", "ended") is None
    assert find("SCRAM-SHA-256", "gone") is None
    assert making.names == []
    assert await found(find, "SCRAM-SHA-256", "good") is not None
    off = TokenCredentials(
        TokenSecrets(None),
        lambda: {"a": token()},
        ManualClock(NOW_MS),
        making.offload,
        making.start,
        salt_of,
    )
    assert off("SCRAM-SHA-256", "a") is None


async def test_keys_are_made_once_and_not_all_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_credentials, "MAX_KEYS", 2)
    find = credentials(a=token(), b=token(), c=token())
    first = await found(find, "SCRAM-SHA-256", "a")
    assert first is not None
    assert "[hidden]" in repr(first)
    assert find("SCRAM-SHA-256", "a") == first
    for name in "bc":
        await found(find, "SCRAM-SHA-256", name)
    again = await found(find, "SCRAM-SHA-256", "a")
    assert again is not None
    assert again.keys is not first.keys


class Logins:
    """Logins that wait, each in its own task; `resumed` has those that went on, in order."""

    def __init__(self, find: TokenCredentials) -> None:
        self._find = find
        self._tasks: list[asyncio.Task[None]] = []
        self.resumed: list[str] = []

    def wait(self, token_id: str, is_gone: Callable[[], bool] = lambda: False) -> None:
        with pytest.raises(Postponed) as raised:
            self._find("SCRAM-SHA-256", token_id)

        async def wait() -> None:
            assert await raised.value.wait(is_gone)
            self.resumed.append(token_id)

        self._tasks.append(asyncio.get_running_loop().create_task(wait()))

    async def end(self) -> None:
        for task in self._tasks:
            await task


async def test_many_logins_cause_one_making_and_one_runs_at_a_time() -> None:
    making = Making(is_open=False)
    find = credentials(making, a=token(), b=token())
    logins = Logins(find)
    for _ in range(120):
        for name in "ab":
            logins.wait(name)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(making.tasks) == 1
    assert (making.names, logins.resumed) == (["a"], [])
    making.gate.set()
    await logins.end()
    assert making.names == ["a", "b"]
    assert logins.resumed == ["a"] * 120 + ["b"] * 120
    # What has ended begins again.
    again = credentials(making, a=token())
    assert await found(again, "SCRAM-SHA-256", "a") is not None


async def test_no_keys_are_made_for_clients_that_are_gone() -> None:
    making = Making(is_open=False)
    find = credentials(making, a=token(), b=token(), c=token())
    gone = [False]
    logins = Logins(find)
    logins.wait("a")
    logins.wait("b", lambda: gone[0])
    logins.wait("c", lambda: gone[0])
    logins.wait("c")
    await asyncio.sleep(0)
    gone[0] = True
    making.gate.set()
    await logins.end()
    assert making.names == ["a", "c"]
    assert logins.resumed == ["a", "b", "c", "c"]  # each gives its frame back


async def test_only_so_many_logins_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_credentials, "MAX_WAITING", 2)
    making = Making()
    find = credentials(making, a=token(), b=token())
    logins = Logins(find)
    for name in "ab":
        logins.wait(name)
    await asyncio.sleep(0)
    with pytest.raises(Postponed) as raised:
        find("SCRAM-SHA-256", "a")
    assert not await raised.value.wait(lambda: False)
    await logins.end()
    assert find("SCRAM-SHA-256", "b") is not None


async def test_logins_with_one_token_leave_places_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(token_credentials, "MAX_WAITING", 4)
    making = Making(is_open=False)
    find = credentials(making, a=token(), b=token())
    logins = Logins(find)
    for name in "aab":
        logins.wait(name)
    await asyncio.sleep(0)
    for name in "ab":
        with pytest.raises(Postponed) as raised:
            find("SCRAM-SHA-256", name)
        if name == "a":
            assert not await raised.value.wait(lambda: False)
    assert find._places.held == 3
    making.gate.set()
    await logins.end()
    assert find._places.held == 0


async def test_a_login_whose_keys_are_dropped_at_once_waits_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(token_credentials, "MAX_KEYS", 1)
    making = Making()
    find = credentials(making, a=token(), b=token())

    async def log_in(name: str) -> KnownKeys | None:
        while True:
            try:
                return find("SCRAM-SHA-256", name)
            except Postponed as postponed:
                await postponed.wait(lambda: False)

    logins = [asyncio.create_task(log_in(name)) for name in "abab"]
    assert all([await login for login in logins])
    assert find._places.held == 0
