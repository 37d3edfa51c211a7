"""A few rounds of each kind; and the account finds what it has to find."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from moldau.client.errors import DeliveryTimeout
from moldau.client.records import RecordMetadata
from tests.kit import judging
from tests.kit.dice import drawn_seed
from tests.unit.client.fire import blocking
from tests.unit.client.fire.account import Account, Sent, check_block, value_of
from tests.unit.client.fire.run import KINDS

pytestmark = pytest.mark.real

RECORD_COUNT = 4_000


@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_lost_doubled_moved_or_wrongly_reported(kind: str) -> None:
    seed = drawn_seed()
    account = KINDS[kind](seed, RECORD_COUNT)
    print(f"{kind}: seed {seed}: {account.counts}")
    with judging():
        assert not account.problems, f"seed {seed}"
    # A producer that a thread closes early may get no more than that thread's share.
    is_cut_short = account.counts["early closes"] > 0
    share = RECORD_COUNT // blocking.THREAD_COUNT // 2 if is_cut_short else RECORD_COUNT
    assert account.counts["records"] >= share
    assert account.counts["interruptions"] + account.counts["cancellations"] > 0


def _delivered(sent: Sent, partition: int, offset: int) -> None:
    sent.is_sure = True
    sent.outcomes.append(RecordMetadata("t", partition, offset, 0, 0, 3))


def _lost(account: Account, stored: dict[int, list[tuple[int, bytes]]]) -> None:
    stored[0].pop()


def _doubled(account: Account, stored: dict[int, list[tuple[int, bytes]]]) -> None:
    stored[1].append((0, value_of((0, 0))))


def _swapped(account: Account, stored: dict[int, list[tuple[int, bytes]]]) -> None:
    (first, one), (second, other) = stored[0]
    stored[0][:] = [(first, other), (second, one)]


def _told_nothing(account: Account, stored: dict[int, list[tuple[int, bytes]]]) -> None:
    account.sent[0, 1].outcomes.clear()


def _told_twice(account: Account, stored: dict[int, list[tuple[int, bytes]]]) -> None:
    account.sent[0, 1].outcomes *= 2


def _told_an_error(account: Account, stored: dict[int, list[tuple[int, bytes]]]) -> None:
    account.sent[0, 1].outcomes[:] = [DeliveryTimeout("too late")]


def _unsure_and_untold(account: Account, stored: dict[int, list[tuple[int, bytes]]]) -> None:
    account.sent[0, 1].is_sure = False
    account.sent[0, 1].outcomes.clear()


@pytest.mark.parametrize(
    "spoil",
    [_lost, _doubled, _swapped, _told_nothing, _told_twice, _told_an_error, _unsure_and_untold],
)
def test_the_account_finds(spoil: Callable[[Account, dict[int, list[tuple[int, bytes]]]], None]):
    account = Account()
    for number in range(2):
        _delivered(account.new(0, number, 0), 0, number)
    stored = {0: [(0, value_of((0, 0))), (1, value_of((0, 1)))], 1: []}
    account.check(stored)
    assert not account.problems
    spoil(account, stored)
    account.check(stored)
    assert account.problems


def test_the_account_finds_half_a_transaction():
    account = Account()
    names = [(0, 0), (0, 1)]
    check_block(account, names, set(names), None)
    check_block(account, names, set(), False)
    assert not account.problems
    check_block(account, names, {(0, 0)}, None)
    check_block(account, names, set(), True)
    assert len(account.problems) == 2
