"""The broker's side of the quorum in its process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from moldau.broker.controller_channel import ControllerUnavailable
from moldau.broker.metadata_loader import MetadataLoader
from moldau.broker.node import quorum_link


async def test_a_log_that_is_not_read_in_time_is_told_in_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Silent:
        async def subscribe(self, consumer: object) -> None:
            """Deliver nothing."""

    class Channel:
        async def send(self, request: object, principal: str) -> Any:
            partition = SimpleNamespace(high_watermark=7)
            return SimpleNamespace(topics=[SimpleNamespace(partitions=[partition])])

    monkeypatch.setattr(quorum_link, "CATCH_UP_TIMEOUT_S", 0.0)
    quorum: Any = Silent()
    channel: Any = Channel()
    with pytest.raises(ControllerUnavailable, match="of 7 metadata records 0 were read"):
        await quorum_link.follow_metadata(quorum, channel, MetadataLoader(1))
