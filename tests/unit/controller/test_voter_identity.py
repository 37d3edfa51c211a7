"""A controller says when another directory has the vote of its node id."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from moldau.node.quorum_node import VoterIdentity
from moldau.protocol.types import ZERO_UUID, uuid_to_base64
from moldau.raft import VoterDescription, VoterSet

OWN, OTHER, THIRD = UUID(int=1 << 100), UUID(int=2 << 100), UUID(int=3 << 100)


class Log:
    node_id, directory_id = 1, OWN

    def __init__(self) -> None:
        self.voters = VoterSet()


def test_a_double_is_reported_once_per_directory(caplog: pytest.LogCaptureFixture) -> None:
    log: Any = Log()
    identity = VoterIdentity(log)

    def told_of(*voters: tuple[int, UUID]) -> str:
        caplog.clear()
        log.voters = VoterSet(tuple(VoterDescription(*each, ()) for each in voters), 1)
        identity.handle_leader_change(2, 1)
        identity.handle_leader_change(2, 2)
        assert len(caplog.records) < 2
        return caplog.text

    assert told_of() == ""
    assert told_of((2, OTHER)) == "", "another node's"
    assert told_of((1, ZERO_UUID)) == "", "static voters have no directory"
    assert told_of((1, OWN), (2, OTHER)) == ""
    assert f"node.id=1 votes with another directory, {uuid_to_base64(OTHER)}" in told_of((1, OTHER))
    assert told_of((1, OTHER), (2, OTHER)) == ""
    assert uuid_to_base64(THIRD) in told_of((1, THIRD))
