"""ApiVersions on any listener: what it serves, the cluster's features, the client's software.

Behaviour: from v3 on a client names its software (KIP-511; an illegal name is INVALID_REQUEST) and
learns the supported and finalized features (KIP-584). Which versions are served is in `apis`; an
unknown one is the request router's business; a feature whose lowest version is 0 is shown to v4
clients only, since older ones reject it (KIP-1022).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from moldau.metadata.features import KRAFT_VERSION, advertised_features
from moldau.metadata.image import MetadataImage
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p18_api_versions as p18
from moldau.server.apis import Api
from moldau.server.authentication.out_of_place import refuse_handshake, refuse_token
from moldau.server.request import RequestContext
from moldau.server.request_router import Handler

CLIENT_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]{0,254}[a-zA-Z0-9])?\Z")
FIRST_VERSION_WITH_SOFTWARE: Final = 3
FIRST_VERSION_WITH_ZERO_FEATURES: Final = 4


def listener_handlers(
    apis: Mapping[ApiKey, Api],
    image: Callable[[], MetadataImage],
    kraft_version: Callable[[], int],
) -> dict[ApiKey, Handler]:
    """What a listener of either kind answers itself (BY_LISTENER).

    Args:
        apis: what it serves.
        kraft_version: the finalized level, which is not in the image.
    """

    served = [
        p18.ApiVersion(
            api_key=api_key,
            min_version=api.min_version if api.told_since is None else api.told_since,
            max_version=api.max_version,
        )
        for api_key, api in apis.items()
    ]

    def tell_versions(context: RequestContext, request: p18.ApiVersionsRequest) -> None:
        _answer_api_versions(context, request, served, image(), kraft_version())

    return {
        ApiKey.API_VERSIONS: Handler(tell_versions),
        ApiKey.SASL_HANDSHAKE: Handler(refuse_handshake),
        ApiKey.SASL_AUTHENTICATE: Handler(refuse_token),
    }


def _answer_api_versions(
    context: RequestContext,
    request: p18.ApiVersionsRequest,
    served: list[p18.ApiVersion],
    image: MetadataImage,
    kraft_version: int,
) -> None:
    """Answer at once: every client begins with this."""
    if context.api_version >= FIRST_VERSION_WITH_SOFTWARE:
        for text in (request.client_software_name, request.client_software_version):
            if CLIENT_SOFTWARE.match(text) is None:
                context.respond(p18.ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST))
                return
        context.request.connection.client_software_name = request.client_software_name
        context.request.connection.client_software_version = request.client_software_version
    response = p18.ApiVersionsResponse(api_keys=served)
    if context.api_version >= FIRST_VERSION_WITH_SOFTWARE:
        finalized = {**image.features.finalized_levels, KRAFT_VERSION: kraft_version}
        response.supported_features = [
            p18.SupportedFeatureKey(
                name=name, min_version=levels.minimum_level, max_version=levels.maximum_level
            )
            for name, levels in advertised_features(image.features.finalized_levels).items()
            if levels.minimum_level > 0 or context.api_version >= FIRST_VERSION_WITH_ZERO_FEATURES
        ]
        response.finalized_features_epoch = image.provenance.last_contained_offset
        response.finalized_features = [
            p18.FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in sorted(finalized.items())
            if level > 0
        ]
    context.respond(response)
