"""What the quorum core wants done, in the order in which it must be done.

Owns: one class per effect. Must not: do anything. Invariant of every driver: effects are carried
out strictly in the order given, each one completely (a Persist is on stable storage, an append in
the log, before the next begins); a crash may happen between any two and inside each; when one
cannot be done the replica stops.
"""

from __future__ import annotations

from typing import NamedTuple

from moldau.protocol.errors import ErrorCode
from moldau.protocol.types import Buffer
from moldau.raft.core.messages import (
    FetchResponse,
    FetchSnapshotResponse,
    PeerRequest,
    PeerResponse,
)
from moldau.raft.core.values import Destination, ElectionState, Leadership, SnapshotId
from moldau.raft.core.voters import VoterSet


class Persist(NamedTuple):
    """Make the election state durable (file, then directory) before anything after this."""

    state: ElectionState


class Truncate(NamedTuple):
    """Remove everything from `end_offset` on; the core itself undoes voters records there."""

    end_offset: int


class AppendEpochStart(NamedTuple):
    """A new leader's first batch: LeaderChange, and, when `voters` is given, KRaftVersion and
    Voters records with it. Append it in `leader_epoch`, tell the core by `on_appended`, and flush.
    """

    leader_epoch: int
    voter_ids: tuple[int, ...]
    granting_voter_ids: tuple[int, ...]
    voters: VoterSet | None


class AppendVoters(NamedTuple):
    """A leader's change of voters: append the control batch, tell the core, and flush.

    A batch with `kraft_version_changed` also carries the KRaftVersion record.
    """

    leader_epoch: int
    voters: VoterSet
    kraft_version_changed: bool = False


class AppendFetched(NamedTuple):
    """Batches from the leader of `leader_epoch`: check them (CRC, offsets that continue the log at
    `base_offset`, epochs that never fall and are at most `leader_epoch`), append whole batches,
    tell the core by `on_appended`, flush, tell it by `on_flushed`. A damaged batch ends the append
    before it; then tell the core by `on_append_refused`.
    """

    base_offset: int
    leader_epoch: int
    records: Buffer


class WriteSnapshotChunk(NamedTuple):
    """Put `data` at `position` of the snapshot being fetched (position 0 starts the file again).

    With `is_last`: check and install it: fsync, rename, fsync the directory, then drop the whole
    log and let it begin at `snapshot_id.end_offset`, then tell the core by `on_snapshot_installed`
    with the voters in it; a damaged file is removed, and the core told by `on_snapshot_refused`.
    """

    snapshot_id: SnapshotId
    position: int
    data: Buffer
    is_last: bool


class Send(NamedTuple):
    """Send a request; the driver answers by `on_response(send, response, now_ms)`, exactly once,
    with None when there is no answer within `timeout_ms` or the connection fails.
    """

    destination: Destination
    request: PeerRequest
    timeout_ms: float


class Reply(NamedTuple):
    """The answer to a request of a peer; `token` is what `on_request` was given with it."""

    token: object
    response: PeerResponse


class ReadRecords(NamedTuple):
    """Answer `token` with records from `start_offset` on, at least one batch, up to `end_offset`
    (exclusive) and about `max_bytes`; every other field of the response is in `response`.
    """

    token: object
    start_offset: int
    end_offset: int
    max_bytes: int
    response: FetchResponse


class ReadSnapshot(NamedTuple):
    """Answer `token` with bytes of a snapshot; size and data are filled into `response`."""

    token: object
    snapshot_id: SnapshotId
    position: int
    max_bytes: int
    response: FetchSnapshotResponse


class AdvanceHighWatermark(NamedTuple):
    """Everything below `high_watermark` is committed: deliver it to the listeners."""

    high_watermark: int


class ChangeLeadership(NamedTuple):
    """Tell the listeners of the leader. When it is this replica: `epoch_start_offset` is where its
    epoch begins; a listener hears of it only after everything below has been delivered.
    """

    leadership: Leadership
    epoch_start_offset: int = -1


class Complete(NamedTuple):
    """A voter change, or a resignation asked for, has ended; `token` is the caller's."""

    token: object
    error: ErrorCode
    message: str = ""


class Stop(NamedTuple):
    """An invariant is broken, or this replica must not go on: stop the node with this line."""

    reason: str


Effect = (
    Persist
    | Truncate
    | AppendEpochStart
    | AppendVoters
    | AppendFetched
    | WriteSnapshotChunk
    | Send
    | Reply
    | ReadRecords
    | ReadSnapshot
    | AdvanceHighWatermark
    | ChangeLeadership
    | Complete
    | Stop
)
