"""ApiVersions v0–v4: which APIs and versions this listener serves, and the cluster's features.

Behaviour: as `server.api_versions`. Produce is told from version 0 on, as Apache Kafka does, though
0 to 2 are refused. Known gaps: none.
"""

from __future__ import annotations

from moldau.broker.api.services import BrokerServices
from moldau.protocol.messages.p18_api_versions import ApiVersionsRequest
from moldau.server.api_versions import answer_api_versions
from moldau.server.apis import BROKER_APIS
from moldau.server.request import RequestContext


def handle(services: BrokerServices, context: RequestContext, request: ApiVersionsRequest) -> None:
    image, kraft_version = services.metadata.image, services.kraft_version()
    answer_api_versions(context, request, BROKER_APIS, image, kraft_version)
