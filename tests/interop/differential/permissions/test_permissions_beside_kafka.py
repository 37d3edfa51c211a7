"""Every principal's questions to our cluster and to Apache Kafka's, both with StandardAuthorizer:
each API that a client can send, with no rights, with each right alone, denied, by name, by prefix
and by wildcard, by host, and by rules for every user; at brokers and at a controller. The answers
are equal, but for the reviewed list, all of which is still needed.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import pytest

from tests.interop.differential.differences import DifferenceList
from tests.interop.differential.permissions.comparison import LIST, Comparison, Tally
from tests.interop.differential.permissions.controller_questions import controller_questions
from tests.interop.differential.permissions.preparing import prepare
from tests.interop.differential.permissions.principals import (
    OWNER,
    controllers_principals,
    principals,
    sharing_principals,
)
from tests.interop.differential.permissions.questions import questions
from tests.interop.differential.permissions.sides import both_sides
from tests.interop.java.tools import JavaTools, missing

pytestmark = [pytest.mark.interop, pytest.mark.java, pytest.mark.long]

TIMEOUT_S: Final = 900
SHOWN: Final = 60
"""So many lines of a failure; the count is of all."""

FEWEST_QUESTIONS: Final = 40_000
"""Fewer, and cases have been lost."""


@pytest.mark.timeout(TIMEOUT_S)
def test_rights_decide_alike(tmp_path: Path) -> None:
    reason = missing()
    if reason:
        pytest.skip(reason)
    tally = Tally(DifferenceList.load(LIST), DifferenceList.load())
    everybody = principals()
    sharing = sharing_principals()
    users = [OWNER, *(each.name for each in (*everybody, *sharing))]
    with (
        (tmp_path / "java.log").open("wb") as errors,
        JavaTools(errors) as java,
        both_sides(java, tmp_path, users) as sides,
    ):
        for side in sides:
            prepare(side, [*everybody, *sharing])
        began_s = time.monotonic()
        asked = list(questions())
        Comparison(sides, tally).run([*everybody, *sharing], asked)
        Comparison(sides, tally, at_controllers=True).run(
            controllers_principals(everybody), controller_questions(asked)
        )
        seconds = time.monotonic() - began_s
    lines = tally.report
    print(
        f"{tally.per_api.total()} questions of {len(everybody) + len(sharing)} principals to both, "
        f"{len(tally.per_api)} APIs in {len(tally.versions)} versions, in {seconds:.0f} s; "
        f"{len(tally.answers)} different answers; {len(lines)} differences beside the list: "
        + ", ".join(f"{api} {count}" for api, count in sorted(tally.per_api.items()))
    )
    assert not lines, f"{len(lines)} differ:\n" + "\n".join(lines[:SHOWN])
    unused = tally.differences.unused
    assert not unused, "differences that are not there any more:\n" + "\n".join(unused)
    assert tally.per_api.total() >= FEWEST_QUESTIONS
