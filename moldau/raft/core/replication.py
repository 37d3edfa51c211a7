"""A leader's view of the others: how far they are, what is committed, which fetches wait.

Owns: Fetch and FetchSnapshot as answered, the high watermark, CheckQuorum (no majority heard:
resign), BeginQuorumEpoch as sent. Must not: change voters. Invariant: the high watermark is the end
that a majority of the voters has on stable storage, once that is above the start of the leader's
own epoch, and never goes back (Raft 5.4.2, KIP-595, 1166).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from moldau.protocol.errors import ErrorCode
from moldau.protocol.types import ZERO_UUID
from moldau.raft.core.effects import ReadRecords, ReadSnapshot, Reply, Send
from moldau.raft.core.messages import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
)
from moldau.raft.core.roles import (
    MAX_OBSERVERS,
    OBSERVER_SESSION_TIMEOUT_MS,
    UNKNOWN_OFFSET,
    Leading,
    Progress,
    Role,
    key_of,
)
from moldau.raft.core.state import QuorumState
from moldau.raft.core.values import EpochEnd, ReplicaKey, ReplicaProgress, SnapshotId
from moldau.raft.core.voters import VoterDescription

MAX_PARKED_FETCHES: Final = 2_048
"""Fetches that wait for records or a higher high watermark; one more is answered at once."""
MAX_PARKED_WAIT_MS: Final = 30_000
"""The longest a fetch waits, whatever it asks for."""
OBSERVER_SWEEP_INTERVAL_MS: Final = 1_000
CHECK_QUORUM_FETCH_TIMEOUTS: Final = 1.5
"""After how many fetch timeouts without a majority a leader resigns (Kafka's figure)."""


@dataclass(slots=True)
class _Parked:
    request: FetchRequest
    token: object
    deadline_ms: float


class Replication:
    """The state's part in leading."""

    def __init__(self, state: QuorumState) -> None:
        self._state = state
        self._parked: dict[ReplicaKey | int, _Parked] = {}
        self._parked_count = 0
        self._parked_due_ms = float("inf")
        self._looked_at = (UNKNOWN_OFFSET, UNKNOWN_OFFSET)

    def leader_error(self, leader_epoch: int) -> ErrorCode:
        """Why a request to the leader of `leader_epoch` cannot be served here; NONE when it can."""
        state = self._state
        if leader_epoch < state.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if leader_epoch > state.leader_epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        if state.role is not Role.LEADER:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.NONE

    def on_fetch(self, request: FetchRequest, token: object) -> None:
        """Fetch v17-v18 of the metadata log: count what the replica has, then answer or park."""
        if request.fetch_offset < 0 or request.last_fetched_epoch < 0 or request.max_wait_ms < 0:
            self._reply(token, ErrorCode.INVALID_REQUEST)
            return
        self._learn_from_voter(request.replica, request.leader_epoch)
        error = self.leader_error(request.leader_epoch)
        if error is not ErrorCode.NONE:
            self._reply(token, error)
            return
        if self._where_logs_part(request) is None:
            self._count(request.replica, request.fetch_offset)
            self.advance_high_watermark()
        else:
            self._heard_from(request.replica)
        if self._answer(request, token, now_at_latest=request.max_wait_ms == 0):
            return
        self._park(request, token)

    def _learn_from_voter(self, replica: ReplicaKey, leader_epoch: int) -> None:
        """A voter in a higher epoch will never follow this leader again. An observer cannot depose
        a leader; the answer has the epoch.
        """
        state = self._state
        if leader_epoch > state.leader_epoch and state.voters.latest.find(*replica) is not None:
            state.become_unattached(leader_epoch)

    def _where_logs_part(self, request: FetchRequest) -> EpochEnd | SnapshotId | None:
        """None when the replica's log is the beginning of this one; else where it may go on."""
        log = self._state.log
        start_offset, latest = log.log_start_offset, log.latest_snapshot
        has_snapshot = latest is not None and latest.end_offset > 0
        if request.fetch_offset == 0 and request.last_fetched_epoch == 0:
            return latest if has_snapshot else None
        end = log.end_of_epoch(request.last_fetched_epoch)
        earliest = log.earliest_snapshot
        if has_snapshot and (
            request.fetch_offset < start_offset
            or (end.leader_epoch == 0 and start_offset > 0)
            or (
                request.fetch_offset == start_offset
                and earliest is not None
                and earliest.end_offset == start_offset > 0
                and earliest.leader_epoch != request.last_fetched_epoch
            )
        ):
            return latest
        if end.leader_epoch != request.last_fetched_epoch or end.end_offset < request.fetch_offset:
            return end
        return None

    def _answer(self, request: FetchRequest, token: object, *, now_at_latest: bool) -> bool:
        """Answer a fetch if there is something to say. Returns whether it was answered."""
        state = self._state
        error = self.leader_error(request.leader_epoch)
        if error is not ErrorCode.NONE:
            self._reply(token, error)
            return True
        parting = self._where_logs_part(request)
        if isinstance(parting, SnapshotId):
            self._reply(token, ErrorCode.NONE, snapshot_id=parting)
        elif isinstance(parting, EpochEnd):
            self._reply(token, ErrorCode.NONE, diverging=parting)
        elif request.fetch_offset < (end_offset := self._readable_end(request.replica)):
            response = self._response(ErrorCode.NONE)
            state.effects.append(
                ReadRecords(token, request.fetch_offset, end_offset, request.max_bytes, response)
            )
        elif now_at_latest or request.high_watermark < state.high_watermark:
            self._reply(token, ErrorCode.NONE)
        else:
            return False
        return True

    def _readable_end(self, replica: ReplicaKey) -> int:
        """How far a replica may read: a voter to the end, so that it can make records committed;
        others as far as they are. They get records and the high watermark above them in one answer,
        when both are true, and the leader has that much less to do while voters wait.
        """
        state = self._state
        is_voter = state.voters.latest.find(*replica) is not None
        return state.log.log_end_offset if is_voter else state.high_watermark

    def _park(self, request: FetchRequest, token: object) -> None:
        """Keep a fetch waiting; a replica has one such fetch, and its older one is answered."""
        state = self._state
        key: ReplicaKey | int = request.replica
        if request.replica.node_id < 0:
            self._parked_count += 1
            key = self._parked_count  # a client without an id may wait as often as it likes
        older = self._parked.pop(key, None)
        if older is not None:
            self._answer(older.request, older.token, now_at_latest=True)
        if len(self._parked) >= MAX_PARKED_FETCHES:
            self._answer(request, token, now_at_latest=True)
            return
        deadline_ms = state.now_ms + min(request.max_wait_ms, MAX_PARKED_WAIT_MS)
        self._parked[key] = _Parked(request, token, deadline_ms)
        self._parked_due_ms = min(self._parked_due_ms, deadline_ms)

    def poll_parked(self) -> float:
        """Answer the fetches that waited for what the log has now. Returns when to look again."""
        state = self._state
        is_leader = state.role is Role.LEADER
        seen = (state.log.log_end_offset, state.high_watermark)
        has_news = not is_leader or seen != self._looked_at
        self._looked_at = seen
        if not has_news and state.now_ms < self._parked_due_ms:
            return self._parked_due_ms
        waiting: dict[ReplicaKey | int, _Parked] = {}
        for key, parked in self._parked.items():
            is_due = state.now_ms >= parked.deadline_ms
            if not self._answer(parked.request, parked.token, now_at_latest=is_due):
                waiting[key] = parked
        self._parked = waiting
        deadlines = (parked.deadline_ms for parked in waiting.values())
        self._parked_due_ms = min(deadlines, default=float("inf"))
        return self._parked_due_ms

    def on_fetch_snapshot(self, request: FetchSnapshotRequest, token: object) -> None:
        """FetchSnapshot v0-v1: a stretch of a snapshot (KIP-630)."""
        state = self._state
        self._learn_from_voter(request.replica, request.leader_epoch)
        error = self.leader_error(request.leader_epoch)
        if error is ErrorCode.NONE:
            self._heard_from(request.replica)
            if request.snapshot_id.end_offset <= 0 or not state.log.has_snapshot(
                request.snapshot_id
            ):
                error = ErrorCode.SNAPSHOT_NOT_FOUND
            elif request.position < 0:
                error = ErrorCode.POSITION_OUT_OF_RANGE
        response = state.answer(
            FetchSnapshotResponse, error, snapshot_id=request.snapshot_id, position=request.position
        )
        if error is not ErrorCode.NONE:
            state.effects.append(Reply(token, response))
            return
        state.effects.append(
            ReadSnapshot(token, request.snapshot_id, request.position, request.max_bytes, response)
        )

    def _reply(self, token: object, error: ErrorCode, **fields: object) -> None:
        self._state.effects.append(Reply(token, self._response(error, **fields)))

    def _response(self, error: ErrorCode, **fields: object) -> FetchResponse:
        state = self._state
        is_leader = state.role is Role.LEADER
        return state.answer(
            FetchResponse,
            error,
            high_watermark=state.high_watermark if is_leader else UNKNOWN_OFFSET,
            log_start_offset=state.log.log_start_offset if is_leader else UNKNOWN_OFFSET,
            **fields,
        )

    def _progress(self, replica: ReplicaKey) -> Progress | None:
        """A replica's entry, made when there is room; None for this one and without an id."""
        state, leading = self._state, self._state.leading
        assert leading is not None
        if replica.node_id < 0 or replica == state.local:
            return None
        progress = leading.progress.get(replica)
        if progress is None:
            voter = state.voters.latest.find(*replica)
            if voter is None and len(leading.progress) >= MAX_OBSERVERS:
                return None
            former = leading.latest_key.get(replica.node_id)
            if voter is not None and voter.directory_id == ZERO_UUID and former is not None:
                # Configured by its id alone: the replica that fetched last is the voter, the disk
                # before is gone, and no number of directories is remembered.
                leading.progress.pop(former, None)
            progress = leading.progress[replica] = Progress()
        leading.latest_key[replica.node_id] = replica
        return progress

    def _count(self, replica: ReplicaKey, fetch_offset: int) -> None:
        progress = self._progress(replica)
        if progress is not None:
            progress.fetched(fetch_offset, self._readable_end(replica), self._state.now_ms)

    def _heard_from(self, replica: ReplicaKey) -> None:
        progress = self._progress(replica)
        if progress is not None:
            progress.last_fetch_ms = self._state.now_ms

    def forget_silent_observers(self) -> None:
        """DescribeQuorum must not name observers that are long gone."""
        state, leading = self._state, self._state.leading
        assert leading is not None
        before_ms = state.now_ms - OBSERVER_SESSION_TIMEOUT_MS
        if leading.observers_swept_ms > state.now_ms - OBSERVER_SWEEP_INTERVAL_MS:
            return
        leading.observers_swept_ms = state.now_ms
        silent = [
            replica
            for replica, progress in leading.progress.items()
            if (progress.last_fetch_ms is None or progress.last_fetch_ms < before_ms)
            and state.voters.latest.find(*replica) is None
        ]
        for replica in silent:
            del leading.progress[replica]
            if leading.latest_key.get(replica.node_id) == replica:
                del leading.latest_key[replica.node_id]

    def _is_local(self, voter: VoterDescription) -> bool:
        return key_of(voter).matches(self._state.local)

    def _durable_end(self, leading: Leading, voter: VoterDescription) -> int:
        if self._is_local(voter):
            return self._state.flushed_end_offset
        progress = leading.progress_of(voter)
        return progress.log_end_offset if progress is not None else UNKNOWN_OFFSET

    def advance_high_watermark(self) -> bool:
        """Move it to what a majority of the voters has, once that is of this epoch."""
        state, leading = self._state, self._state.leading
        if leading is None:
            return False
        voters = state.voters.latest.voters
        if not voters:
            return False
        ends = sorted((self._durable_end(leading, voter) for voter in voters), reverse=True)
        committed_end = ends[len(ends) // 2]
        if committed_end <= leading.epoch_start_offset:
            return False
        return state.raise_high_watermark(committed_end)

    @property
    def has_committed_in_epoch(self) -> bool:
        """Whether a record of this leader's own epoch is committed."""
        leading = self._state.leading
        return leading is not None and self._state.high_watermark > leading.epoch_start_offset

    def progress(self) -> tuple[list[ReplicaProgress], list[ReplicaProgress]]:
        """Voters and observers, for DescribeQuorum; empty when this replica does not lead."""
        state, leading = self._state, self._state.leading
        if leading is None:
            return [], []
        itself = ReplicaProgress(state.local, state.log.log_end_offset, state.now_ms, state.now_ms)
        voters: list[ReplicaProgress] = []
        named: list[ReplicaKey] = [state.local]
        for voter in state.voters.latest.voters:
            if self._is_local(voter):
                voters.append(itself)
                continue
            progress = leading.progress_of(voter) or Progress()
            key = key_of(voter)
            named.append(key)
            if voter.directory_id == ZERO_UUID:
                named.append(leading.latest_key.get(voter.voter_id, key))
            voters.append(progress.of(key))
        observers = [
            progress.of(replica)
            for replica, progress in leading.progress.items()
            if replica not in named
        ]
        if not state.is_voter:
            observers.insert(0, itself)
        return voters, observers

    def check_quorum_deadline_ms(self) -> float:
        """When the leader has to resign, unless a majority of the voters fetches before."""
        state, leading = self._state, self._state.leading
        assert leading is not None
        voters = state.voters.latest.voters
        others = [voter for voter in voters if not self._is_local(voter)]
        needed = len(voters) // 2 + 1 - (len(voters) - len(others))
        if needed <= 0:
            return float("inf")
        heard = sorted((self._last_fetch_ms(leading, voter) for voter in others), reverse=True)
        return heard[needed - 1] + CHECK_QUORUM_FETCH_TIMEOUTS * state.settings.fetch_timeout_ms

    def _last_fetch_ms(self, leading: Leading, voter: VoterDescription) -> float:
        progress = leading.progress_of(voter)
        if progress is None or progress.last_fetch_ms is None:
            return leading.since_ms
        return progress.last_fetch_ms

    def poll_begin_quorum_epoch(self) -> float:
        """Tell voters of this leader: at once, and again after half a fetch timeout without a
        request or an answer of the voter. Returns when to look again.
        """
        state, leading = self._state, self._state.leading
        assert leading is not None
        wake_ms = float("inf")
        for voter in state.voters.latest.voters:
            destination = state.destination_of(voter.voter_id, voter.endpoints)
            if self._is_local(voter) or destination is None:
                continue
            due_ms = self._begin_due_ms(leading, voter)
            if state.requests.is_awaited(destination, BeginQuorumEpochRequest):
                continue
            due_ms = max(due_ms, state.requests.ready_ms(destination, BeginQuorumEpochRequest))
            if state.now_ms < due_ms:
                wake_ms = min(wake_ms, due_ms)
                continue
            request = BeginQuorumEpochRequest(
                leader_id=state.local.node_id,
                leader_epoch=state.leader_epoch,
                voter=key_of(voter),
                leader_endpoints=state.settings.endpoints,
            )
            state.send(destination, request)
        return wake_ms

    def _begin_due_ms(self, leading: Leading, voter: VoterDescription) -> float:
        progress = leading.progress_of(voter)
        heard = [leading.begun.get(key_of(voter)), progress.last_fetch_ms if progress else None]
        times = [each for each in heard if each is not None]
        if not times:
            return float("-inf")
        return max(times) + self._state.settings.fetch_timeout_ms / 2

    def on_begin_quorum_epoch_response(
        self, send: Send, response: BeginQuorumEpochResponse | None
    ) -> None:
        """The voter follows this leader, or knows of a newer epoch."""
        state, request = self._state, send.request
        assert isinstance(request, BeginQuorumEpochRequest)
        state.note_answer(send, response)
        leading = state.leading
        if leading is None or request.leader_epoch != state.leader_epoch:
            return
        if response is not None and request.voter is not None:
            leading.begun[request.voter] = state.now_ms
