"""How a follower or observer gets the leader's log, and how a replica without a leader finds one.

Owns: Fetch, FetchSnapshot and UpdateVoter as asked by this replica. Must not: serve. Invariant: a
fetch says only what is flushed; an answer is used only when it answers a question about the log as
it is now, in the epoch that is now; nothing below the high watermark is ever removed (KIP-595,
630).
"""

from __future__ import annotations

from functools import partial
from typing import Final

from moldau.protocol.errors import ErrorCode
from moldau.raft.core.effects import AppendFetched, Send, Truncate, WriteSnapshotChunk
from moldau.raft.core.messages import (
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    UpdateVoterRequest,
    UpdateVoterResponse,
)
from moldau.raft.core.roles import UNKNOWN_OFFSET, Download, Following, Role
from moldau.raft.core.state import NO_EPOCH, QuorumState
from moldau.raft.core.values import NO_NODE, Destination, EpochEnd, SnapshotId
from moldau.raft.core.voters import LATEST_KRAFT_VERSION, VoterDescription, VoterEndpoint, VoterSet

UPDATE_VOTER_FETCH_TIMEOUTS = 3
"""How many fetch timeouts lie between two reports of a voter about itself."""
UNNAMED_LISTENER = "CONTROLLER"
DISCOVERIES_PER_ELECTION_TIMEOUT = 4
"""How many replicas in turn are asked for the leader while none of them answers."""


REFUSALS_OF_THE_DEAD: Final = 3
"""Fetches that fail at once, one after the other, until a follower gives its leader up: the first
may be the connection that breaks, the others are new connections that are refused."""
MAX_DOUBLINGS: Final = 20
"""The limit for doublings of the pause after records that were refused."""
REFUSED_WITHIN: Final = 0.1
"""The share of the request timeout: what fails faster was refused, not lost."""


class Fetching:
    """The state's part in following."""

    def __init__(self, state: QuorumState) -> None:
        self._state = state

    def poll_follower(self) -> float | None:
        """Give up a silent leader, or fetch from it. Returns when to look again."""
        state, following = self._state, self._state.following
        assert following is not None
        assert state.deadline_ms is not None
        if state.now_ms >= state.deadline_ms:
            if state.may_stand and not state.is_shutting_down:
                state.become_prospective()
            else:
                state.become_unattached(state.leader_epoch)
            return None
        wake_ms = min(state.deadline_ms, self._poll_update_voter(following))
        if following.is_busy or state.flushed_end_offset < state.log.log_end_offset:
            return wake_ms
        if following.download is not None:
            return min(wake_ms, self._fetch_snapshot(following, following.download))
        return min(wake_ms, self._fetch(following))

    def _fetch(self, following: Following) -> float:
        state, leader = self._state, following.destination
        if state.requests.is_awaited(leader, FetchRequest):
            return float("inf")
        wake_ms = state.requests.ready_ms(leader, FetchRequest)
        if state.now_ms < wake_ms:
            if not state.requests.has_failed(leader, FetchRequest):
                return wake_ms
            # The leader did not answer well: another replica may know a newer leader.
            return min(wake_ms, self.poll_discovery())
        state.send(leader, self._fetch_request(state.settings.fetch_max_wait_ms))
        return float("inf")

    def _fetch_request(self, max_wait_ms: int) -> FetchRequest:
        state = self._state
        return FetchRequest(
            replica=state.local,
            leader_epoch=state.leader_epoch,
            fetch_offset=state.log.log_end_offset,
            last_fetched_epoch=state.log.last_leader_epoch,
            high_watermark=state.high_watermark,
            max_wait_ms=max_wait_ms,
            max_bytes=state.settings.fetch_max_bytes,
        )

    def poll_discovery(self) -> float:
        """Ask a replica that may know the leader, picked at random. Returns when to look again.

        One replica at a time: its answer may be enough, unless it takes long.
        """
        state = self._state
        if state.flushed_end_offset < state.log.log_end_offset:
            return float("inf")
        leader = state.following.destination if state.following is not None else None
        asked_ms = state.requests.last_awaited_ms(FetchRequest, but=leader)
        patience_ms = state.settings.election_timeout_ms / DISCOVERIES_PER_ELECTION_TIMEOUT
        if asked_ms is not None and state.now_ms < asked_ms + patience_ms:
            return asked_ms + patience_ms
        idle = [
            each
            for each in self._informants()
            if each != leader and not state.requests.is_awaited(each, FetchRequest)
        ]
        ready = [
            each for each in idle if state.now_ms >= state.requests.ready_ms(each, FetchRequest)
        ]
        if ready:
            chosen = ready[state.random.randrange(len(ready))]
            state.send(chosen, self._fetch_request(max_wait_ms=0))
            return state.now_ms + patience_ms
        return min(
            (state.requests.ready_ms(each, FetchRequest) for each in idle), default=float("inf")
        )

    def _informants(self) -> list[Destination]:
        state = self._state
        own = [(each.host, each.port) for each in state.settings.endpoints]
        known = [
            each
            for each in state.settings.bootstrap_servers
            if each.node_id != state.local.node_id and (each.host, each.port) not in own
        ]
        for voter in state.voters.latest.voters:
            destination = state.destination_of(voter.voter_id, voter.endpoints)
            if destination is None or voter.voter_id == state.local.node_id:
                continue
            if not any(
                (each.host, each.port) == (destination.host, destination.port) for each in known
            ):
                known.append(destination)
        return known

    def on_fetch_response(self, send: Send, response: FetchResponse | None) -> None:
        """Use the answer: records, an offset to truncate to, or the id of a snapshot."""
        state, request = self._state, send.request
        assert isinstance(request, FetchRequest)
        succeeded = response is not None and response.error is ErrorCode.NONE
        took_ms = state.requests.answered(send, state.now_ms, succeeded=succeeded)
        if response is None:
            self._leader_was_not_reached(send, took_ms)
            return
        from_leader = response.leader_id == send.destination.node_id or (
            succeeded and response.leader_id != NO_NODE
        )
        leader_endpoints = response.leader_endpoints
        if succeeded and state.destination_of(response.leader_id, leader_endpoints) is None:
            # It leads and does not give its address: it is where it has answered.
            reached = send.destination
            leader_endpoints = (VoterEndpoint(UNNAMED_LISTENER, reached.host, reached.port),)
        if (
            succeeded
            and took_ms is not None
            and state.role is Role.UNATTACHED
            and response.leader_epoch == state.gone_leader_epoch
        ):
            state.gone_leader_epoch = NO_EPOCH  # it leads: it has been asked since
        state.learn(
            response.leader_id, response.leader_epoch, leader_endpoints, from_leader=from_leader
        )
        following = state.following
        if following is None or response.leader_epoch != state.leader_epoch:
            if succeeded:
                state.requests.pause(send, state.now_ms)
            return
        if not succeeded:
            if (
                response.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
                and response.leader_id == NO_NODE
                and send.destination == following.destination
                and took_ms is not None
            ):
                # It led this epoch when it was asked, or before; it leads no more, and cannot lead
                # the epoch again. An answer from before it was followed does not say so. Its
                # EndQuorumEpoch is on the way to its preferred successors, and goes first.
                longest_ms = float(state.settings.election_backoff_max_ms)
                state.leader_is_gone(longest_ms * (1.0 + state.random.random()) / 2)
            return
        if response.leader_id == state.election.leader_id and self._is_about_now(request):
            self._use(following, send, response, took_ms)

    def _is_about_now(self, request: FetchRequest) -> bool:
        """Whether log and epoch are still what the request said."""
        state, following = self._state, self._state.following
        assert following is not None
        return (
            request.leader_epoch == state.leader_epoch
            and request.fetch_offset == state.log.log_end_offset == state.flushed_end_offset
            and request.last_fetched_epoch == state.log.last_leader_epoch
            and not following.is_busy
            and following.download is None
        )

    def _use(
        self, following: Following, send: Send, response: FetchResponse, took_ms: float | None
    ) -> None:
        state = self._state
        self._leader_has_answered(following)
        if response.diverging is not None:
            self._truncate(send, response.diverging)
        elif response.snapshot_id is not None:
            self._begin_download(following, send, response.snapshot_id)
        elif len(response.records) > 0:
            following.leader_high_watermark = response.high_watermark
            following.is_busy = True
            state.effects.append(
                AppendFetched(state.log.log_end_offset, state.leader_epoch, response.records)
            )
        else:
            following.leader_high_watermark = response.high_watermark
            is_news = self.advance_high_watermark()
            if not is_news and took_ms is not None and took_ms < state.settings.retry_backoff_ms:
                state.requests.pause(send, state.now_ms)  # a leader that does not let us wait

    def _leader_was_not_reached(self, send: Send, took_ms: float | None) -> None:
        """Campaign soon when the leader's address refuses connections (ADR 0006).

        A cut link answers nothing; a connection that is refused, more than once, says that the
        process is gone. That may be wrong: then the PreVote finds voters that have a leader.
        """
        state, following = self._state, self._state.following
        if following is None or took_ms is None or send.destination != following.destination:
            return
        if took_ms > REFUSED_WITHIN * state.settings.request_timeout_ms:
            following.refusals_count = 0
            return
        following.refusals_count += 1
        if following.refusals_count == REFUSALS_OF_THE_DEAD and state.deadline_ms is not None:
            following.has_fetched = False
            state.deadline_ms = min(state.deadline_ms, state.soon_ms())

    def _leader_has_answered(self, following: Following) -> None:
        state = self._state
        following.has_fetched = True
        following.refusals_count = 0
        if state.gone_leader_epoch != state.leader_epoch:
            state.deadline_ms = state.fetch_deadline_ms()

    def on_appended(self) -> None:
        """The fetched records are in the log."""
        state, following = self._state, self._state.following
        if following is not None:
            following.is_busy = False
            following.unusable_count = 0
        if not state.settings.is_controller:
            # A broker never votes: no majority counts on its disk, and what the quorum has
            # committed is committed whether it is flushed here or not.
            state.flushed_end_offset = state.log.log_end_offset
            self.advance_high_watermark()

    def advance_high_watermark(self) -> bool:
        """Up to the leader's, as far as this replica's own log is flushed."""
        state, following = self._state, self._state.following
        if following is None:
            return False
        return state.raise_high_watermark(
            min(following.leader_high_watermark, state.flushed_end_offset)
        )

    def _truncate(self, send: Send, diverging: EpochEnd) -> None:
        """The leader's log has `diverging` as the last epoch that both can share (KIP-595)."""
        state = self._state
        ours = state.log.end_of_epoch(diverging.leader_epoch)
        end_offset = ours.end_offset
        if ours.leader_epoch == diverging.leader_epoch:
            end_offset = min(end_offset, diverging.end_offset)
        if end_offset >= state.log.log_end_offset:
            state.requests.pause(send, state.now_ms)  # nothing diverges there
            return
        if end_offset < state.high_watermark:
            state.stop(
                f"the leader of epoch {state.leader_epoch}, node {state.election.leader_id}, asks "
                f"to truncate the log to {end_offset}, below the high watermark "
                f"{state.high_watermark}: committed records would be lost"
            )
            return
        assert state.following is not None
        state.following.leader_high_watermark = UNKNOWN_OFFSET
        state.voters.truncate_to(end_offset)
        state.flushed_end_offset = min(state.flushed_end_offset, end_offset)
        state.effects.append(Truncate(end_offset))
        state.wants_tick = True

    def _begin_download(self, following: Following, send: Send, snapshot_id: SnapshotId) -> None:
        """Only a snapshot of more than what is known committed here: all below it can go then."""
        state = self._state
        if snapshot_id.end_offset <= state.high_watermark or snapshot_id.leader_epoch < 0:
            state.requests.pause(send, state.now_ms)
            return
        if state.lacks_room:
            self._pause_fetches(following)
            return
        following.download = Download(snapshot_id)

    def _fetch_snapshot(self, following: Following, download: Download) -> float:
        state, leader = self._state, following.destination
        request = partial(
            FetchSnapshotRequest,
            replica=state.local,
            leader_epoch=state.leader_epoch,
            snapshot_id=download.snapshot_id,
            position=download.position,
            max_bytes=state.settings.fetch_snapshot_max_bytes,
        )
        ready_ms = state.ask(leader, FetchSnapshotRequest, request)
        return min(ready_ms, self.poll_discovery()) if ready_ms < float("inf") else ready_ms

    def on_fetch_snapshot_response(
        self, send: Send, response: FetchSnapshotResponse | None
    ) -> None:
        """Write the bytes down and go on; start again with a fetch when the snapshot is gone."""
        state, request = self._state, send.request
        assert isinstance(request, FetchSnapshotRequest)
        succeeded = state.note_answer(send, response)
        if response is None:
            return
        following = state.following
        download = following.download if following is not None else None
        if (
            following is None
            or download is None
            or following.is_busy
            or request.leader_epoch != state.leader_epoch
            or response.leader_epoch != state.leader_epoch
            or (request.snapshot_id, request.position) != (download.snapshot_id, download.position)
        ):
            return
        if response.error in (ErrorCode.SNAPSHOT_NOT_FOUND, ErrorCode.POSITION_OUT_OF_RANGE):
            self._leader_has_answered(following)
            following.download = None
        elif succeeded:
            self._leader_has_answered(following)
            self._write_chunk(following, download, response)

    def _write_chunk(
        self, following: Following, download: Download, response: FetchSnapshotResponse
    ) -> None:
        state = self._state
        end = response.position + len(response.data)
        is_last = end == response.size_bytes
        if (
            (response.snapshot_id, response.position) != (download.snapshot_id, download.position)
            or download.size_bytes not in (None, response.size_bytes)
            or end > response.size_bytes
            or len(response.data) == 0
        ):
            self.forget_download()  # the answer contradicts itself: ask again, not at once
            return
        state.effects.append(
            WriteSnapshotChunk(download.snapshot_id, download.position, response.data, is_last)
        )
        download.size_bytes = response.size_bytes
        download.position = end
        following.is_busy = is_last

    def on_snapshot_installed(self, snapshot_id: SnapshotId, voters: VoterSet) -> None:
        """The log begins, and ends, where the snapshot ends."""
        state = self._state
        if snapshot_id.end_offset < state.high_watermark:
            state.stop(
                f"a snapshot that ends at {snapshot_id.end_offset} has replaced a log that is "
                f"committed up to {state.high_watermark}"
            )
            return
        state.voters.reset(voters)
        state.flushed_end_offset = snapshot_id.end_offset
        if state.following is not None:
            state.following.download = None
            state.following.is_busy = False
            state.following.unusable_count = 0
        state.raise_high_watermark(snapshot_id.end_offset)

    def forget_download(self) -> None:
        """The fetched snapshot cannot be used: start again with a fetch, not at once."""
        following = self._state.following
        if following is not None:
            following.download = None
            following.is_busy = False
            self._pause_fetches(following)

    def append_refused(self) -> None:
        """The leader's records were damaged: fetch them again, not at once."""
        following = self._state.following
        if following is not None:
            following.is_busy = False
            following.leader_high_watermark = UNKNOWN_OFFSET
            self._pause_fetches(following)

    def _pause_fetches(self, following: Following) -> None:
        """Longer each time in a row, but not so long that the leader misses this replica."""
        state = self._state
        fetch = Send(following.destination, self._fetch_request(0), 0.0)
        pause_ms = state.settings.retry_backoff_ms * 2.0**following.unusable_count
        longest_ms = state.settings.fetch_timeout_ms / 2
        state.requests.pause(fetch, state.now_ms, min(pause_ms, longest_ms))
        following.unusable_count = min(following.unusable_count + 1, MAX_DOUBLINGS)

    def _poll_update_voter(self, following: Following) -> float:
        """A voter whose endpoints or directory are wrong in the voters record sends its own.

        At kraft.version 0 there is no such record, and the leader asks for them in every epoch,
        so that an upgrade can write it (KIP-853).
        """
        state = self._state
        if not state.is_voter or not following.has_fetched or not state.settings.endpoints:
            return float("inf")
        latest = state.voters.latest
        itself = VoterDescription(*state.local, state.settings.endpoints)
        if following.has_reported_itself or itself in latest.voters:
            return float("inf")
        if state.requests.is_awaited(following.destination, UpdateVoterRequest):
            return float("inf")
        if state.now_ms < following.next_update_voter_ms:
            return following.next_update_voter_ms
        period_ms = UPDATE_VOTER_FETCH_TIMEOUTS * state.settings.fetch_timeout_ms
        following.next_update_voter_ms = state.now_ms + period_ms
        request = UpdateVoterRequest(state.leader_epoch, itself, 0, LATEST_KRAFT_VERSION)
        state.send(following.destination, request)
        return following.next_update_voter_ms

    def on_update_voter_response(self, send: Send, response: UpdateVoterResponse | None) -> None:
        """The leader has taken the report, or gets it again later."""
        state, request = self._state, send.request
        assert isinstance(request, UpdateVoterRequest)
        succeeded = state.note_answer(send, response)
        if response is None:
            return
        if state.following is not None and request.leader_epoch == state.leader_epoch:
            state.following.has_reported_itself = succeeded and (
                state.voters.latest.kraft_version < 1
            )
