"""ApiVersions v0–v4: which APIs and versions this listener serves, and the cluster's features.

Behaviour: from v3 on a client names its software (KIP-511; an illegal name is INVALID_REQUEST) and
is told the supported and finalized features (KIP-584). An unknown version is the request router's
business; a feature whose lowest version is 0 is told to v4 clients only, since older ones reject it
(KIP-1022). Produce is told from version 0 on, as Apache Kafka does, though 0 to 2 are refused:
librdkafka before 2.8 leaves batches uncompressed, without a word, unless it reads that.
Known gaps: none.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from moldau.broker.api import BROKER_APIS
from moldau.metadata.features import KRAFT_VERSION, advertised_features
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p18_api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

if TYPE_CHECKING:
    from moldau.broker.api.request_context import RequestContext
    from moldau.broker.api.services import BrokerServices

CLIENT_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]{0,254}[a-zA-Z0-9])?\Z")
ADVERTISED_MIN_VERSION: Final = {ApiKey.PRODUCE: 0}
"""Where what clients are told differs from what is served (see above)."""

FIRST_VERSION_WITH_SOFTWARE: Final = 3
FIRST_VERSION_WITH_ZERO_FEATURES: Final = 4


def handle(services: BrokerServices, context: RequestContext, request: ApiVersionsRequest) -> None:
    """Answer at once: every client begins with this."""
    if context.api_version >= FIRST_VERSION_WITH_SOFTWARE:
        for text in (request.client_software_name, request.client_software_version):
            if CLIENT_SOFTWARE.match(text) is None:
                context.respond(ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST))
                return
        context.request.connection.client_software_name = request.client_software_name
        context.request.connection.client_software_version = request.client_software_version
    image = services.metadata.image
    response = ApiVersionsResponse(
        api_keys=[
            ApiVersion(
                api_key=api_key,
                min_version=ADVERTISED_MIN_VERSION.get(api_key, served.min_version),
                max_version=served.max_version,
            )
            for api_key, served in BROKER_APIS.items()
        ]
    )
    if context.api_version >= FIRST_VERSION_WITH_SOFTWARE:
        finalized = {
            **image.features.finalized_levels,
            KRAFT_VERSION: services.kraft_version(),
        }
        response.supported_features = [
            SupportedFeatureKey(
                name=name, min_version=levels.minimum_level, max_version=levels.maximum_level
            )
            for name, levels in advertised_features(image.features.finalized_levels).items()
            if levels.minimum_level > 0 or context.api_version >= FIRST_VERSION_WITH_ZERO_FEATURES
        ]
        response.finalized_features_epoch = image.provenance.last_contained_offset
        response.finalized_features = [
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in sorted(finalized.items())
            if level > 0
        ]
    context.respond(response)
