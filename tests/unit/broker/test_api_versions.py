"""ApiVersions: what clients read that is served."""

from __future__ import annotations

import pytest

from moldau.metadata.features import KRAFT_VERSION, FeatureRange
from moldau.metadata.image import MetadataImage, Provenance
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p18_api_versions import ApiVersionsRequest
from moldau.protocol.metadata_records import FeatureLevelRecord
from moldau.server import api_versions
from moldau.server.api_versions import listener_handlers
from moldau.server.apis import BROKER_APIS
from moldau.server.authorizer import Authorizer
from moldau.server.request import RequestContext
from tests.unit.broker.harness import DataPath, FakeConnection, FakeRequest


@pytest.mark.parametrize(("api_version", "told"), [(3, ["b", "c"]), (4, ["a", "b", "c"])])
async def test_features_with_a_level_zero_are_for_clients_that_know_it(
    broker: DataPath, api_version: int, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ranges = {"a": FeatureRange(0, 1, 1), "b": FeatureRange(1, 2, 2), "c": FeatureRange(2, 2, 2)}
    monkeypatch.setattr(api_versions, "advertised_features", lambda _levels: ranges)
    for level, name in enumerate(("none", "transaction.version", "group.version")):
        broker.replay(FeatureLevelRecord(name=name, feature_level=level))
    request = ApiVersionsRequest(client_software_name="kcat", client_software_version="1")
    response = await broker.ask(request, api_version)
    assert [
        (each.name, each.min_version, each.max_version) for each in response.supported_features
    ] == [(name, *ranges[name][:2]) for name in told]
    finalized = {
        each.name: (each.min_version_level, each.max_version_level)
        for each in response.finalized_features
    }
    assert "none" not in finalized
    assert finalized["transaction.version"] == (1, 1)
    assert finalized["group.version"] == (2, 2)
    assert [each.name for each in response.finalized_features] == sorted(finalized)
    assert broker.connection.client_software_name == "kcat"  # type: ignore[attr-defined]


@pytest.mark.parametrize("kraft_version", [0, 1])
def test_the_quorum_s_own_version_is_shown_from_its_first_level_on(kraft_version: int) -> None:
    image = MetadataImage(provenance=Provenance(77, 1, 0))
    handlers = listener_handlers(BROKER_APIS, lambda: image, lambda: kraft_version)
    request = FakeRequest(FakeConnection(), ApiKey.API_VERSIONS, 3, b"")
    handle = handlers[ApiKey.API_VERSIONS].handle
    assert handle is not None
    asked = ApiVersionsRequest(client_software_name="kcat", client_software_version="1.2")
    handle(RequestContext(request, Authorizer()), asked)  # type: ignore[arg-type]
    levels = {each.name: each.max_version_level for each in request.response.finalized_features}
    assert levels == ({KRAFT_VERSION: 1} if kraft_version else {})
    assert request.response.finalized_features_epoch == 77
    assert request.connection.client_software_version == "1.2"  # type: ignore[attr-defined]


@pytest.mark.parametrize("api_version", [0, 2])
async def test_old_clients_learn_of_no_features(broker: DataPath, api_version: int) -> None:
    broker.replay(FeatureLevelRecord(name="group.version", feature_level=1))
    response = await broker.ask(ApiVersionsRequest(), api_version)
    assert (response.error_code, response.finalized_features) == (ErrorCode.NONE, [])


@pytest.mark.parametrize(("name", "version"), [("", "1"), ("a", "-"), ("a b", "1"), ("a", "1\n")])
async def test_a_client_whose_software_has_an_illegal_name_is_refused(
    broker: DataPath, name: str, version: str
) -> None:
    request = ApiVersionsRequest(client_software_name=name, client_software_version=version)
    response = await broker.ask(request, 3)
    assert (response.error_code, response.api_keys) == (ErrorCode.INVALID_REQUEST, [])


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
