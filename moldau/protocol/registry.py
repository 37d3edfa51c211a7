"""Finds an API's message classes by its number, importing their module on first use."""

from functools import cache
from importlib import import_module
from typing import Final

from moldau.protocol.api_keys import ApiKey, api_name
from moldau.protocol.errors import RemoteProtocolError
from moldau.protocol.schema import Message

_REMOVED_FROM_KAFKA: Final = frozenset(
    {ApiKey.LEADER_AND_ISR, ApiKey.STOP_REPLICA, ApiKey.UPDATE_METADATA, ApiKey.CONTROLLED_SHUTDOWN}
)
_NOT_SPOKEN: Final = frozenset(
    {
        ApiKey.GET_TELEMETRY_SUBSCRIPTIONS,
        ApiKey.PUSH_TELEMETRY,
        *range(ApiKey.SHARE_GROUP_HEARTBEAT, ApiKey.SHARE_ACKNOWLEDGE + 1),
        *range(ApiKey.INITIALIZE_SHARE_GROUP_STATE, ApiKey.DELETE_SHARE_GROUP_OFFSETS + 1),
    }
)
"""No node serves them and no client sends them: client telemetry, share and streams groups."""

_MODULES: Final = {
    int(api_key): f"moldau.protocol.messages.p{api_key:02d}_{api_key.name.lower()}"
    for api_key in ApiKey
    if api_key not in _REMOVED_FROM_KAFKA | _NOT_SPOKEN
}


def api_keys() -> list[ApiKey]:
    """Return every API that has messages, lowest number first."""
    return [ApiKey(api_key) for api_key in _MODULES]


def is_known(api_key: int) -> bool:
    return api_key in _MODULES


def _message_class(api_key: int, kind: str) -> type[Message]:
    module = _MODULES.get(api_key)
    if module is None:
        raise RemoteProtocolError(f"there is no API {api_key}")
    found: type[Message] = getattr(import_module(module), api_name(api_key) + kind)
    return found


@cache
def request_class(api_key: int) -> type[Message]:
    """Return the API's request. Raises RemoteProtocolError: there is no such API."""
    return _message_class(api_key, "Request")


@cache
def response_class(api_key: int) -> type[Message]:
    """Return the API's response. Raises RemoteProtocolError: there is no such API."""
    return _message_class(api_key, "Response")
