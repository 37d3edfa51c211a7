"""The small parts: the history of voters, the ledger of requests, the voter set's questions."""

from __future__ import annotations

import pytest

from moldau.protocol.messages.quorum_records import VotersRecord
from moldau.protocol.records import ControlRecordType
from moldau.protocol.types import ZERO_UUID
from moldau.raft.core import VoterHistory
from moldau.raft.core.effects import Send
from moldau.raft.core.messages import FetchRequest, VoteRequest
from moldau.raft.core.state import RequestLedger
from moldau.raft.core.values import Destination, ReplicaKey
from tests.unit.raft.core.harness import described, directory, key, voter_set

BASE, SECOND, THIRD = voter_set(1), voter_set(1, 2), voter_set(1, 2, 3)


def history() -> VoterHistory:
    voters = VoterHistory(BASE)
    voters.append(5, SECOND)
    voters.append(9, THIRD)
    return voters


def test_history_latest_and_as_of() -> None:
    voters = history()
    assert (voters.latest, voters.latest_offset) == (THIRD, 9)
    assert [voters.at(end) for end in (0, 5, 6, 9, 10)] == [BASE, BASE, SECOND, SECOND, THIRD]
    assert voters.since(6) == [SECOND, THIRD]
    assert voters.since(10) == [THIRD]


def test_history_truncation_brings_back_the_one_before() -> None:
    voters = history()
    voters.truncate_to(10)
    assert voters.latest == THIRD
    voters.truncate_to(9)
    assert (voters.latest, voters.latest_offset) == (SECOND, 5)
    voters.truncate_to(0)
    assert (voters.latest, voters.latest_offset) == (BASE, -1)


def test_history_trimming_moves_the_base() -> None:
    voters = history()
    voters.trim_to(6)
    assert voters.latest == THIRD
    voters.truncate_to(6)
    assert (voters.latest, voters.latest_offset) == (SECOND, -1)


def test_history_reset_and_order() -> None:
    voters = history()
    with pytest.raises(AssertionError):
        voters.append(9, BASE)
    voters.reset(SECOND)
    assert (voters.latest, voters.latest_offset) == (SECOND, -1)


def test_voters_are_found_by_id_and_directory_kip_853() -> None:
    assert THIRD.find(2, directory(2)) == described(2)
    assert THIRD.find(2, directory(2, 1)) is None
    assert THIRD.find(2, ZERO_UUID) is None
    assert THIRD.with_id(2) == described(2)
    assert THIRD.with_id(4) is None
    configured = voter_set(1, 2, kraft_version=0)
    assert configured.find(2, directory(2, 1)) is not None
    assert configured.find(3, directory(3)) is None


TO = Destination(2, "node2", 9093)
FETCH = Send(TO, FetchRequest(key(1), 1, 0, 0), 100)


def test_one_request_of_a_kind_at_a_time() -> None:
    ledger = RequestLedger(20)
    ledger.sent(FETCH, 0)
    assert ledger.is_awaited(TO, FetchRequest)
    assert not ledger.is_awaited(TO, VoteRequest)
    assert not ledger.is_awaited(Destination(2, "other", 1), FetchRequest)
    with pytest.raises(AssertionError):
        ledger.sent(FETCH, 1)
    assert ledger.answered(FETCH, 7, succeeded=True) == 7
    assert not ledger.is_awaited(TO, FetchRequest)
    assert ledger.ready_ms(TO, FetchRequest) <= 0


def test_the_backoff_doubles_while_requests_fail_up_to_its_bound() -> None:
    ledger = RequestLedger(20)
    waits = []
    for _ in range(6):
        ledger.sent(FETCH, 1_000)
        ledger.answered(FETCH, 1_000, succeeded=False)
        waits.append(ledger.ready_ms(TO, FetchRequest) - 1_000)
    assert waits == [20, 40, 80, 160, 200, 200]
    assert ledger.has_failed(TO, FetchRequest)
    ledger.sent(FETCH, 2_000)
    ledger.answered(FETCH, 2_000, succeeded=True)
    assert not ledger.has_failed(TO, FetchRequest)
    ledger.sent(FETCH, 2_000)
    ledger.answered(FETCH, 2_000, succeeded=False)
    assert ledger.ready_ms(TO, FetchRequest) == 2_020


def test_a_forgotten_request_does_not_count_when_it_is_answered() -> None:
    ledger = RequestLedger(20)
    ledger.sent(FETCH, 0)
    ledger.reset()
    again = Send(TO, FETCH.request, 100)
    ledger.sent(again, 5)
    assert ledger.answered(FETCH, 6, succeeded=False) is None
    assert ledger.is_awaited(TO, FetchRequest)
    assert ledger.last_awaited_ms(FetchRequest) == 5
    assert ledger.last_awaited_ms(FetchRequest, but=TO) is None


def test_an_unknown_directory_fits_every_one() -> None:
    assert key(1).matches(ReplicaKey(1))
    assert ReplicaKey(1).matches(key(1))
    assert not key(1).matches(key(1, 1))
    assert not key(1).matches(ReplicaKey(2))


def test_a_voters_record_names_the_versions_that_voters_speak() -> None:
    kinds = dict(voter_set(1, 2).control_records())
    record = VotersRecord.decode(kinds[ControlRecordType.KRAFT_VOTERS], 0)[0]
    assert [each.voter_id for each in record.voters] == [1, 2]
    for each in record.voters:
        feature = each.kraft_version_feature
        assert (feature.min_supported_version, feature.max_supported_version) == (0, 1)
    assert voter_set(1, 2, kraft_version=0).control_records() == []
