"""Asks both sides what every principal asks, and keeps count of answers and differences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from moldau.protocol.error_responses import error_codes
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p18_api_versions import ApiVersionsRequest
from moldau.protocol.registry import request_class
from moldau.text import one_line
from tests.interop.differential.asking import Closed, Ground, build
from tests.interop.differential.comparing import compare, normalise
from tests.interop.differential.differences import DifferenceList
from tests.interop.differential.permissions.preparing import restore, share
from tests.interop.differential.permissions.principals import OWNER, Principal
from tests.interop.differential.permissions.question import Question
from tests.interop.differential.permissions.sides import AT_ONCE, Answer, Asked, Session, Side

LIST: Final = Path(__file__).with_name("differences.toml")
SHOWN: Final = 4


@dataclass
class Tally:
    """What a run compared and found."""

    differences: DifferenceList
    everywhere: DifferenceList
    """The list of test_admin_answers.py, whose rows hold here too."""

    per_api: Counter[str] = field(default_factory=Counter)
    versions: set[tuple[str, int]] = field(default_factory=set)
    answers: set[tuple[str, str]] = field(default_factory=set)
    """Distinct answers of Apache Kafka, by API: a run in which all are alike compares nothing."""

    unexplained: dict[str, list[str]] = field(default_factory=dict)
    """What differs, and for whom."""

    @property
    def report(self) -> list[str]:
        """A line for each difference, with some of the principals for whom it exists."""
        return [
            f"{what} ({len(whom)} times: {', '.join(whom[:SHOWN])})"
            for what, whom in self.unexplained.items()
        ]

    def note(
        self,
        principal: Principal,
        question: Question,
        api_version: int,
        plain: tuple[Any, Any],
    ) -> None:
        """One question's two answers."""
        api = request_class(question.api_key).__name__.removesuffix("Request")
        self.per_api[api] += 1
        self.versions.add((api, api_version))
        ours, kafka = plain
        self.answers.add((api, repr(kafka)))
        if ours == kafka:
            return
        case = f"{question.name}; {principal.word}"
        found = self.everywhere.unexplained(api, case, compare(ours, kafka))
        for each in self.differences.unexplained(api, case, found):
            what = one_line(
                f"{api} {question.name}: {each.path}: ours {each.ours}, Kafka's {each.kafka}"
            )
            self.unexplained.setdefault(what, []).append(f"{principal.word} v{api_version}")


class Comparison:
    """Both sides, and the versions that both serve: their brokers, or their controllers."""

    def __init__(
        self, sides: tuple[Side, Side], tally: Tally, *, at_controllers: bool = False
    ) -> None:
        self._sides = sides
        self._tally = tally
        self._at_controllers = at_controllers
        ours, theirs = (_served(side, at_controllers) for side in sides)
        # Brokers tell of versions of Produce that none of them serves, for old clients' sake.
        self._versions = {
            key: range(
                max(ours[key][0], theirs[key][0], request_class(key).MIN_VERSION),
                min(ours[key][1], theirs[key][1]) + 1,
            )
            for key in ours.keys() & theirs.keys()
        }

    def run(self, principals: Iterable[Principal], questions: Iterable[Question]) -> None:
        """Every principal's questions, one principal after the other."""
        asked = list(questions)
        is_sharing = False
        for number, principal in enumerate(principals):
            if is_sharing or principal.shared:
                is_sharing = bool(principal.shared)
                for side in self._sides:
                    share(side, principal.shared_entries)
            self._play(principal, list(self._chosen(principal, number, asked)))
        if is_sharing:
            for side in self._sides:
                share(side, [])

    def _chosen(
        self, principal: Principal, number: int, questions: Iterable[Question]
    ) -> Iterator[tuple[Question, int]]:
        """What it asks, and in which versions: they take turns, so that all are asked."""
        for place, question in enumerate(questions):
            served = self._versions.get(int(question.api_key), range(0))
            versions = [each for each in served if question.first <= each <= question.last]
            if principal.is_asked_all:
                yield from ((question, version) for version in versions)
            elif principal.kind in question.kinds and versions:
                yield question, versions[(number + place) % len(versions)]

    def _play(self, principal: Principal, chosen: list[tuple[Question, int]]) -> None:
        sessions = [
            Session(side, principal.name, at_controller=self._at_controllers)
            for side in self._sides
        ]
        try:
            lasting = [each for each in chosen if not each[0].destroys]
            for start in range(0, len(lasting), AT_ONCE):
                self._ask(principal, sessions, lasting[start : start + AT_ONCE])
            for each in chosen:
                if each[0].destroys:
                    both = self._ask(principal, sessions, [each])
                    for side, [answer] in zip(self._sides, both, strict=True):
                        if isinstance(answer, Closed) or ErrorCode.NONE in error_codes(answer):
                            restore(side)
        finally:
            for session in sessions:
                session.close()

    def _ask(
        self, principal: Principal, sessions: list[Session], chosen: list[tuple[Question, int]]
    ) -> list[list[Answer]]:
        asked: list[list[Asked]] = [
            [(_request(question, Ground(version, side)), version) for question, version in chosen]
            for side in self._sides
        ]
        for session, requests in zip(sessions, asked, strict=True):
            session.send(requests)
        answers = [
            session.receive(requests) for session, requests in zip(sessions, asked, strict=True)
        ]
        for (question, version), *both in zip(chosen, *answers, strict=True):
            ours, kafka = (
                _plain(answer, side) for answer, side in zip(both, self._sides, strict=True)
            )
            self._tally.note(principal, question, version, (ours, kafka))
        return answers


def _plain(answer: Answer, side: Side) -> Any:
    return normalise(answer, side)


def _request(question: Question, ground: Ground) -> Any:
    return build(request_class(question.api_key), **question.fields(ground))


def _served(side: Side, at_controllers: bool) -> dict[int, tuple[int, int]]:
    session = Session(side, OWNER, at_controller=at_controllers)
    request = ApiVersionsRequest(client_software_name="tests", client_software_version="1")
    try:
        session.send([(request, 3)])
        [answer] = session.receive([(request, 3)])
    finally:
        session.close()
    served: Any = answer
    return {each.api_key: (each.min_version, each.max_version) for each in served.api_keys}
