"""The broker's side of the quorum in its process."""

from __future__ import annotations

from typing import Any

import pytest

from moldau.broker.lifecycle import metadata_loader
from moldau.broker.lifecycle.controller_channel import ControllerUnavailable
from moldau.broker.lifecycle.metadata_loader import MetadataLoader
from moldau.node import quorum_link
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p55_describe_quorum import (
    DescribeQuorumResponse,
    PartitionDataResponse,
    TopicDataResponse,
)


class Silent:
    """A quorum that delivers nothing."""

    async def subscribe(self, consumer: object) -> None:
        """Deliver nothing."""

    async def peer_problems(self) -> dict[str, str]:
        return {"h:1": "connection refused", "h:2": "INCONSISTENT_CLUSTER_ID"}


async def test_no_active_controller_is_reported_with_the_reason_of_each_address() -> None:
    class Channel:
        async def send(self, request: object, principal: str, *, timeout_ms: int) -> Any:
            raise ControllerUnavailable(f"not in {timeout_ms}")

    quorum: Any = Silent()
    channel: Any = Channel()
    with pytest.raises(quorum_link.NoActiveController) as caught:
        await quorum_link.follow_metadata(
            quorum, channel, MetadataLoader(1), leader_timeout_ms=5_000
        )
    assert str(caught.value) == "h:1: connection refused; h:2: INCONSISTENT_CLUSTER_ID"


async def test_a_log_that_is_not_read_in_time_is_reported_in_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Channel:
        """Answers first that it does not lead."""

        def __init__(self) -> None:
            self.errors = [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NONE]

        async def send(self, request: object, principal: str, *, timeout_ms: int) -> Any:
            partition = PartitionDataResponse(error_code=self.errors.pop(0), high_watermark=7)
            return DescribeQuorumResponse(topics=[TopicDataResponse(partitions=[partition])])

    monkeypatch.setattr(metadata_loader, "RETRY_BACKOFF_MS", 0)
    monkeypatch.setattr(quorum_link, "CATCH_UP_TIMEOUT_S", 0.5)
    quorum: Any = Silent()
    channel: Any = Channel()
    with pytest.raises(ControllerUnavailable, match="of 7 metadata records not all"):
        await quorum_link.follow_metadata(
            quorum, channel, MetadataLoader(1), leader_timeout_ms=60_000
        )
    assert channel.errors == []
