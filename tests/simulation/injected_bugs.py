"""Known ways to get the quorum wrong, as small patches of the running core.

Owns: what each replaces. Must not: copy the core, or reach outside it. Invariant: the checks catch
every one of them (test_injected_bugs).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

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
from tests.kit.injected_bugs import InjectedBug, Patch, table

FIRST_SEED = 10_000


def _after(patch: Patch, owner: Any, name: str, change: Callable[..., Any]) -> None:
    """`change(result, self, *arguments)` gives the result instead."""
    original = getattr(owner, name)

    def replacement(self: Any, *arguments: Any, **named: Any) -> Any:
        return change(original(self, *arguments, **named), self, *arguments)

    patch.setattr(owner, name, replacement)


def _before(patch: Patch, owner: Any, name: str, change: Callable[..., None]) -> None:
    """`change(self, *arguments)` happens first."""
    original = getattr(owner, name)

    def replacement(self: Any, *arguments: Any, **named: Any) -> Any:
        change(self, *arguments)
        return original(self, *arguments, **named)

    patch.setattr(owner, name, replacement)


# -- elections -------------------------------------------------------------------------------------


def _without_vote(effects: list[Any]) -> None:
    effects[:] = [
        ef.Persist(each.state._replace(voted=None)) if isinstance(each, ef.Persist) else each
        for each in effects
    ]


def vote_not_persisted(patch: Patch) -> None:
    """A vote is sent before it is durable."""

    def forget_vote(response: Any, self: Elections, request: Any) -> Any:
        if response.vote_granted and not request.pre_vote:
            _without_vote(self._state.effects)
        return response

    _after(patch, Elections, "on_vote", forget_vote)


def own_vote_not_persisted(patch: Patch) -> None:
    """A candidate's vote for itself is not durable."""
    _after(patch, QuorumState, "become_candidate", lambda _, state: _without_vote(state.effects))


def epoch_not_persisted(patch: Patch) -> None:
    """A new epoch is not durable before it is used."""

    def forget_epoch(_: None, state: QuorumState, election: ElectionState) -> None:
        if election.voted is None and election.leader_id < 0:
            state.effects[:] = [each for each in state.effects if not isinstance(each, ef.Persist)]

    _after(patch, QuorumState, "persist", forget_epoch)


def two_votes(patch: Patch) -> None:
    """Two candidates of an epoch get a vote."""

    def may_grant(self: Elections, request: Any) -> bool:
        state = self._state
        up_to_date = state.is_up_to_date(request.last_leader_epoch, request.log_end_offset)
        return up_to_date and not (request.pre_vote and state.has_live_leader)

    patch.setattr(Elections, "_may_grant", may_grant)


def vote_for_shorter_log(patch: Patch) -> None:
    """A candidate gets votes whatever its log lacks."""
    patch.setattr(QuorumState, "is_up_to_date", lambda *_: True)


def late_votes_counted(patch: Patch) -> None:
    """Votes of an earlier epoch, and PreVotes, count in this one."""
    original = Elections.on_vote_response

    def on_vote_response(self: Elections, send: ef.Send, response: Any) -> None:
        state, request = self._state, send.request
        if response is not None and response.vote_granted and state.campaign is not None:
            state.requests.answered(send, state.now_ms, succeeded=True)
            now = request._replace(
                leader_epoch=state.leader_epoch,
                pre_vote=state.role is Role.PROSPECTIVE,
            )
            send = replace(send, request=now)
            response = replace(response, leader_epoch=state.leader_epoch)
        original(self, send, response)

    patch.setattr(Elections, "on_vote_response", on_vote_response)


def no_pre_vote(patch: Patch) -> None:
    """The epoch is raised without asking first."""
    _after(patch, QuorumState, "become_prospective", lambda _, state: state.become_candidate())


def leads_on_after_restart(patch: Patch) -> None:
    """A leader that was restarted goes on in its epoch."""

    def lead_on(_: None, state: QuorumState) -> None:
        if state.role is Role.RESIGNED:
            state.role = Role.LEADER
            state.resignation = state.deadline_ms = None
            state.leading = Leading(state.log.log_end_offset, state.now_ms)

    _after(patch, QuorumState, "restore", lead_on)


def no_epoch_start(patch: Patch) -> None:
    """A new leader does not write its epoch's first batch."""

    def without_epoch_start(_: None, state: QuorumState) -> None:
        state.effects[:] = [
            each for each in state.effects if not isinstance(each, ef.AppendEpochStart)
        ]

    _after(patch, QuorumState, "become_leader", without_epoch_start)


def no_check_quorum(patch: Patch) -> None:
    """A leader without a majority goes on leading."""
    patch.setattr(Replication, "check_quorum_deadline_ms", lambda _: float("inf"))


def full_leader_stays(patch: Patch) -> None:
    """A leader whose disk has no room goes on leading."""
    patch.setattr(Elections, "lose_room", lambda *_a, **_k: None)


def full_replica_stands(patch: Patch) -> None:
    """A replica whose disk has no room stands for election."""
    original = Elections.lose_room

    def lose_room(self: Elections, *, may_lead_on: bool) -> None:
        original(self, may_lead_on=may_lead_on)
        self._state.lacks_room = False

    patch.setattr(Elections, "lose_room", lose_room)


# -- replication -----------------------------------------------------------------------------------


def unflushed_leader_counts(patch: Patch) -> None:
    """The leader's unflushed records count for the high watermark."""

    def durable_end(end: int, self: Replication, leading: Any, voter: Any) -> int:
        return self._state.log.log_end_offset if self._is_local(voter) else end

    _after(patch, Replication, "_durable_end", durable_end)


def _advance(
    patch: Patch,
    *,
    own_epoch_only: bool = True,
    counts_itself: bool = False,
    needed: Callable[[int], int] = lambda count: count // 2 + 1,
) -> None:
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

    patch.setattr(Replication, "advance_high_watermark", advance)


def earlier_epoch_committed(patch: Patch) -> None:
    """Records of an earlier epoch are committed alone."""
    _advance(patch, own_epoch_only=False)


def half_is_a_majority(patch: Patch) -> None:
    """Half of an even number of voters commits."""
    _advance(patch, needed=lambda count: (count + 1) // 2)


def removed_leader_counts(patch: Patch) -> None:
    """A leader that is no voter any more counts itself."""
    _advance(patch, counts_itself=True)


def stale_epoch_fetch(patch: Patch) -> None:
    """A fetch of an earlier epoch is served and counted."""

    def serve_stale(error: ErrorCode, self: Replication, leader_epoch: int) -> ErrorCode:
        fenced = error is ErrorCode.FENCED_LEADER_EPOCH and self._state.role is Role.LEADER
        return ErrorCode.NONE if fenced else error

    _after(patch, Replication, "leader_error", serve_stale)


def divergence_ignored(patch: Patch) -> None:
    """The leader does not notice that a follower's log differs."""

    def never_part(parting: Any, self: Replication, request: Any) -> Any:
        return None if isinstance(parting, EpochEnd) else parting

    _after(patch, Replication, "_where_logs_part", never_part)


def counted_before_matching(patch: Patch) -> None:
    """A fetch offset counts although the log below it differs."""

    def count_first(self: Replication, request: Any, token: Any) -> None:
        if self.leader_error(request.leader_epoch) is ErrorCode.NONE:
            self._count(request.replica, request.fetch_offset)
            self.advance_high_watermark()

    _before(patch, Replication, "on_fetch", count_first)


# -- following -------------------------------------------------------------------------------------


def fetch_before_flush(patch: Patch) -> None:
    """A follower fetches from an offset that is not flushed."""

    def claim_flushed(self: QuorumCore, *_: Any) -> None:
        if self.state.following is not None:
            self.state.flushed_end_offset = self.state.log.log_end_offset

    _before(patch, QuorumCore, "on_appended", claim_flushed)


def truncates_committed(patch: Patch) -> None:
    """A follower truncates below its high watermark."""

    def truncate(self: Fetching, send: Any, diverging: EpochEnd) -> None:
        state = self._state
        end_offset = max(state.log.log_start_offset, state.high_watermark - 1)
        if any(batch.base_offset == end_offset for batch in state.log._disk.log.batches):  # type: ignore[attr-defined]
            state.voters.truncate_to(end_offset)
            state.flushed_end_offset = min(state.flushed_end_offset, end_offset)
            state.effects.append(ef.Truncate(end_offset))
            state.wants_tick = True

    patch.setattr(Fetching, "_truncate", truncate)


def snapshot_backwards(patch: Patch) -> None:
    """A snapshot of less than is held is fetched and installed."""

    def prefer_snapshots(parting: Any, self: Replication, request: Any) -> Any:
        latest = self._state.log.latest_snapshot
        if (
            parting is None
            and latest is not None
            and 0 < latest.end_offset < request.high_watermark
        ):
            return latest
        return parting

    def take_any_snapshot(self: Fetching, following: Any, send: Any, snapshot_id: Any) -> None:
        following.download = Download(snapshot_id)

    def rewind(self: Fetching, snapshot_id: Any, voters: VoterSet) -> None:
        state = self._state
        state.high_watermark = min(state.high_watermark, snapshot_id.end_offset)

    _after(patch, Replication, "_where_logs_part", prefer_snapshots)
    patch.setattr(Fetching, "_begin_download", take_any_snapshot)
    _before(patch, Fetching, "on_snapshot_installed", rewind)


def unflushed_follower_applies(patch: Patch) -> None:
    """A follower's high watermark covers what it has not flushed."""

    def apply_at_once(_: Any, self: Fetching) -> None:
        state, following = self._state, self._state.following
        if following is not None:
            state.raise_high_watermark(
                min(following.leader_high_watermark, state.log.log_end_offset)
            )

    _after(patch, Fetching, "on_appended", apply_at_once)


def stale_answer_used(patch: Patch) -> None:
    """An answer about a log that has changed since is used."""

    def is_about_the_epoch(self: Fetching, request: Any) -> bool:
        following = self._state.following
        assert following is not None
        return request.leader_epoch == self._state.leader_epoch and not following.is_busy

    patch.setattr(Fetching, "_is_about_now", is_about_the_epoch)


def high_watermark_back(patch: Patch) -> None:
    """The high watermark follows the acknowledgements down."""

    def raise_high_watermark(self: QuorumState, high_watermark: int) -> bool:
        if high_watermark < 0 or high_watermark == self.high_watermark:
            return False
        self.high_watermark = high_watermark
        self.effects.append(ef.AdvanceHighWatermark(high_watermark))
        return True

    patch.setattr(QuorumState, "raise_high_watermark", raise_high_watermark)


# -- voters ----------------------------------------------------------------------------------------


def directory_id_ignored(patch: Patch) -> None:
    """A wiped disk keeps its vote."""

    def find(_: Any, self: VoterSet, node_id: int, directory_id: Any) -> Any:
        return self.with_id(node_id)

    def matches(self: ReplicaKey, other: ReplicaKey) -> bool:
        return self.node_id == other.node_id

    def progress_of(self: Leading, voter: Any) -> Any:
        key = self.latest_key.get(voter.voter_id)
        return self.progress.get(key) if key is not None else None

    _after(patch, VoterSet, "find", find)
    patch.setattr(ReplicaKey, "matches", matches)
    patch.setattr(Leading, "progress_of", progress_of)


def voters_survive_truncation(patch: Patch) -> None:
    """A truncated voters record goes on ruling."""
    patch.setattr(VoterHistory, "truncate_to", lambda *_: None)


def _appended_all(self: VoterChanges) -> bool:
    """Whether the change before is at least in the log, so that no record overtakes another."""
    change = self._change
    return change is None or not change.is_appended or change.record_offset is not None


def two_voter_changes(patch: Patch) -> None:
    """A voter change begins before the last one is committed."""

    check = VoterChanges._check

    def refuse_no_change(self: VoterChanges, **options: Any) -> None:
        leads = self._state.role is Role.LEADER and self._replication.has_committed_in_epoch
        is_dynamic = self._state.voters.latest.kraft_version >= 1
        if not (leads and is_dynamic and _appended_all(self)):
            check(self, **options)

    def append_anyway(
        self: VoterChanges, change: Any, voters: VoterSet, *, kraft_version_changed: bool = False
    ) -> None:
        change.is_appended = True
        self._state.effects.append(
            ef.AppendVoters(self._state.leader_epoch, voters, kraft_version_changed)
        )

    patch.setattr(VoterChanges, "_check", refuse_no_change)
    patch.setattr(VoterChanges, "_append", append_anyway)


def early_voter_change(patch: Patch) -> None:
    """Voters change before the epoch has committed a record."""
    patch.setattr(Replication, "has_committed_in_epoch", True)


BUGS = table(
    *(
        InjectedBug(inject, FIRST_SEED)
        for inject in (
            vote_not_persisted,
            own_vote_not_persisted,
            epoch_not_persisted,
            two_votes,
            vote_for_shorter_log,
            late_votes_counted,
            no_pre_vote,
            leads_on_after_restart,
            no_epoch_start,
            no_check_quorum,
            full_leader_stays,
            full_replica_stands,
            unflushed_leader_counts,
            earlier_epoch_committed,
            half_is_a_majority,
            removed_leader_counts,
            stale_epoch_fetch,
            divergence_ignored,
            counted_before_matching,
            fetch_before_flush,
            truncates_committed,
            snapshot_backwards,
            unflushed_follower_applies,
            stale_answer_used,
            high_watermark_back,
            directory_id_ignored,
            voters_survive_truncation,
            two_voter_changes,
            early_voter_change,
        )
    )
)
