"""Nothing that a peer can cause is an assertion, or without a bound: `bounds.toml` has a reviewed
row for every assertion, every start of a task and every container of a serving node.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

import pytest

from tests.tidy import bounds, findings
from tests.tidy.bounds import Found, reviewed
from tests.tidy.sources import ROOT

KINDS = frozenset(reviewed()["kinds"])
OPEN = {file: owner for owner, files in reviewed()["open"].items() for file in files}
FINDERS: dict[str, Callable[[], Found]] = {
    "assertions": bounds.assertions,
    "tasks": bounds.task_starts,
    "containers": bounds.containers,
}


def rows(section: str) -> Found:
    """What the file lists: a row is a text, or a text and how often the name has it."""
    return {
        file: Counter({name: row[1] if isinstance(row, list) else 1 for name, row in names.items()})
        for file, names in reviewed()[section].items()
    }


@pytest.mark.parametrize("section", FINDERS)
def test_every_one_has_a_reviewed_row(section: str) -> None:
    """A red test names what to add. First see whether a peer can reach it: then mend it instead."""
    found, listed = FINDERS[section](), rows(section)
    missing, gone = [], []
    for file in sorted(found.keys() | listed.keys()):
        if file in OPEN:
            continue
        here, known = found.get(file, Counter()), listed.get(file, Counter())
        for name in sorted(here.keys() | known.keys()):
            if here[name] > known[name]:
                missing.append(f'[{section}."{file}"] "{name}" ({here[name]} of them)')
            elif here[name] < known[name]:
                gone.append(f'[{section}."{file}"] "{name}" ({here[name]} of them)')
    instead = "needs a row in tests/tidy/bounds.toml, whose head says what stands in it"
    assert missing == [], findings.listed(missing, instead)
    assert gone == [], findings.listed(
        gone, "take the row out of tests/tidy/bounds.toml: nothing has it now"
    )


@pytest.mark.parametrize("section", FINDERS)
def test_rows_are_sentences_of_a_line(section: str) -> None:
    for file, names in reviewed()[section].items():
        for name, row in names.items():
            text = row[0] if isinstance(row, list) else row
            assert 3 <= len(text) <= 240, f"{file} {name}"


def test_every_container_says_by_what_it_is_bounded() -> None:
    """A separate limit names the constant or key, and the test that fills it."""
    for file, names in reviewed()["containers"].items():
        for name, row in names.items():
            kind, _, _ = row.partition(":")
            assert kind in KINDS, f"{file} {name}: {kind}"
            if kind != "limit":
                continue
            test = re.search(r"\((tests/\S+\.py)::(\w+)\)$", row)
            assert test is not None, f"{file} {name}: which test fills it?"
            source = (ROOT / test[1]).read_text()
            assert re.search(rf"def {test[2]}\b", source), f"{file} {name}: {test[0]}"
            assert bounds.limits_of(row), f"{file} {name}: which limit?"


def test_the_finders_find() -> None:
    """Each of the three, in forms that the source has."""
    assert bounds.assertions()["raft/core/state.py"]["QuorumState.persist"] == 3
    assert bounds.task_starts()["broker/api/p09_offset_fetch.py"]
    assert bounds.task_starts()["raft/peers.py"]["ConnectionPeers.request"] == 1
    found = bounds.containers()
    assert found["server/fair_line.py"]["FairLine._by_principal"]
    assert found["broker/coordinator/internal_topics.py"]["InternalTopics._problems"], "a field"
    assert found["server/request.py"]["<module>._ARRAYS"]
