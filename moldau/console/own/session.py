"""`/api/v1/session`: who asks, what this console is, logging in and out."""

from __future__ import annotations

import time
from typing import Any, Final

import moldau
from moldau.client import KafkaError
from moldau.console.calls import NO_CONTENT, Call, Reply
from moldau.console.guard import cookie_name
from moldau.console.people import OWN, PASSWORD, TOKEN, Person, expires_at_ms, principal_of
from moldau.console.problems import Problem
from moldau.console.routes import Route
from moldau.console.schemas import (
    BOOLEAN,
    INTEGER,
    STRING,
    array,
    mapping,
    named,
    nullable,
    one_of,
    record,
)
from moldau.console.sessions import LONGEST_S
from moldau.console.settings import COMMAND, NODE

OTHER_SOFTWARE: Final = "Apache Kafka (or other)"
MAX_TEXT: Final = 4_096
MAX_TOKEN: Final = 64 * 1024

SESSION: Final = named(
    "Session",
    record(
        {
            "cluster_id": nullable(STRING),
            "version": STRING,
            "principal": STRING,
            "is_anonymous": BOOLEAN,
            "is_logged_in": BOOLEAN,
            "login": array(one_of(PASSWORD, TOKEN)),
            "request_token": nullable(STRING),
            "is_ours": BOOLEAN,
            "software": STRING,
            "features": mapping(INTEGER),
            "has_registry": BOOLEAN,
            "read_only": BOOLEAN,
            "served_from": one_of(NODE, COMMAND),
            "limits": record({"records": INTEGER, "bytes": INTEGER, "seconds": INTEGER}),
            "problem": nullable(STRING),
        }
    ),
)
LOGIN: Final = record(
    {},
    {
        "username": {"type": "string", "minLength": 1, "maxLength": MAX_TEXT},
        "password": {"type": "string", "maxLength": MAX_TEXT},
        "token": {"type": "string", "minLength": 1, "maxLength": MAX_TOKEN},
    },
)


async def show(call: Call) -> Reply:
    """Who asks, and what this console is."""
    return Reply(await _document(call))


async def log_in(call: Call) -> Reply:
    """Begin a session with the person's own credentials, if the cluster takes them."""
    settings, sessions = call.site.settings, call.site.sessions
    if not settings.needs_login:
        raise Problem(409, "people do not log in here: all act as this console")
    person = _person(call)
    if person.kind not in settings.logins:
        raise Problem(422, f"people log in here with: {', '.join(settings.logins)}")
    longest_s, ends_ms = LONGEST_S, None
    if person.kind == TOKEN and (ends_ms := expires_at_ms(person.secret)) is not None:
        longest_s = max(0.0, ends_ms / 1000 - time.time())
    call.person = person
    await call.clients()
    if call.cookie is not None:
        sessions.end(call.cookie)
    principal = principal_of(person, settings.way)
    text, call.session = sessions.open(person, principal, longest_s=longest_s)
    return Reply(await _document(call), headers={"Set-Cookie": _cookie(call, text)})


async def log_out(call: Call) -> Reply:
    """End the session, and forget its credentials."""
    if call.cookie is not None and call.session is not None:
        person = call.session.person
        call.site.sessions.end(call.cookie)
        if not call.site.sessions.has(person):
            await call.site.pool.drop(person)
    return Reply(status=NO_CONTENT, headers={"Set-Cookie": f"{_cookie(call, '')}; Max-Age=0"})


def _person(call: Call) -> Person:
    """Whom the body names. Raises: Problem."""
    body: dict[str, str] = call.body
    is_password, is_token = {"username", "password"} <= body.keys(), "token" in body
    if is_password == is_token:
        raise Problem(422, "needed: username and password, or token")
    if is_token:
        return Person(TOKEN, "", body["token"])
    return Person(PASSWORD, body["username"], body["password"])


def _cookie(call: Call, text: str) -> str:
    is_secure = call.request.secure or call.request.headers.get("Origin", "").startswith("https:")
    secure = "; Secure" if is_secure else ""
    return f"{cookie_name(call.host)}={text}; Path=/; HttpOnly; SameSite=Strict{secure}"


async def _document(call: Call) -> dict[str, Any]:
    settings = call.site.settings
    is_in = not settings.needs_login or call.person != OWN
    cluster_id, features, problem, is_ours = None, {}, None, settings.served_from == NODE
    if is_in:
        try:
            clients = await call.clients()
            facts = await clients.facts()
            cluster_id, is_ours = facts.cluster_id, is_ours or facts.is_ours
            features = dict((await clients.admin.describe_features()).finalized)
        except KafkaError as error:
            problem = str(error)
    limits = settings.limits
    session = call.session
    return {
        "cluster_id": cluster_id,
        "version": moldau.__version__,
        "principal": call.principal if is_in else "User:ANONYMOUS",
        "is_anonymous": not is_in or call.principal == "User:ANONYMOUS",
        "is_logged_in": is_in,
        "login": list(settings.logins),
        "request_token": _request_token(call) if session is None else session.request_token,
        "is_ours": is_ours,
        "software": f"moldau {moldau.__version__}" if is_ours else OTHER_SOFTWARE,
        "features": features,
        "has_registry": bool(settings.registry),
        "read_only": settings.is_read_only,
        "served_from": settings.served_from,
        "limits": {
            "records": limits.records,
            "bytes": limits.size_bytes,
            "seconds": int(limits.seconds),
        },
        "problem": problem,
    }


def _request_token(call: Call) -> str | None:
    return None if call.site.settings.needs_login else call.site.anonymous_token


PATH: Final = "/api/v1/session"
ROUTES: Final = (
    Route(
        method="GET",
        path=PATH,
        handler=show,
        name="getSession",
        summary="Who asks, and what this console is",
        answer=SESSION,
        is_open=True,
    ),
    Route(
        method="POST",
        path=PATH,
        handler=log_in,
        name="createSession",
        summary="Log in",
        body=LOGIN,
        answer=SESSION,
        is_open=True,
        is_login=True,
        max_body_bytes=2 * MAX_TOKEN,
    ),
    Route(
        method="DELETE",
        path=PATH,
        handler=log_out,
        name="deleteSession",
        summary="Log out: the credentials are forgotten",
        status=NO_CONTENT,
        is_open=True,
    ),
)
