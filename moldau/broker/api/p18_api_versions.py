"""ApiVersions v0–v4: which APIs and versions this listener serves, and the cluster's features.

Behaviour: as `server.api_versions`. Produce is told from version 0 on, as Apache Kafka does, though
0 to 2 are refused: librdkafka before 2.8 leaves batches uncompressed, without a word, unless it
reads that.
Known gaps: none.
"""

from __future__ import annotations

from typing import Final

from moldau.broker.api import BROKER_APIS
from moldau.broker.api.services import BrokerServices
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.messages.p18_api_versions import ApiVersionsRequest
from moldau.server.api_versions import answer_api_versions
from moldau.server.request import RequestContext

ADVERTISED_MIN_VERSION: Final = {ApiKey.PRODUCE: 0}
"""Where what clients are told differs from what is served (see above)."""

TOLD: Final = {
    api_key: (ADVERTISED_MIN_VERSION.get(api_key, served.min_version), served.max_version)
    for api_key, served in BROKER_APIS.items()
}


def handle(services: BrokerServices, context: RequestContext, request: ApiVersionsRequest) -> None:
    answer_api_versions(context, request, TOLD, services.metadata.image, services.kraft_version())
