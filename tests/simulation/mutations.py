"""Known ways to get the quorum wrong, as small patches of the running core.

Owns: what each breaks, and how. Must not: copy the core, or reach outside it. Invariant: nothing is
changed outside `applied`; every mutation is caught by the checks (test_mutations).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from moldau.protocol.errors import ErrorCode
from moldau.raft.core import QuorumCore, Role, VoterHistory
from moldau.raft.core import effects as ef
from moldau.raft.core.election import Elections
from moldau.raft.core.fetching import Fetching
from moldau.raft.core.replication import Replication
from moldau.raft.core.roles import Download, Leading
from moldau.raft.core.state import QuorumState
from moldau.raft.core.values import ElectionState, EpochEnd, ReplicaKey
from moldau.raft.core.voter_changes import VoterChanges
from moldau.raft.core.voters import VoterSet

Patch = tuple[Any, str, Any]
"""Owner, attribute, what it is replaced by."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """One of them."""

    breaks: str
    patches: tuple[Patch, ...]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The core is broken meanwhile."""
        with ExitStack() as stack:
            for owner, name, replacement in self.patches:
                stack.enter_context(mock.patch.object(owner, name, replacement))
            yield


def _after(owner: Any, name: str, change: Callable[..., Any]) -> Patch:
    """`change(result, self, *arguments)` gives the result instead."""
    original = getattr(owner, name)

    def replacement(self: Any, *arguments: Any, **named: Any) -> Any:
        return change(original(self, *arguments, **named), self, *arguments)

    return owner, name, replacement


def _before(owner: Any, name: str, change: Callable[..., None]) -> Patch:
    """`change(self, *arguments)` happens first."""
    original = getattr(owner, name)

    def replacement(self: Any, *arguments: Any, **named: Any) -> Any:
        change(self, *arguments)
        return original(self, *arguments, **named)

    return owner, name, replacement


# -- elections --------------------------------------------------------------------------------


def _forgets_vote(response: Any, self: Elections, request: Any) -> Any:
    effects = self._state.effects
    if response.vote_granted and not request.pre_vote:
        effects[:] = [
            ef.Persist(replace(each.state, voted=None)) if isinstance(each, ef.Persist) else each
            for each in effects
        ]
    return response


def _forgets_own_vote(_: None, state: QuorumState) -> None:
    state.effects[:] = [
        ef.Persist(replace(each.state, voted=None)) if isinstance(each, ef.Persist) else each
        for each in state.effects
    ]


def _forgets_epoch(_: None, state: QuorumState, election: ElectionState) -> None:
    if election.voted is None and election.leader_id < 0:
        state.effects[:] = [each for each in state.effects if not isinstance(each, ef.Persist)]


def _grants_twice(self: Elections, request: Any) -> bool:
    state = self._state
    up_to_date = state.is_up_to_date(request.last_leader_epoch, request.log_end_offset)
    return up_to_date and not (request.pre_vote and state.has_live_leader)


def _stands_at_once(_: None, state: QuorumState) -> None:
    state.become_candidate()


def _leads_on(_: None, state: QuorumState) -> None:
    if state.role is Role.RESIGNED:
        state.role = Role.LEADER
        state.resignation = state.deadline_ms = None
        state.leading = Leading(state.log.log_end_offset, state.now_ms)


def _without_epoch_start(_: None, state: QuorumState) -> None:
    state.effects[:] = [each for each in state.effects if not isinstance(each, ef.AppendEpochStart)]


_on_vote_response = Elections.on_vote_response


def _counts_late_votes(self: Elections, send: ef.Send, response: Any) -> None:
    state, request = self._state, send.request
    if response is not None and response.vote_granted and state.campaign is not None:
        state.requests.answered(send, state.now_ms, succeeded=True)
        now = replace(
            request,  # type: ignore[arg-type]
            leader_epoch=state.leader_epoch,
            pre_vote=state.role is Role.PROSPECTIVE,
        )
        send = replace(send, request=now)
        response = replace(response, leader_epoch=state.leader_epoch)
    _on_vote_response(self, send, response)


# -- replication ------------------------------------------------------------------------------


def _counts_unflushed(end: int, self: Replication, leading: Any, voter: Any) -> int:
    return self._state.log.log_end_offset if self._is_local(voter) else end


def _advance(
    *,
    own_epoch_only: bool = True,
    counts_itself: bool = False,
    needed: Callable[[int], int] = lambda count: count // 2 + 1,
) -> Patch:
    """How a high watermark is found, with one thing wrong."""

    def advance(self: Replication) -> bool:
        state, leading = self._state, self._state.leading
        if leading is None or not state.voters.latest.voters:
            return False
        voters = state.voters.latest.voters
        ends = [self._durable_end(leading, voter) for voter in voters]
        if counts_itself and not any(self._is_local(voter) for voter in voters):
            ends.append(state.flushed_end_offset)
        end = sorted(ends, reverse=True)[needed(len(voters)) - 1]
        if own_epoch_only and end <= leading.epoch_start_offset:
            return False
        return state.raise_high_watermark(end)

    return Replication, "advance_high_watermark", advance


def _serves_stale(error: ErrorCode, self: Replication, leader_epoch: int) -> ErrorCode:
    fenced = error is ErrorCode.FENCED_LEADER_EPOCH and self._state.role is Role.LEADER
    return ErrorCode.NONE if fenced else error


def _never_parts(parting: Any, self: Replication, request: Any) -> Any:
    return None if isinstance(parting, EpochEnd) else parting


def _prefers_snapshots(parting: Any, self: Replication, request: Any) -> Any:
    latest = self._state.log.latest_snapshot
    if parting is None and latest is not None and 0 < latest.end_offset < request.high_watermark:
        return latest
    return parting


def _counts_first(self: Replication, request: Any, token: Any) -> None:
    if self.leader_error(request.leader_epoch) is ErrorCode.NONE:
        self._count(request.replica, request.fetch_offset)
        self.advance_high_watermark()


# -- following --------------------------------------------------------------------------------


def _claims_flushed(self: QuorumCore, *_: Any) -> None:
    if self._state.following is not None:
        self._state.flushed_end_offset = self._state.log.log_end_offset


def _truncates_too_far(self: Fetching, send: Any, diverging: EpochEnd) -> None:
    state = self._state
    end_offset = max(state.log.log_start_offset, state.high_watermark - 1)
    if any(batch.base_offset == end_offset for batch in state.log._disk.log.batches):  # type: ignore[attr-defined]
        state.voters.truncate_to(end_offset)
        state.flushed_end_offset = min(state.flushed_end_offset, end_offset)
        state.effects.append(ef.Truncate(end_offset))
        state.wants_tick = True


def _takes_any_snapshot(self: Fetching, following: Any, send: Any, snapshot_id: Any) -> None:
    following.download = Download(snapshot_id)


def _rewinds(self: Fetching, snapshot_id: Any, voters: VoterSet) -> None:
    state = self._state
    state.high_watermark = min(state.high_watermark, snapshot_id.end_offset)


def _applies_at_once(self: Fetching) -> None:
    state, following = self._state, self._state.following
    if following is not None:
        state.raise_high_watermark(min(following.leader_high_watermark, state.log.log_end_offset))


def _is_about_the_epoch(self: Fetching, request: Any) -> bool:
    following = self._state.following
    assert following is not None
    return request.leader_epoch == self._state.leader_epoch and not following.is_busy


def _lowers_high_watermark(self: QuorumState, high_watermark: int) -> bool:
    if high_watermark < 0 or high_watermark == self.high_watermark:
        return False
    self.high_watermark = high_watermark
    self.effects.append(ef.AdvanceHighWatermark(high_watermark))
    return True


# -- voters -----------------------------------------------------------------------------------


def _finds_by_id(_: Any, self: VoterSet, node_id: int, directory_id: Any) -> Any:
    return self.with_id(node_id)


def _matches_by_id(self: ReplicaKey, other: ReplicaKey) -> bool:
    return self.node_id == other.node_id


def _progress_by_id(self: Leading, voter: Any) -> Any:
    key = self.latest_key.get(voter.voter_id)
    return self.progress.get(key) if key is not None else None


def _refuses_no_change(refusal: Any, self: VoterChanges, *_: Any) -> Any:
    leads = self._state.role is Role.LEADER and self._replication.has_committed_in_epoch
    is_dynamic = self._state.voters.latest.kraft_version >= 1
    return None if leads and is_dynamic and _appended_all(self) else refusal


def _appended_all(self: VoterChanges) -> bool:
    """Whether the change before is at least in the log, so that no record overtakes another."""
    change = self._change
    return change is None or not change.is_appended or change.record_offset is not None


def _appends_anyway(
    self: VoterChanges, change: Any, voters: VoterSet, *, kraft_version_changed: bool = False
) -> None:
    change.is_appended = True
    self._state.effects.append(
        ef.AppendVoters(self._state.leader_epoch, voters, kraft_version_changed)
    )


MUTATIONS: dict[str, Mutation] = {
    "vote-not-persisted": Mutation(
        "a vote is told before it is durable", (_after(Elections, "on_vote", _forgets_vote),)
    ),
    "own-vote-not-persisted": Mutation(
        "a candidate's vote for itself is not durable",
        (_after(QuorumState, "become_candidate", _forgets_own_vote),),
    ),
    "epoch-not-persisted": Mutation(
        "a new epoch is not durable before it is used",
        (_after(QuorumState, "persist", _forgets_epoch),),
    ),
    "two-votes": Mutation(
        "two candidates of an epoch get a vote", ((Elections, "_may_grant", _grants_twice),)
    ),
    "vote-for-shorter-log": Mutation(
        "a candidate gets votes whatever its log lacks",
        ((QuorumState, "is_up_to_date", lambda *_: True),),
    ),
    "late-votes-counted": Mutation(
        "votes of an earlier epoch, and PreVotes, count in this one",
        ((Elections, "on_vote_response", _counts_late_votes),),
    ),
    "no-pre-vote": Mutation(
        "the epoch is raised without asking first",
        (_after(QuorumState, "become_prospective", _stands_at_once),),
    ),
    "leads-on-after-restart": Mutation(
        "a leader that was restarted goes on in its epoch",
        (_after(QuorumState, "restore", _leads_on),),
    ),
    "no-epoch-start": Mutation(
        "a new leader does not write its epoch's first batch",
        (_after(QuorumState, "become_leader", _without_epoch_start),),
    ),
    "no-check-quorum": Mutation(
        "a leader without a majority goes on leading",
        ((Replication, "check_quorum_deadline_ms", lambda _: float("inf")),),
    ),
    "unflushed-leader-counts": Mutation(
        "the leader's unflushed records count for the high watermark",
        (_after(Replication, "_durable_end", _counts_unflushed),),
    ),
    "earlier-epoch-committed": Mutation(
        "records of an earlier epoch are committed alone", (_advance(own_epoch_only=False),)
    ),
    "half-is-a-majority": Mutation(
        "half of an even number of voters commits",
        (_advance(needed=lambda count: (count + 1) // 2),),
    ),
    "removed-leader-counts": Mutation(
        "a leader that is no voter any more counts itself", (_advance(counts_itself=True),)
    ),
    "stale-epoch-fetch": Mutation(
        "a fetch of an earlier epoch is served and counted",
        (_after(Replication, "leader_error", _serves_stale),),
    ),
    "divergence-ignored": Mutation(
        "the leader does not notice that a follower's log differs",
        (_after(Replication, "_where_logs_part", _never_parts),),
    ),
    "counted-before-matching": Mutation(
        "a fetch offset counts although the log below it differs",
        (_before(Replication, "on_fetch", _counts_first),),
    ),
    "fetch-before-flush": Mutation(
        "a follower fetches from an offset that is not flushed",
        (_before(QuorumCore, "on_appended", _claims_flushed),),
    ),
    "truncates-committed": Mutation(
        "a follower truncates below its high watermark",
        ((Fetching, "_truncate", _truncates_too_far),),
    ),
    "snapshot-backwards": Mutation(
        "a snapshot of less than is held is fetched and installed",
        (
            _after(Replication, "_where_logs_part", _prefers_snapshots),
            (Fetching, "_begin_download", _takes_any_snapshot),
            _before(Fetching, "on_snapshot_installed", _rewinds),
        ),
    ),
    "unflushed-follower-applies": Mutation(
        "a follower's high watermark covers what it has not flushed",
        (_after(Fetching, "on_appended", lambda _result, self: _applies_at_once(self)),),
    ),
    "stale-answer-used": Mutation(
        "an answer about a log that has changed since is used",
        ((Fetching, "_is_about_now", _is_about_the_epoch),),
    ),
    "high-watermark-back": Mutation(
        "the high watermark follows the acknowledgements down",
        ((QuorumState, "raise_high_watermark", _lowers_high_watermark),),
    ),
    "directory-id-ignored": Mutation(
        "a wiped disk keeps its vote",
        (
            _after(VoterSet, "find", _finds_by_id),
            (ReplicaKey, "matches", _matches_by_id),
            (Leading, "progress_of", _progress_by_id),
        ),
    ),
    "voters-survive-truncation": Mutation(
        "a truncated voters record goes on ruling",
        ((VoterHistory, "truncate_to", lambda *_: None),),
    ),
    "two-voter-changes": Mutation(
        "a voter change begins before the last one is committed",
        (
            _after(VoterChanges, "_refusal", _refuses_no_change),
            (VoterChanges, "_append", _appends_anyway),
        ),
    ),
    "early-voter-change": Mutation(
        "voters change before the epoch has committed a record",
        ((Replication, "has_committed_in_epoch", True),),
    ),
}
