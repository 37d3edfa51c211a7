"""DescribeAcls v1–v3, of brokers and controllers alike: the entries that a filter matches.

Must not ask for permission: who answers has done so. Invariant: an answer is built from one image.
"""

from __future__ import annotations

from moldau.config import NodeConfig
from moldau.config.node_config import NO_AUTHORIZER
from moldau.metadata.access_filter import EntryFilter
from moldau.metadata.image.security import AclsImage
from moldau.metadata.steps import Steps
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p29_describe_acls as p29


def described_acls(
    config: NodeConfig, acls: AclsImage, request: p29.DescribeAclsRequest
) -> Steps[p29.DescribeAclsResponse]:
    if not config.has_authorizer:
        return p29.DescribeAclsResponse(
            error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER
        )
    wanted = EntryFilter.of(request)
    if wanted.unknown is not None and 0 in wanted:
        return p29.DescribeAclsResponse(
            error_code=ErrorCode.INVALID_REQUEST, error_message=f"{wanted.unknown} is unknown"
        )
    resources: dict[tuple[int, str, int], p29.DescribeAclsResource] = {}
    for entry in acls.entries_by_id.values():
        yield
        if not wanted.matches(entry):
            continue
        kind, name, pattern_type = key = entry[:3]
        resource = resources.get(key)
        if resource is None:
            resource = resources[key] = p29.DescribeAclsResource(
                resource_type=kind, resource_name=name, pattern_type=pattern_type
            )
        resource.acls.append(
            p29.AclDescription(
                principal=entry.principal,
                host=entry.host,
                operation=entry.operation,
                permission_type=entry.permission_type,
            )
        )
    return p29.DescribeAclsResponse(resources=list(resources.values()))
