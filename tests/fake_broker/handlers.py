"""Which handler carries out which API; ApiVersions and SASL are a node's own.

Owns the table only.
"""

from __future__ import annotations

from moldau.protocol import ApiKey
from tests.fake_broker import (
    admin,
    consumer_group_apis,
    fetch,
    group_apis,
    group_offsets,
    metadata,
    offsets,
    produce,
    transactions,
)
from tests.fake_broker.context import Handler

HANDLERS: dict[ApiKey, Handler] = {
    **admin.HANDLERS,
    **consumer_group_apis.HANDLERS,
    **fetch.HANDLERS,
    **group_apis.HANDLERS,
    **group_offsets.HANDLERS,
    **metadata.HANDLERS,
    **offsets.HANDLERS,
    **produce.HANDLERS,
    **transactions.HANDLERS,
}
