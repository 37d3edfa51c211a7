"""ApiVersions: what clients read that is served."""

from __future__ import annotations

import pytest

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.messages.p18_api_versions import ApiVersionsRequest
from moldau.server.apis import BROKER_APIS
from tests.unit.broker.harness import DataPath


@pytest.mark.parametrize("api_version", range(5))
async def test_produce_is_advertised_from_version_0_on(broker: DataPath, api_version: int) -> None:
    """librdkafka before 2.8 (Debian's kcat) compresses with gzip, snappy and lz4 only then."""
    request = ApiVersionsRequest(client_software_name="kcat", client_software_version="1")
    response = await broker.ask(request, api_version)
    told = {entry.api_key: (entry.min_version, entry.max_version) for entry in response.api_keys}
    assert told.pop(ApiKey.PRODUCE) == (0, BROKER_APIS[ApiKey.PRODUCE].max_version)
    assert told == {
        api_key: (served.min_version, served.max_version)
        for api_key, served in BROKER_APIS.items()
        if api_key is not ApiKey.PRODUCE
    }
