"""The runner of Kafka's tools itself: one that hangs does not take the next ones with it."""

from __future__ import annotations

import pytest

from tests.interop.java.tools import TOOL_DEADLINE_S, JavaTools


def test_a_tool_that_hangs_is_shown_and_the_next_one_works(
    java: JavaTools, bootstrap: str, topic: str
) -> None:
    server = ("--bootstrap-server", bootstrap)
    java.check("kafka-topics", *server, "--list")
    java.deadline_s = 3.0
    try:
        with pytest.raises(AssertionError, match=r"does not end(?s:.*)ToolServer\.main"):
            # No producer writes to the topic: it waits for ever.
            java.run("kafka-console-consumer", *server, "--topic", topic, "--partition", 0)
    finally:
        java.deadline_s = TOOL_DEADLINE_S
    assert topic in java.check("kafka-topics", *server, "--list").lines
    assert topic in java.check("kafka-topics", *server, "--describe").output
