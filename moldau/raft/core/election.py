"""Elections: which candidate gets this replica's vote, and how it wins the votes of others.

Owns: Vote, BeginQuorumEpoch and EndQuorumEpoch, asked and answered, and what Unattached,
Prospective, Candidate and Resigned do as time goes by (`state` draws the election timeout). Must
not: touch the log. Invariant: a vote is persisted before it is answered; a candidate counts only
votes of its own epoch, one for each voter of the set its log names (KIP-595, 853, 996).
"""

from __future__ import annotations

from functools import partial
from typing import Final

from moldau.protocol.errors import ErrorCode
from moldau.raft.core.effects import Send
from moldau.raft.core.messages import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    VoteRequest,
    VoteResponse,
)
from moldau.raft.core.roles import Campaign, Role, key_of
from moldau.raft.core.state import QuorumState
from moldau.raft.core.values import NO_NODE, ReplicaKey
from moldau.raft.core.voters import VoterDescription

BACKOFF_BASE_MS: Final = 100
MAX_BACKOFF_DOUBLINGS: Final = 10


class Elections:
    """The state's part in elections."""

    def __init__(self, state: QuorumState) -> None:
        self._state = state

    def on_vote(self, request: VoteRequest) -> VoteResponse:
        """Vote v0-v2: at most one candidate of an epoch gets it; a PreVote binds no voter."""
        state = self._state
        epoch_too_low = (
            request.last_leader_epoch > request.leader_epoch
            if request.pre_vote
            else request.last_leader_epoch >= request.leader_epoch
        )
        if request.candidate.node_id < 0 or request.log_end_offset < 0 or epoch_too_low:
            return self._vote(ErrorCode.INVALID_REQUEST)
        if request.leader_epoch < state.leader_epoch:
            return self._vote(ErrorCode.FENCED_LEADER_EPOCH)
        if request.leader_epoch > state.leader_epoch:
            state.become_unattached(request.leader_epoch)
        if not self._is_meant(request.voter):
            return self._vote(ErrorCode.INVALID_VOTER_KEY)
        granted = self._may_grant(request)
        if granted and not request.pre_vote and state.election.voted is None:
            state.become_unattached(state.leader_epoch, voted=request.candidate)
        return self._vote(ErrorCode.NONE, granted)

    def _may_grant(self, request: VoteRequest) -> bool:
        state = self._state
        up_to_date = state.is_up_to_date(request.last_leader_epoch, request.log_end_offset)
        if request.pre_vote:
            return up_to_date and not state.has_live_leader
        if state.election.voted is not None:
            return up_to_date and state.election.voted == request.candidate
        return up_to_date and state.election.leader_id == NO_NODE

    def _vote(self, error: ErrorCode, granted: bool = False) -> VoteResponse:
        return self._state.answer(VoteResponse, error, vote_granted=granted)

    def _is_meant(self, voter: ReplicaKey | None) -> bool:
        """Whether the request is for this replica, not for one that had its id on another disk."""
        return voter is None or voter.matches(self._state.local)

    def on_begin_quorum_epoch(self, request: BeginQuorumEpochRequest) -> BeginQuorumEpochResponse:
        """BeginQuorumEpoch v0-v1: follow the new leader."""
        state = self._state
        answer = partial(state.answer, BeginQuorumEpochResponse)
        if request.leader_epoch < state.leader_epoch:
            return answer(ErrorCode.FENCED_LEADER_EPOCH)
        if request.leader_id < 0 or request.leader_id == state.local.node_id:
            return answer(ErrorCode.INVALID_REQUEST)
        if not state.learn(
            request.leader_id, request.leader_epoch, request.leader_endpoints, from_leader=True
        ):
            return answer(ErrorCode.INVALID_REQUEST)
        if not self._is_meant(request.voter):
            return answer(ErrorCode.INVALID_VOTER_KEY)
        return answer(ErrorCode.NONE)

    def on_end_quorum_epoch(self, request: EndQuorumEpochRequest) -> EndQuorumEpochResponse:
        """EndQuorumEpoch v0-v1: the leader resigns; the first successor campaigns at once."""
        state = self._state
        answer = partial(state.answer, EndQuorumEpochResponse)
        if request.leader_epoch < state.leader_epoch:
            return answer(ErrorCode.FENCED_LEADER_EPOCH)
        if request.leader_id < 0:
            return answer(ErrorCode.INVALID_REQUEST)
        if request.leader_id == state.local.node_id:
            if state.role is not Role.LEADER or request.leader_epoch != state.leader_epoch:
                return answer(ErrorCode.INVALID_REQUEST)
            self.hand_over(request.preferred_candidates)
            return answer(ErrorCode.NONE)
        if not state.learn(
            request.leader_id, request.leader_epoch, request.leader_endpoints, from_leader=True
        ):
            return answer(ErrorCode.INVALID_REQUEST)
        state.leader_is_gone(self._successor_backoff_ms(request.preferred_candidates))
        return answer(ErrorCode.NONE)

    def _successor_backoff_ms(self, successors: tuple[ReplicaKey, ...]) -> float:
        """0 for the first successor, then doubling up to the longest backoff, which also every
        voter has that is not among the successors.
        """
        longest_ms = float(self._state.settings.election_backoff_max_ms)
        for position, successor in enumerate(successors):
            if successor.matches(self._state.local):
                if position == 0:
                    return 0.0
                return min(longest_ms, longest_ms * 2.0 ** (position - len(successors) + 1))
        return longest_ms

    def poll_unattached(self) -> float | None:
        """Campaign when the election timeout is over. Returns when to look again."""
        state = self._state
        if not state.may_stand or state.is_shutting_down:
            return None
        if state.deadline_ms is None:
            state.deadline_ms = state.now_ms + state.election_timeout_ms()
        if state.now_ms >= state.deadline_ms:
            state.become_prospective()
        return state.deadline_ms

    def poll_campaign(self) -> float | None:
        """Prospective and Candidate: win, lose, or ask on. Returns when to look again."""
        state, campaign = self._state, self._state.campaign
        assert campaign is not None
        assert state.deadline_ms is not None
        if state.lacks_room or (state.is_last_epoch and state.role is Role.PROSPECTIVE):
            self._give_up()
            return None
        if campaign.is_won:
            if state.role is Role.PROSPECTIVE:
                state.become_candidate()
            else:
                state.become_leader()
            return None
        if state.role is Role.PROSPECTIVE and (
            campaign.is_lost or state.now_ms >= state.deadline_ms
        ):
            self._give_up()
            return None
        if state.role is Role.CANDIDATE:
            if (campaign.is_lost or campaign.is_hopeless) and not campaign.is_backing_off:
                campaign.is_backing_off = True
                state.lost_elections_count += 1
                state.deadline_ms = min(state.deadline_ms, state.now_ms + self._backoff_ms())
            if state.now_ms >= state.deadline_ms:
                state.become_prospective()
                return None
        return self._ask_for_votes(campaign, state.deadline_ms)

    def _give_up(self) -> None:
        """Follow the last known leader again, if there is one (KIP-996)."""
        state = self._state
        leader_id = state.election.leader_id
        if leader_id == NO_NODE or state.gone_leader_epoch == state.leader_epoch:
            state.become_unattached(state.leader_epoch)
        else:
            state.become_follower(state.leader_epoch, leader_id, state.leader_endpoints)

    def _backoff_ms(self) -> float:
        """After a lost election: random, its bound doubling with every loss in a row."""
        doublings = min(self._state.lost_elections_count, MAX_BACKOFF_DOUBLINGS)
        backoff_ms = BACKOFF_BASE_MS * self._state.random.random() * 2.0**doublings
        return min(backoff_ms, float(self._state.settings.election_backoff_max_ms))

    def _ask_for_votes(self, campaign: Campaign, wake_ms: float) -> float:
        state = self._state
        for voter in campaign.electorate:
            key = key_of(voter)
            if campaign.has_answered(key) or key.matches(state.local):
                continue
            destination = state.destination_of(voter.voter_id, voter.endpoints)
            if destination is None:
                continue
            request = partial(
                VoteRequest,
                candidate=state.local,
                voter=key,
                leader_epoch=state.leader_epoch,
                last_leader_epoch=state.log.last_leader_epoch,
                log_end_offset=state.log.log_end_offset,
                pre_vote=state.role is Role.PROSPECTIVE,
            )
            wake_ms = min(wake_ms, state.ask(destination, VoteRequest, request))
        return wake_ms

    def on_vote_response(self, send: Send, response: VoteResponse | None) -> None:
        """Count it if it answers this campaign."""
        state, request = self._state, send.request
        assert isinstance(request, VoteRequest)
        assert request.voter is not None
        useful = response is not None and response.error in (
            ErrorCode.NONE,
            ErrorCode.UNSUPPORTED_VERSION,
        )
        state.requests.answered(send, state.now_ms, succeeded=useful)
        if response is not None:
            state.learn_from(send, response)
        campaign = state.campaign
        if (
            campaign is None
            or request.leader_epoch != state.leader_epoch
            or request.pre_vote != (state.role is Role.PROSPECTIVE)
        ):
            return
        if response is None or not useful:
            if request.voter not in campaign.failed:
                campaign.failed.append(request.voter)
        elif response.error is ErrorCode.UNSUPPORTED_VERSION:
            if request.pre_vote:  # an older replica knows no PreVote: ask for its vote
                campaign.record(request.voter, granted=True)
        elif response.leader_epoch == request.leader_epoch or not response.vote_granted:
            campaign.record(request.voter, response.vote_granted)

    def hand_over(self, preferred: tuple[ReplicaKey, ...]) -> None:
        """Resign as soon as the first of `preferred` could win, and after an election timeout all
        the same: a candidate that lacks a record is refused the votes of replicas that have it.
        """
        state, leading = self._state, self._state.leading
        assert leading is not None
        leading.heirs = preferred
        leading.handover_deadline_ms = state.now_ms + state.settings.election_timeout_ms
        self.poll_handover()

    def poll_handover(self) -> float:
        """Resign if it is time to. Returns when to look again."""
        state, leading = self._state, self._state.leading
        assert leading is not None
        if state.now_ms < leading.handover_deadline_ms:
            voters = state.voters.latest
            heir = voters.find(*leading.heirs[0]) if leading.heirs else None
            progress = leading.progress_of(heir) if heir is not None else None
            if progress is not None and progress.log_end_offset < state.log.log_end_offset:
                return leading.handover_deadline_ms
            if leading.handover_deadline_ms == float("inf"):
                return leading.handover_deadline_ms
        self.resign(leading.heirs)
        return state.now_ms

    def resign(self, preferred: tuple[ReplicaKey, ...] = ()) -> None:
        """Stop leading; the successors are `preferred`, then the others, the longest log first."""
        state, leading = self._state, self._state.leading
        assert leading is not None

        def rank(voter: VoterDescription) -> tuple[int, int]:
            progress = leading.progress_of(voter)
            end_offset = progress.log_end_offset if progress is not None else -1
            key = key_of(voter)
            order = [place for place, each in enumerate(preferred) if each.matches(key)]
            return (order[0] if order else len(preferred), -end_offset)

        others = [
            voter for voter in state.voters.latest.voters if not key_of(voter).matches(state.local)
        ]
        state.become_resigned(tuple(key_of(voter) for voter in sorted(others, key=rank)))

    def lose_room(self, *, may_lead_on: bool) -> None:
        """The disk has no room: another voter leads, and this one does not stand for election.

        The only voter leads on if it may, since no other could in its place: it can still be read,
        and takes what finds room.
        """
        state = self._state
        state.lacks_room = True
        if state.role is Role.LEADER and not (may_lead_on and state.is_sole_voter):
            self.resign()

    def regain_room(self) -> None:
        """The disk has room again: stand like every other voter."""
        state = self._state
        state.lacks_room = False
        if state.role is Role.UNATTACHED and state.is_sole_voter:
            state.deadline_ms = state.now_ms

    def poll_resigned(self) -> float | None:
        """Tell every voter until it has acknowledged; after a timeout, become Unattached."""
        state, resignation = self._state, self._state.resignation
        assert resignation is not None
        assert state.deadline_ms is not None
        if state.now_ms >= state.deadline_ms:
            if state.is_shutting_down:
                return None
            # A voter's next vote needs a new epoch: this one's was its own.
            state.become_unattached(state.leader_epoch + (1 if state.may_stand else 0))
            return None
        wake_ms = state.deadline_ms
        for key in resignation.successors:
            voter = state.voters.latest.with_id(key.node_id)
            if key in resignation.acknowledged or voter is None:
                continue
            destination = state.destination_of(voter.voter_id, voter.endpoints)
            if destination is None:
                continue
            request = partial(
                EndQuorumEpochRequest,
                leader_id=state.local.node_id,
                leader_epoch=state.leader_epoch,
                preferred_candidates=resignation.successors,
                leader_endpoints=state.settings.endpoints,
            )
            wake_ms = min(wake_ms, state.ask(destination, EndQuorumEpochRequest, request))
        return wake_ms

    def on_end_quorum_epoch_response(
        self, send: Send, response: EndQuorumEpochResponse | None
    ) -> None:
        """A voter that has acknowledged the resignation is not sent it again."""
        state, request = self._state, send.request
        assert isinstance(request, EndQuorumEpochRequest)
        acknowledged = state.note_answer(send, response)
        resignation = state.resignation
        if resignation is None or not acknowledged or request.leader_epoch != state.leader_epoch:
            return
        for key in resignation.successors:
            if key.node_id == send.destination.node_id and key not in resignation.acknowledged:
                resignation.acknowledged.append(key)
