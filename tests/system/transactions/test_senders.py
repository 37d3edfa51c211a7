"""What the workload makes of a client library that misbehaves."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from tests.system.transactions import senders
from tests.system.transactions.history import History
from tests.system.transactions.senders import Broken, ConfluentSender


def test_a_call_that_never_returns_breaks_the_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(senders, "STUCK_S", 0.05)
    sender = ConfluentSender("127.0.0.1:1", "id", "process", History())
    released = threading.Event()

    def never_returns(*_: Any) -> None:
        released.wait(20)

    stub = SimpleNamespace(send_offsets_to_transaction=never_returns)
    monkeypatch.setattr(sender, "_producer", stub)
    consumer: Any = SimpleNamespace(consumer_group_metadata=lambda: None)
    with pytest.raises(Broken, match="does not return"):
        sender.send_offsets([], consumer)
    released.set()
    monkeypatch.setattr(stub, "send_offsets_to_transaction", lambda *_: None)
    monkeypatch.setattr(senders, "STUCK_S", 20)
    sender.send_offsets([], consumer)
