"""Heartbeat (12) v0-v4: keep a classic group member alive.

Versions: 3 adds static membership, 4 is flexible.
"""

from moldau.protocol.schema import Message, Request, field
from moldau.protocol.types import Int16, Int32, String


class HeartbeatRequest(Request["HeartbeatResponse"], versions="0-4", flexible="4+"):
    group_id: String = ""
    generation_id: Int32 = 0
    member_id: String = ""
    group_instance_id: String | None = field(None, since=3, nullable="3+")


class HeartbeatResponse(Message, answers=HeartbeatRequest):
    throttle_time_ms: Int32 = field(0, since=1, ignorable=True)
    error_code: Int16 = 0
