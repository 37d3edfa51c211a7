"""Heartbeat (12) v0-v4: keep a classic group member alive.

Versions: 3 adds static membership, 4 is flexible.
"""

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.schema import Message, Request, field, request
from moldau.protocol.types import Int16, Int32, String


@request(ApiKey.HEARTBEAT, versions="0-4", flexible="4+")
class HeartbeatRequest(Request["HeartbeatResponse"]):
    group_id: String = ""
    generation_id: Int32 = 0
    member_id: String = ""
    group_instance_id: String | None = field(None, since=3, nullable="3+")


class HeartbeatResponse(Message, answers=HeartbeatRequest):
    throttle_time_ms: Int32 = field(0, since=1, ignorable=True)
    error_code: Int16 = 0
