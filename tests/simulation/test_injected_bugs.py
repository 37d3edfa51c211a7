"""The checks catch every known way to get the quorum wrong; without one they catch nothing."""

from __future__ import annotations

import pytest

from tests.kit.gates import bugs_of_the_gate, check_bug, check_undone
from tests.kit.injected_bugs import InjectedBug
from tests.simulation.run import QUORUM


@pytest.mark.real
@pytest.mark.timeout(400)
@pytest.mark.parametrize("bug", bugs_of_the_gate(QUORUM))
def test_an_injected_bug_is_found(bug: InjectedBug):
    check_bug(QUORUM, bug)


def test_an_injected_bug_leaves_the_core_as_it_was():
    check_undone(QUORUM, "1")


def test_there_are_enough_of_them():
    assert len(QUORUM.bugs) >= 15
