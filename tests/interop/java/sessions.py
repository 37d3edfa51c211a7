"""Requests for longer than a session of SASL lasts."""

from __future__ import annotations

import time

from moldau.client import Admin
from tests.kit.waiting import until_async


async def ask_beyond_a_session(admin: Admin, session_ms: int) -> None:
    """Ask one thing after the other until the session would be over. But not just before it is
    renewed, after 85 to 95 % of its time: a request from then that is late at Kafka, behind the
    session's end, would end the connection.
    """
    begin_s = time.monotonic()

    def is_past(share: float) -> bool:
        return time.monotonic() > begin_s + share * session_ms / 1000

    async def is_renewing() -> bool:
        return is_past(0.96)

    while not is_past(0.7):
        await admin.list_topics()
    await until_async(is_renewing, what="the session is being renewed")
    while not is_past(1.4):
        await admin.list_topics()
