"""DescribeUserScramCredentials v0, of brokers and controllers alike (KIP-554).

Must not ask for permission: who answers has done so. Invariants: an answer is built from one image;
it has no salt and no key.
"""

from __future__ import annotations

from collections import Counter

from moldau.metadata.image.security import ScramImage
from moldau.metadata.steps import Steps
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p50_describe_user_scram_credentials as p50


def described_scram(
    credentials: ScramImage, request: p50.DescribeUserScramCredentialsRequest
) -> Steps[p50.DescribeUserScramCredentialsResponse]:
    """Without users in the request, all that have a credential."""
    infos: dict[str, list[p50.CredentialInfo]] = {}
    for key in sorted(credentials.credentials):
        iterations = credentials.credentials[key].iterations
        info = p50.CredentialInfo(mechanism=key.mechanism, iterations=iterations)
        infos.setdefault(key.user, []).append(info)
        yield
    response = p50.DescribeUserScramCredentialsResponse()
    asked = Counter(user.name for user in request.users or ()) or dict.fromkeys(infos, 1)
    for user, count in asked.items():
        yield
        result = p50.DescribeUserScramCredentialsResult(user=user)
        response.results.append(result)
        if count > 1:
            result.error_code = ErrorCode.DUPLICATE_RESOURCE
            result.error_message = "the user is named twice in one request"
        elif user not in infos:
            result.error_code = ErrorCode.RESOURCE_NOT_FOUND
            result.error_message = "the user has no SCRAM credential"
        else:
            result.credential_infos = infos[user]
    return response
