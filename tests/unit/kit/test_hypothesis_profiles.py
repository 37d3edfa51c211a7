"""The profiles of hypothesis: what is drawn, and what a failure prints when."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given, reproduce_failure, settings
from hypothesis import strategies as st

from tests.kit.hypothesis_profiles import PrintingDatabase

GATE, SHRINK, LONG = (settings.get_profile(name) for name in ("gate", "shrink", "long"))


def fails(profile: settings, seen: list[bytes | str]) -> Callable[..., None]:
    """A test that fails, and notes what it is called with."""

    @profile
    @given(st.binary(min_size=1, max_size=200))
    def check(data: bytes) -> None:
        seen.append(data)
        assert sum(data) < 600

    return check


def test_the_gate_draws_the_same_and_does_not_shrink() -> None:
    runs: list[list[bytes | str]] = [[], []]
    for seen in runs:
        with pytest.raises(AssertionError):
            fails(GATE, seen)()
    assert runs[0] == runs[1]
    failing = [data for data in runs[0] if isinstance(data, bytes) and sum(data) >= 600]
    assert len(set(failing)) == 1


def test_the_profile_that_shrinks_draws_the_examples_of_the_gate() -> None:
    runs: list[list[bytes | str]] = [[], []]
    for profile, seen in zip((GATE, SHRINK), runs, strict=True):
        with pytest.raises(AssertionError):
            fails(profile, seen)()
    count = next(index for index, data in enumerate(runs[0]) if sum(data) >= 600)  # type: ignore[arg-type]
    assert runs[1][: count + 1] == runs[0][: count + 1]
    assert len(runs[1]) > len(runs[0])


def test_long_runs_print_what_replays_a_failure_before_they_shrink_it() -> None:
    seen: list[bytes | str] = []
    profile = settings(LONG, database=PrintingDatabase(seen.append))
    with pytest.raises(AssertionError):
        fails(profile, seen)()
    printed = [each for each in seen if isinstance(each, str)]
    assert len(printed) == 1
    at = seen.index(printed[0])
    found = seen[at - 1]
    assert isinstance(found, bytes)
    assert sum(found) >= 600
    assert len(seen) > at + 5, "it was shrunk afterwards"
    match = re.search(r"test_long_runs.*: @reproduce_failure\('(.+)', (b'.+')\)", printed[0])
    assert match is not None
    replayed: list[bytes | str] = []
    check = fails(profile, replayed)
    with pytest.raises(AssertionError):
        reproduce_failure(match[1], match[2][2:-1].encode())(check)()
    assert replayed[0] == found
