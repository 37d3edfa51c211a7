"""The checks find the bugs that are injected into coordinators and transactions."""

from __future__ import annotations

import pytest

from tests.kit.gates import bugs_of_the_gate, check_bug, check_undone
from tests.kit.injected_bugs import InjectedBug
from tests.simulation.transactions.injected_client_bugs import CLIENT_BUGS
from tests.simulation.transactions.injected_member_bugs import MEMBER_BUGS
from tests.simulation.transactions.injected_upheaval_bugs import UPHEAVAL_BUGS
from tests.simulation.transactions.run import TRANSACTIONS

TIMEOUT_S = 360


@pytest.mark.real
@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("bug", bugs_of_the_gate(TRANSACTIONS))
def test_an_injected_bug_is_found(bug: InjectedBug):
    check_bug(TRANSACTIONS, bug, by_a_check=bug in (*UPHEAVAL_BUGS, *CLIENT_BUGS, *MEMBER_BUGS))


@pytest.mark.timeout(TIMEOUT_S)
def test_an_injected_bug_leaves_the_nodes_as_they_were():
    check_undone(TRANSACTIONS, "1")


def test_there_are_enough_bugs_to_inject():
    assert len(bugs_of_the_gate(TRANSACTIONS)) >= 10
