"""Adding, removing and updating voters, and raising kraft.version, on the leader.

Owns: the one change that may be under way, and its end. Must not: decide who is a voter (the log
does, by VoterHistory). Invariant: two voter sets that follow one another differ by one voter at
most, and the next is appended only when the one before is committed, and a record of this leader's
epoch too: so any two majorities of neighbouring sets share a voter (KIP-853, Raft dissertation
4.1 and its later correction).
"""

from __future__ import annotations

from dataclasses import dataclass

from moldau.protocol.errors import ErrorCode
from moldau.protocol.types import ZERO_UUID
from moldau.raft.core.effects import AppendVoters, Complete, Reply, Send
from moldau.raft.core.election import Elections
from moldau.raft.core.messages import (
    KraftVersionRequest,
    KraftVersionResponse,
    UpdateVoterRequest,
    UpdateVoterResponse,
)
from moldau.raft.core.replication import Replication
from moldau.raft.core.roles import Leading, Reported, Role, key_of
from moldau.raft.core.state import QuorumState
from moldau.raft.core.values import ReplicaKey
from moldau.raft.core.voters import LATEST_KRAFT_VERSION, VoterDescription, VoterSet


class Refused(Exception):
    """A change that this replica does not begin; the answer to its sender."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error
        self.message = message


@dataclass(slots=True)
class _Change:
    """Stages: an addition asks the new voter, then waits until it has caught up; then, and every
    other change at once, appended (`is_appended`), in the log (`record_offset`), committed.
    """

    token: object
    what: str
    deadline_ms: float
    adding: VoterDescription | None = None
    ack_when_committed: bool = True
    answers_update_voter: bool = False
    has_agreed: bool = False
    is_appended: bool = False
    record_offset: int | None = None


class VoterChanges:
    """The state's part in changing the voters. `add`, `remove` and `upgrade` raise Refused."""

    def __init__(self, state: QuorumState, replication: Replication, elections: Elections) -> None:
        self._state = state
        self._replication = replication
        self._elections = elections
        self._change: _Change | None = None

    def _check(self, *, needs_kraft_version: bool = True) -> None:
        """Raises Refused: no change can begin now."""
        state = self._state
        if state.role is not Role.LEADER:
            raise not_the_leader()
        if self._change is not None:
            reason = f"the leader has not finished another voter change ({self._change.what})"
            raise Refused(ErrorCode.REQUEST_TIMED_OUT, reason)
        if not self._replication.has_committed_in_epoch:
            reason = "the leader has not committed a record of its epoch yet"
            raise Refused(ErrorCode.REQUEST_TIMED_OUT, reason)
        if needs_kraft_version and state.voters.latest.kraft_version < 1:
            reason = "voters cannot change while kraft.version is 0"
            raise Refused(ErrorCode.UNSUPPORTED_VERSION, reason)
        if state.voters.latest_offset >= state.high_watermark:
            offset = state.voters.latest_offset
            reason = f"the last voter change, at offset {offset}, is not committed"
            raise Refused(ErrorCode.REQUEST_TIMED_OUT, reason)

    def add(
        self, token: object, voter: VoterDescription, *, ack_when_committed: bool, timeout_ms: int
    ) -> None:
        """AddRaftVoter, once the replica speaks this kraft.version and has caught up."""
        state = self._state
        self._check()
        if state.voters.latest.with_id(voter.voter_id) is not None:
            raise Refused(ErrorCode.DUPLICATE_VOTER, f"node {voter.voter_id} is a voter already")
        if voter.voter_id < 0 or voter.directory_id == ZERO_UUID or not voter.endpoints:
            reason = f"a new voter needs node id, directory id and endpoints, not {voter}"
            raise Refused(ErrorCode.INVALID_REQUEST, reason)
        self._change = _Change(
            token,
            f"adding {voter}",
            state.now_ms + timeout_ms,
            adding=voter,
            ack_when_committed=ack_when_committed,
        )

    def remove(self, token: object, voter: ReplicaKey, *, timeout_ms: int) -> None:
        """RemoveRaftVoter. The leader may remove itself: it leads until that is committed."""
        self._check()
        latest = self._state.voters.latest
        left = tuple(each for each in latest.voters if key_of(each) != voter)
        if len(left) == len(latest.voters):
            raise not_a_voter(voter)
        if not left:
            reason = f"{voter} is the last voter and has to stay"
            raise Refused(ErrorCode.INVALID_REQUEST, reason)
        self._change = _Change(token, f"removing {voter}", self._state.now_ms + timeout_ms)
        self._append(self._change, latest._replace(voters=left))

    def upgrade(self, token: object, level: int, *, timeout_ms: int) -> None:
        """UpdateFeatures of kraft.version: voters records need every voter's directory id."""
        state = self._state
        latest = state.voters.latest
        is_committed = state.voters.latest_offset < state.high_watermark
        if state.role is Role.LEADER and level == latest.kraft_version and is_committed:
            state.effects.append(Complete(token, ErrorCode.NONE))
            return
        if state.role is Role.LEADER and not latest.kraft_version <= level <= LATEST_KRAFT_VERSION:
            raise Refused(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"kraft.version can go from {latest.kraft_version} up to {LATEST_KRAFT_VERSION}, "
                f"not to {level}",
            )
        self._check(needs_kraft_version=False)
        described = [self._described(voter, level) for voter in latest.voters]
        missing = [
            str(voter.voter_id)
            for voter, known in zip(latest.voters, described, strict=True)
            if known is None
        ]
        if missing:
            raise Refused(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"voters {', '.join(missing)} have not told this leader their directory ids and "
                f"that they speak kraft.version {level}",
            )
        self._change = _Change(token, f"kraft.version {level}", state.now_ms + timeout_ms)
        voters = tuple(known for known in described if known is not None)
        self._append(self._change, VoterSet(voters, level), kraft_version_changed=True)

    def _described(self, voter: VoterDescription, level: int) -> VoterDescription | None:
        """A configured voter's directory and endpoints; None while it has not reported them."""
        state, leading = self._state, self._state.leading
        assert leading is not None
        if voter.voter_id == state.local.node_id:
            endpoints = state.settings.endpoints or voter.endpoints
            return VoterDescription(*state.local, endpoints)
        known = leading.reported.get(voter.voter_id)
        if known is None or not known.min_kraft_version <= level <= known.max_kraft_version:
            return None
        return known.voter

    def on_update_voter(self, request: UpdateVoterRequest, token: object) -> None:
        """UpdateRaftVoter v0: a voter's endpoints, and which kraft.versions it speaks."""
        state = self._state
        error = self._replication.leader_error(request.leader_epoch)
        if error is not ErrorCode.NONE:
            self._reply(token, error)
            return
        latest, voter = state.voters.latest, request.voter
        leading = state.leading
        assert leading is not None
        listeners = {each.listener_name for each in voter.endpoints}
        is_reached = bool(listeners)
        if state.settings.endpoints:  # replicas reach each other on the same listener
            is_reached = state.settings.endpoints[0].listener_name in listeners
        if not is_reached or voter.directory_id == ZERO_UUID:
            self._reply(token, ErrorCode.INVALID_REQUEST)
            return
        if latest.kraft_version < 1:
            self._note(leading, request, token)
            return
        try:
            self._check()
        except Refused as refusal:
            self._reply(token, refusal.error)
            return
        if not request.min_kraft_version <= latest.kraft_version <= request.max_kraft_version:
            self._reply(token, ErrorCode.INVALID_REQUEST)
        elif key_of(voter) not in map(key_of, latest.voters):
            self._reply(token, ErrorCode.VOTER_NOT_FOUND)
        elif voter in latest.voters:
            self._reply(token, ErrorCode.NONE)
        else:
            deadline_ms = state.now_ms + state.settings.request_timeout_ms
            self._change = _Change(
                token, f"updating {voter}", deadline_ms, answers_update_voter=True
            )
            self._append(self._change, _with(latest, voter))

    def _note(self, leading: Leading, request: UpdateVoterRequest, token: object) -> None:
        if self._state.voters.latest.with_id(request.voter.voter_id) is None:
            self._reply(token, ErrorCode.VOTER_NOT_FOUND)
            return
        leading.reported[request.voter.voter_id] = Reported(
            request.voter, request.min_kraft_version, request.max_kraft_version
        )
        self._reply(token, ErrorCode.NONE)

    def _reply(self, token: object, error: ErrorCode) -> None:
        response = self._state.answer(UpdateVoterResponse, error)
        self._state.effects.append(Reply(token, response))

    def _append(
        self, change: _Change, voters: VoterSet, *, kraft_version_changed: bool = False
    ) -> None:
        state = self._state
        assert state.role is Role.LEADER
        assert state.voters.latest_offset < state.high_watermark, "two voter changes at once"
        change.is_appended = True
        state.effects.append(AppendVoters(state.leader_epoch, voters, kraft_version_changed))

    def on_appended(self) -> None:
        """The record is in the log: from now on the new voters rule."""
        change, state = self._change, self._state
        if change is not None and change.is_appended and change.record_offset is None:
            change.record_offset = state.voters.latest_offset
            if not change.ack_when_committed:
                self._end(ErrorCode.NONE)

    def _end(self, error: ErrorCode, message: str = "") -> None:
        change = self._change
        assert change is not None
        self._change = None
        if change.answers_update_voter:
            self._reply(change.token, error)
        elif change.token is not None:
            self._state.effects.append(Complete(change.token, error, message))

    def poll(self) -> float | None:
        """Take the change a step further, or end it. Returns when to look again."""
        state, change = self._state, self._change
        if change is None:
            return None
        if state.role is not Role.LEADER:
            self._end(ErrorCode.NOT_LEADER_OR_FOLLOWER, "leadership ended during the voter change")
            return None
        if change.record_offset is not None and change.record_offset < state.high_watermark:
            self._end(ErrorCode.NONE)
            return None
        if state.now_ms >= change.deadline_ms:
            stage = "is not committed yet" if change.is_appended else "could not begin in time"
            self._end(ErrorCode.REQUEST_TIMED_OUT, f"{change.what} {stage}")
            return None
        if change.adding is not None and not change.is_appended:
            return min(change.deadline_ms, self._poll_addition(change, change.adding))
        return change.deadline_ms

    def poll_leader(self) -> None:
        """A leader that is no voter resigns once that is committed; a leader whose endpoints have
        changed writes them down.
        """
        state, leading = self._state, self._state.leading
        assert leading is not None
        try:
            self._check()
        except Refused:
            return
        latest = state.voters.latest
        if not state.is_voter:
            self._elections.resign()
            return
        itself = VoterDescription(*state.local, state.settings.endpoints)
        if leading.has_corrected_itself or itself in latest.voters or not itself.endpoints:
            return
        leading.has_corrected_itself = True
        self._change = _Change(
            None, f"updating {itself}", state.now_ms + state.settings.request_timeout_ms
        )
        self._append(self._change, _with(latest, itself))

    def _poll_addition(self, change: _Change, voter: VoterDescription) -> float:
        state, leading = self._state, self._state.leading
        assert leading is not None
        destination = state.destination_of(voter.voter_id, voter.endpoints)
        assert destination is not None
        if not change.has_agreed:
            return state.ask(destination, KraftVersionRequest, KraftVersionRequest)
        progress = leading.progress.get(key_of(voter))
        caught_up_ms = progress.last_caught_up_ms if progress is not None else None
        if (
            caught_up_ms is not None
            and state.now_ms - caught_up_ms <= state.settings.fetch_timeout_ms
        ):
            latest = state.voters.latest
            self._append(change, latest._replace(voters=(*latest.voters, voter)))
        return float("inf")

    def on_kraft_version_response(self, send: Send, response: KraftVersionResponse | None) -> None:
        """The new voter has answered: add it if it speaks this kraft.version."""
        state, change = self._state, self._change
        succeeded = response is not None and response.error is ErrorCode.NONE
        state.requests.answered(send, state.now_ms, succeeded=succeeded)
        if response is None or not succeeded or change is None or change.adding is None:
            return
        voter = change.adding
        if change.is_appended or send.destination != state.destination_of(
            voter.voter_id, voter.endpoints
        ):
            return
        level = state.voters.latest.kraft_version
        if response.min_kraft_version <= level <= response.max_kraft_version:
            change.has_agreed = True
            return
        self._end(
            ErrorCode.INVALID_REQUEST,
            f"{voter} speaks kraft.version {response.min_kraft_version} to "
            f"{response.max_kraft_version}, and the quorum is at {level}",
        )


def not_the_leader() -> Refused:
    return Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this controller is not the leader")


def not_a_voter(replica: ReplicaKey) -> Refused:
    return Refused(ErrorCode.VOTER_NOT_FOUND, f"{replica} is not a voter")


def _with(voters: VoterSet, changed: VoterDescription) -> VoterSet:
    """The set with one voter's description replaced."""
    return voters._replace(
        voters=tuple(
            changed if key_of(each) == key_of(changed) else each for each in voters.voters
        ),
    )
