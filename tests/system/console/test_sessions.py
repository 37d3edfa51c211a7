"""Logging in at a secured node's console: own credentials, own rights, and an end."""

from __future__ import annotations

import asyncio

import pytest

from moldau.client import Admin, ScramDeletion, ScramUpsertion
from moldau.console import clients as pool
from moldau.console.tries import BURST_S, HOSTS_TRIES_PER_S
from tests.kit.waiting import until_async
from tests.system.console.site import PASSWORD, Site, basic

SESSION = "/api/v1/session"


async def log_in(site: Site, user: str, password: str = PASSWORD) -> tuple[dict[str, str], str]:
    """The cookie of a new session, as a header, and its request token."""
    body = {"username": user, "password": password}
    answer = await site.ask(SESSION, method="POST", body=body)
    assert answer.status == 200, answer.document
    [(name, value)] = answer.cookies.items()
    return {"Cookie": f"{name}={value}"}, answer.document["request_token"]


async def test_a_page_learns_that_people_log_in(secure_site: Site) -> None:
    answer = await secure_site.ask(SESSION)
    assert answer.status == 200
    shown = answer.document
    assert shown["login"] == ["password"]
    assert (shown["is_logged_in"], shown["cluster_id"], shown["request_token"]) == (
        False,
        None,
        None,
    )
    assert shown["served_from"] == "node"


async def test_a_session_acts_as_its_person(secure_site: Site) -> None:
    answer = await secure_site.ask(
        SESSION, method="POST", body={"username": "alice", "password": PASSWORD}
    )
    cookie = answer.headers["Set-Cookie"]
    port = secure_site.address.rpartition(":")[2]
    assert cookie.startswith(f"moldau-session-{port}=")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
    assert "Secure" not in cookie  # without TLS a browser would not send it back
    header, token = await log_in(secure_site, "alice")
    shown = (await secure_site.ask(SESSION, header)).document
    assert shown["principal"] == "User:alice"
    assert shown["is_logged_in"]
    assert not shown["is_anonymous"]
    assert shown["request_token"] == token
    assert len(shown["cluster_id"]) == 22
    assert shown["is_ours"]
    assert shown["features"]["metadata.version"] > 0


async def test_a_logout_forgets(secure_site: Site) -> None:
    header, token = await log_in(secure_site, "alice")
    refused = await secure_site.ask(SESSION, header, method="DELETE")
    assert refused.status == 403, "without the token"
    ended = await secure_site.ask(
        SESSION, {**header, "X-Moldau-Request-Token": token}, method="DELETE"
    )
    assert ended.status == 204
    assert "Max-Age=0" in ended.headers["Set-Cookie"]
    assert not (await secure_site.ask(SESSION, header)).document["is_logged_in"]


async def test_another_login_ends_the_session_of_the_same_browser(secure_site: Site) -> None:
    header, _ = await log_in(secure_site, "alice")
    body = {"username": "bob", "password": PASSWORD}
    assert (await secure_site.ask(SESSION, header, method="POST", body=body)).status == 200
    assert not (await secure_site.ask(SESSION, header)).document["is_logged_in"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"username": "alice", "password": "wrong"}, 401),
        ({"username": "no-such-user", "password": PASSWORD}, 401),
        ({"username": "alice"}, 422),
        ({"token": "abc"}, 422),
        ({"username": "alice", "password": PASSWORD, "token": "abc"}, 422),
        ({}, 422),
        ([], 422),
        ({"username": "a\0b", "password": PASSWORD}, 401),
        ({"username": 1, "password": PASSWORD}, 422),
    ],
)
async def test_wrong_logins_are_refused(secure_site: Site, body: object, status: int) -> None:
    async def refused() -> bool:
        answer = await secure_site.ask(SESSION, method="POST", body=body)
        assert answer.status in (status, 429), answer.document
        assert "Set-Cookie" not in answer.headers
        return answer.status == status

    await until_async(refused, what="room for another try")


async def test_guessing_is_slowed_down(secure_site: Site) -> None:
    burst = int(BURST_S * HOSTS_TRIES_PER_S)
    answers = await asyncio.gather(
        *(secure_site.ask(SESSION, basic("alice", f"guess-{each}")) for each in range(3 * burst))
    )
    assert {each.status for each in answers} <= {401, 429}
    slowed = [each for each in answers if each.status == 429]
    assert slowed
    assert slowed[0].headers["Retry-After"] == "1"

    async def is_let_in() -> bool:
        return (await secure_site.ask(SESSION, basic("carol"))).status == 200

    await until_async(is_let_in, what="room for the right password")


async def test_clients_of_rest_show_their_credentials(secure_site: Site) -> None:
    async def principal() -> object:
        return (await secure_site.ask(SESSION, basic("alice"))).document.get("principal")

    await until_async(principal, what="room for another try")
    assert await principal() == "User:alice"


async def test_a_session_ends_with_its_users_credentials(
    secure_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs in this process, where the pause between two looks at credentials can be none."""
    from moldau.console.people import Person, Way
    from moldau.console.problems import Problem
    from moldau.console.sessions import Sessions
    from moldau.console.settings import ConsoleSettings
    from moldau.console.tries import Tries

    monkeypatch.setattr(pool, "RECHECK_S", 0.0)
    properties = secure_site.cluster.client_properties
    settings = ConsoleSettings(Way(properties, ("SCRAM-SHA-512",)), needs_login=True)
    sessions = Sessions(settings.now_s)
    clients = pool.ClientPool(settings, sessions, Tries(settings.now_s))
    dave = Person("password", "dave", PASSWORD)
    async with Admin(config=properties) as admin:
        await admin.alter_user_scram_credentials([ScramUpsertion("dave", PASSWORD)])
        text, _ = sessions.open(dave, "User:dave")
        async with clients.of(dave, "") as own:
            assert (await own.facts()).is_ours is False, "it may not describe brokers"
        await admin.alter_user_scram_credentials([ScramDeletion("dave")])

        async def is_refused() -> bool:
            try:
                async with clients.of(dave, ""):
                    return False
            except Problem as problem:
                return problem.status == 401

        await until_async(is_refused, what="the broker to know that the user is gone")
    assert sessions.find(text) is None
    assert own.is_refused
    await clients.close()
