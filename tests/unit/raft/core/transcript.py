"""Effects as lines that a person can check: the golden scripts are made of them."""

from __future__ import annotations

import pickle
from typing import Any

from moldau.raft.core import effects as ef
from moldau.raft.core import messages as ms
from moldau.raft.core.values import ReplicaKey
from moldau.raft.core.voters import VoterSet


def _who(replica: ReplicaKey | None) -> str:
    return "none" if replica is None else str(replica.node_id)


def _ids(voters: VoterSet | None) -> str:
    return "" if voters is None else " ".join(str(each.voter_id) for each in voters.voters)


def request_line(request: ms.PeerRequest) -> str:
    """A request in one line."""
    match request:
        case ms.VoteRequest():
            name = "PreVote" if request.pre_vote else "Vote"
            log = f"{request.log_end_offset}@{request.last_leader_epoch}"
            return f"{name} for {_who(request.candidate)} epoch={request.leader_epoch} log={log}"
        case ms.BeginQuorumEpochRequest():
            return f"BeginQuorumEpoch leader={request.leader_id} epoch={request.leader_epoch}"
        case ms.EndQuorumEpochRequest():
            successors = [key.node_id for key in request.preferred_candidates]
            return f"EndQuorumEpoch epoch={request.leader_epoch} successors={successors}"
        case ms.FetchRequest():
            log = f"{request.fetch_offset}@{request.last_fetched_epoch}"
            return f"Fetch epoch={request.leader_epoch} log={log} hw={request.high_watermark}"
        case ms.FetchSnapshotRequest():
            return f"FetchSnapshot {tuple(request.snapshot_id)} from {request.position}"
        case ms.UpdateVoterRequest():
            return f"UpdateVoter epoch={request.leader_epoch}"
        case ms.KraftVersionRequest():
            return "KraftVersion"


def _fields(response: ms.PeerResponse) -> str:
    parts = [response.error.name]
    if not isinstance(response, ms.KraftVersionResponse):
        parts.append(f"leader={response.leader_id} epoch={response.leader_epoch}")
    if isinstance(response, ms.VoteResponse):
        parts.append("granted" if response.vote_granted else "refused")
    if isinstance(response, ms.FetchResponse):
        parts.append(f"hw={response.high_watermark}")
        if response.diverging is not None:
            parts.append(f"diverging={tuple(response.diverging)}")
        if response.snapshot_id is not None:
            parts.append(f"snapshot={tuple(response.snapshot_id)}")
    return " ".join(parts)


def response_line(response: ms.PeerResponse) -> str:
    """An answer in one line."""
    return f"{type(response).__name__.removesuffix('Response')} {_fields(response)}"


def _answer_line(effect: ef.Reply | ef.ReadRecords | ef.ReadSnapshot) -> str:
    line = f"answers {response_line(effect.response)}"
    if isinstance(effect, ef.ReadRecords):
        return f"{line} records {effect.start_offset}..{effect.end_offset}"
    if isinstance(effect, ef.ReadSnapshot):
        return f"{line} bytes from {effect.position}"
    return line


def effect_line(effect: ef.Effect) -> str:
    """An effect in one line."""
    match effect:
        case ef.Persist(state):
            leader = f"epoch={state.leader_epoch} leader={state.leader_id}"
            return f"persists {leader} voted={_who(state.voted)}"
        case ef.Truncate(end_offset):
            return f"truncates to {end_offset}"
        case ef.AppendEpochStart():
            voters = f" with voters {_ids(effect.voters)}" if effect.voters else ""
            granting = list(effect.granting_voter_ids)
            return f"appends start of epoch {effect.leader_epoch}, granted by {granting}{voters}"
        case ef.AppendVoters():
            return f"appends voters {_ids(effect.voters)} in epoch {effect.leader_epoch}"
        case ef.AppendFetched():
            records: list[Any] = pickle.loads(bytes(effect.records))
            return f"appends {len(records)} fetched at {effect.base_offset}"
        case ef.WriteSnapshotChunk():
            last = ", the last" if effect.is_last else ""
            return f"writes snapshot {tuple(effect.snapshot_id)} at {effect.position}{last}"
        case ef.Send():
            return f"-> {effect.destination.host}: {request_line(effect.request)}"
        case ef.Reply() | ef.ReadRecords() | ef.ReadSnapshot():
            return _answer_line(effect)
        case ef.AdvanceHighWatermark(high_watermark):
            return f"high watermark {high_watermark}"
        case ef.ChangeLeadership(leadership, start):
            since = f" from {start}" if start >= 0 else ""
            return f"leader is {leadership.leader_id} in epoch {leadership.leader_epoch}{since}"
        case ef.Complete(token, error, _):
            return f"completes {token}: {error.name}"
        case ef.Stop(reason):
            return f"stops: {reason}"
