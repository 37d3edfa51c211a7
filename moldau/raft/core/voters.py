"""The quorum's voters and `kraft.version` as their control records say, and their history.

Owns: VoterSet with its records, and the sets that the log names at each offset, committed or not.
Must not: change voters (`voter_changes` does), or read the log. Invariant: a voter is its id
together with its directory id, so that a wiped disk is another voter; offsets in the history rise;
the latest set rules once it is appended, and truncation brings back the one before (KIP-853).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple
from uuid import UUID

from moldau.protocol.messages.quorum_records import (
    Endpoint,
    KRaftVersionFeature,
    KRaftVersionRecord,
    Voter,
    VotersRecord,
)
from moldau.protocol.records import ControlRecordType
from moldau.protocol.types import ZERO_UUID, uuid_to_base64

LATEST_KRAFT_VERSION: Final = 1
CONTROL_RECORD_VERSION: Final = 0


class VoterEndpoint(NamedTuple):
    """Where a voter's controller listens."""

    listener_name: str
    host: str
    port: int


def endpoints_of(listeners: Iterable[Endpoint]) -> tuple[VoterEndpoint, ...]:
    return tuple(VoterEndpoint(each.name, each.host, each.port) for each in listeners)


def listeners_of(endpoints: Iterable[VoterEndpoint]) -> list[Endpoint]:
    return [Endpoint(name=name, host=host, port=port) for name, host, port in endpoints]


class VoterDescription(NamedTuple):
    """One voter."""

    voter_id: int
    directory_id: UUID
    endpoints: tuple[VoterEndpoint, ...]

    def __str__(self) -> str:
        return f"{self.voter_id}@{uuid_to_base64(self.directory_id)}"


class VoterSet(NamedTuple):
    """The voters, and the level of `kraft.version`: 0 means that the configuration names them."""

    voters: tuple[VoterDescription, ...] = ()
    kraft_version: int = 0

    def find(self, node_id: int, directory_id: UUID) -> VoterDescription | None:
        """The voter that this replica is. A voter of the configuration, whose directory id is zero,
        is every replica with its node id (KIP-853).
        """
        for voter in self.voters:
            if voter.voter_id == node_id and voter.directory_id in (ZERO_UUID, directory_id):
                return voter
        return None

    def with_id(self, node_id: int) -> VoterDescription | None:
        """The voter with this node id, whatever its directory."""
        for voter in self.voters:
            if voter.voter_id == node_id:
                return voter
        return None

    def control_records(self) -> list[tuple[ControlRecordType, bytes]]:
        """The control records that carry this set; none at level 0."""
        if self.kraft_version < 1:
            return []
        version = KRaftVersionRecord(
            version=CONTROL_RECORD_VERSION, kraft_version=self.kraft_version
        )
        voters = VotersRecord(
            version=CONTROL_RECORD_VERSION,
            voters=[
                Voter(
                    voter_id=each.voter_id,
                    voter_directory_id=each.directory_id,
                    endpoints=listeners_of(each.endpoints),
                    kraft_version_feature=KRaftVersionFeature(
                        min_supported_version=0, max_supported_version=LATEST_KRAFT_VERSION
                    ),
                )
                for each in self.voters
            ],
        )
        return [
            (ControlRecordType.KRAFT_VERSION, version.to_bytes(CONTROL_RECORD_VERSION)),
            (ControlRecordType.KRAFT_VOTERS, voters.to_bytes(CONTROL_RECORD_VERSION)),
        ]

    def with_control_records(
        self, records: Iterable[tuple[ControlRecordType | int, bytes]]
    ) -> VoterSet:
        """The set after control records of the log or of a snapshot; others are passed over.

        Raises RemoteProtocolError: a record cannot be decoded.
        """
        voters, kraft_version = self.voters, self.kraft_version
        for record_type, value in records:
            if record_type == ControlRecordType.KRAFT_VERSION:
                kraft_version = KRaftVersionRecord.decode(value, 0)[0].kraft_version
            elif record_type == ControlRecordType.KRAFT_VOTERS:
                voters = tuple(
                    VoterDescription(
                        each.voter_id, each.voter_directory_id, endpoints_of(each.endpoints)
                    )
                    for each in VotersRecord.decode(value, 0)[0].voters
                )
        return VoterSet(voters, kraft_version)


BASE_OFFSET = -1
"""Stands for the base where a record's offset is expected."""


class VoterHistory:
    """A base (the set of the snapshot at the log's start, of the bootstrap checkpoint, or of the
    configuration) and the sets in the log above it.
    """

    def __init__(self, base: VoterSet) -> None:
        self._base = base
        self._appended: list[tuple[int, VoterSet]] = []

    @property
    def latest(self) -> VoterSet:
        """The set that rules."""
        return self._appended[-1][1] if self._appended else self._base

    @property
    def latest_offset(self) -> int:
        """The offset of the latest set's record; -1 for the base."""
        return self._appended[-1][0] if self._appended else BASE_OFFSET

    def append(self, record_offset: int, voters: VoterSet) -> None:
        """A record at `record_offset` names these voters."""
        assert record_offset > self.latest_offset, (
            f"voters at {record_offset}, after {self.latest_offset}"
        )
        self._appended.append((record_offset, voters))

    def truncate_to(self, end_offset: int) -> None:
        """The log now ends at `end_offset`: the sets from there on have never been."""
        while self._appended and self._appended[-1][0] >= end_offset:
            self._appended.pop()

    def trim_to(self, start_offset: int) -> None:
        """The log now starts at `start_offset`: the set as of there becomes the base."""
        self._base = self.at(start_offset)
        self._appended = [each for each in self._appended if each[0] >= start_offset]

    def reset(self, base: VoterSet) -> None:
        """A snapshot has replaced the log."""
        self._base = base
        self._appended = []

    def at(self, end_offset: int) -> VoterSet:
        """The set as of `end_offset`: what the records below it say."""
        voters = self._base
        for offset, appended in self._appended:
            if offset >= end_offset:
                break
            voters = appended
        return voters

    def since(self, end_offset: int) -> list[VoterSet]:
        """The set as of `end_offset` and every later one, in order."""
        later = [voters for offset, voters in self._appended if offset >= end_offset]
        return [self.at(end_offset), *later]
