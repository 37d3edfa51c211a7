"""Every principal's questions to one node, through HTTP and by the protocol: what a user may see
and do through the console is what the same user may see and do without it. The user logs in by
Basic, which the console shows to the cluster as SCRAM, and the outcomes are equal, errors too.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
from yarl import URL

from moldau.client import Admin, Producer, ScramUpsertion
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p03_metadata import MetadataRequest
from moldau.protocol.messages.p20_delete_topics import DeleteTopicsRequest
from moldau.text import one_line
from tests.interop.differential.asking import build
from tests.interop.differential.permissions.http_questions import (
    HttpQuestion,
    Outcome,
    Talk,
    http_questions,
)
from tests.interop.differential.permissions.preparing import prepare, restore, share
from tests.interop.differential.permissions.principals import (
    GONE,
    HERE,
    OTHER,
    OWNER,
    Principal,
    principals,
    sharing_principals,
)
from tests.interop.differential.permissions.question import CLUSTER, GROUP_KIND, TOPIC
from tests.interop.differential.permissions.sides import PASSWORD, Session, Side, our_side
from tests.kit.waiting import until
from tests.system.console.site import basic

pytestmark = [pytest.mark.interop]

KINDS: Final = (None, TOPIC, GROUP_KIND, CLUSTER)
"""Rights on which decide about what has a form in HTTP."""
AT_ONCE: Final = 12
SHOWN: Final = 40
TIMEOUT_S: Final = 600
HTTP: Final = {
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
    "moldau.http.listener": "127.0.0.1:0",
    "moldau.console.enable": "true",
    "moldau.console.listener": "SASL_PLAINTEXT",
}
NUMBERS: Final = {200: "NONE", 40301: ErrorCode.TOPIC_AUTHORIZATION_FAILED.name}
"""What reports of records say by Confluent's numbers."""


@dataclass
class Tally:
    """What a run compared and found."""

    questions: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    differing: dict[str, list[str]] = field(default_factory=dict)

    def note(
        self, principal: Principal, question: HttpQuestion, http: Outcome, protocol: Outcome
    ) -> None:
        """One question's two outcomes."""
        self.questions[question.method] += 1
        self.errors[protocol.error] += 1
        if http == protocol:
            return
        what = one_line(f"{question.name}: HTTP {http}, protocol {protocol}")
        self.differing.setdefault(what, []).append(principal.word)


@dataclass
class Asker:
    """One node, asked both ways."""

    side: Side
    origin: str
    cluster_id: str
    http: aiohttp.ClientSession
    tally: Tally

    async def play(self, principal: Principal, questions: Iterable[HttpQuestion]) -> None:
        """All questions of a principal."""
        asked = [each for each in questions if principal.kind in (None, *each.kinds)]
        login = basic(principal.name, PASSWORD)
        session = Session(self.side, principal.name)
        talk, places = Talk(session, self.side), asyncio.Semaphore(AT_ONCE)

        async def through_http(question: HttpQuestion) -> Outcome:
            async with places:
                return await self._http(question, login)

        try:
            lasting = [each for each in asked if not each.destroys]
            found = await asyncio.gather(*map(through_http, lasting))
            for question, http in zip(lasting, found, strict=True):
                self.tally.note(principal, question, http, question.by_protocol(talk))
            for question in (each for each in asked if each.destroys):
                http = await through_http(question)
                self._restore(http)
                protocol = question.by_protocol(talk)
                self._restore(protocol)
                self.tally.note(principal, question, http, protocol)
        finally:
            session.close()

    async def _http(self, question: HttpQuestion, login: dict[str, str]) -> Outcome:
        own = question.path.removeprefix("/api")
        root = "/v3" if own == question.path else "/api/v1"
        url = f"{self.origin}{root}/clusters/{self.cluster_id}{own}"
        async with self.http.request(
            question.method, _as_it_is(url), headers=login, json=question.body
        ) as answer:
            text = await answer.text()
        return _outcome(question, answer.status, text)

    def _restore(self, found: Outcome) -> None:
        if found.error != "NONE":
            return
        restore(self.side)
        request = build(DeleteTopicsRequest, topics=[{"name": GONE}], timeout_ms=30_000)
        self.side.ask(request, 6)

        def is_gone() -> bool:
            answer: Any = self.side.ask(MetadataRequest(topics=None), 12)
            return GONE not in {each.name for each in answer.topics}

        until(is_gone, what=f"{GONE} to be gone")


def _as_it_is(url: str) -> URL:
    return URL(url, encoded=True)


def _outcome(question: HttpQuestion, status: int, text: str) -> Outcome:
    """What an answer says. A refusal's status has to fit to its error."""
    if status >= 300:
        return _refusal(status, json.loads(text))
    if not text:
        return Outcome("NONE")
    if question.is_produce:
        [report] = map(json.loads, text.splitlines())
        number = report["error_code"]
        unknown = f"number {number}: {report.get('message')}"
        return Outcome(NUMBERS.get(number, unknown))
    lines = [json.loads(line) for line in text.splitlines() if line]
    problem = lines[-1].get("problem")
    if problem is not None:
        return _refusal(problem["status"], problem)
    return Outcome("NONE", frozenset(question.shown(lines[-1])))


def _refusal(status: int, problem: Any) -> Outcome:
    error = problem["kafka_error"]
    if error is None:
        return Outcome(f"HTTP {status}")
    is_right = (status == 403) == error.endswith("AUTHORIZATION_FAILED")
    return Outcome(error if is_right and status >= 400 else f"HTTP {status} {error}")


@pytest.mark.parametrize(
    ("every_way", "fewest_questions"),
    [
        pytest.param(False, 4_000, id="rights-by-name"),
        pytest.param(True, 27_000, id="every-way", marks=pytest.mark.long),
    ],
)
@pytest.mark.timeout(TIMEOUT_S)
async def test_http_lets_users_do_what_the_protocol_does(
    tmp_path: Path, *, every_way: bool, fewest_questions: int
) -> None:
    """Args:
    every_way: of having a right, else each right by name alone and those for every user.
    fewest_questions: fewer, and cases have been lost.
    """
    known = [each for each in principals() if each.kind in KINDS]
    chosen = [each for each in known if every_way or each.is_asked_all]
    sharing = [each for each in sharing_principals() if each.kind in KINDS]
    users = [OWNER, *(each.name for each in (*chosen, *sharing))]
    asked, tally = [*http_questions()], Tally()
    with our_side(tmp_path, users, HTTP) as (side, node):
        prepare(side, [*chosen, *sharing])
        await _add_users(side, users)
        await _add_records(side)
        announced = until(
            lambda: re.search(r"HTTP listener on (\S+)", node.log()), what="the HTTP listener"
        )
        origin = f"http://{announced.group(1)}"
        cluster_id = next(own for own, word in side.aliases.items() if word == "CLUSTER")
        began_s = time.monotonic()
        async with aiohttp.ClientSession() as http:
            asker = Asker(side, origin, cluster_id, http, tally)
            for principal in chosen:
                await asker.play(principal, asked)
            for principal in sharing:
                share(side, principal.shared_entries)
                await asker.play(principal, asked)
        seconds = time.monotonic() - began_s
    total = tally.questions.total()
    print(
        f"{total} questions of {len(chosen) + len(sharing)} users through HTTP and by the protocol "
        f"in {seconds:.0f} s: {dict(tally.errors)}; {len(tally.differing)} differences"
    )
    lines = [
        f"{what} ({len(whom)} times: {', '.join(whom[:3])})"
        for what, whom in tally.differing.items()
    ]
    assert not lines, f"{len(lines)} differ:\n" + "\n".join(lines[:SHOWN])
    assert total >= fewest_questions


async def _add_users(side: Side, users: Iterable[str]) -> None:
    async with Admin(side.bootstrap) as admin:
        await admin.alter_user_scram_credentials([ScramUpsertion(user, PASSWORD) for user in users])
    side.settle()


async def _add_records(side: Side) -> None:
    async with Producer(side.bootstrap) as producer:
        for name in (HERE, OTHER):
            await producer.send(name, b"value", partition=0)
