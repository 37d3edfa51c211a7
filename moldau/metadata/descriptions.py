"""What any node answers about access control entries, users and configurations out of the image.

Owns: the entries of these answers, what the resources of one DescribeConfigs answer share, and how
many entries it may have. Must not: ask for permission (the node that answers has done so), or
decide which resources are served. Invariants: an answer is built from one image; it has no salt and
no key of a user; documentation and synonyms are filled in only when the request asks for them;
resources that are alike share the entries, which stay as they are then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from moldau.config import (
    DescribedConfig,
    NodeConfig,
    describe_broker_config,
    describe_cluster_default_config,
    describe_group_config,
    describe_topic_config,
)
from moldau.config.node_config import NO_AUTHORIZER
from moldau.metadata.access_filter import EntryFilter
from moldau.metadata.image import ConfigResourceType, ConfigsImage
from moldau.metadata.image.security import AclsImage, ScramImage
from moldau.metadata.steps import Steps
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p29_describe_acls as p29
from moldau.protocol.messages import p32_describe_configs as p32
from moldau.protocol.messages import p50_describe_user_scram_credentials as p50


def described_acls(
    config: NodeConfig, acls: AclsImage, request: p29.DescribeAclsRequest
) -> Steps[p29.DescribeAclsResponse]:
    """DescribeAcls v1–v3: the entries that a filter matches."""
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


def described_scram(
    credentials: ScramImage, request: p50.DescribeUserScramCredentialsRequest
) -> Steps[p50.DescribeUserScramCredentialsResponse]:
    """DescribeUserScramCredentials v0 (KIP-554): without users in the request, all that have a
    credential.
    """
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


def config_entry(
    request: p32.DescribeConfigsRequest, config: DescribedConfig
) -> p32.DescribeConfigsResourceResult:
    entry = p32.DescribeConfigsResourceResult(
        name=config.name,
        value=config.value,
        read_only=config.read_only,
        config_source=config.source,
        is_sensitive=config.sensitive,
        config_type=config.type,
        documentation=(config.documentation or None) if request.include_documentation else None,
    )
    if request.include_synonyms:
        entry.synonyms = [
            p32.DescribeConfigsSynonym(name=each.name, value=each.value, source=each.source)
            for each in config.synonyms
        ]
    return entry


def description(
    config: NodeConfig,
    configs: ConfigsImage,
    resource_type: int,
    name: str,
    keys: Collection[str] | None,
) -> tuple[Hashable, Callable[[], Iterable[DescribedConfig]]]:
    """What is equal for resources that are described alike, and how to describe this one: a topic,
    a group, the node itself or, with no name, what is set for all brokers.
    """
    defaults = configs.get(ConfigResourceType.BROKER, "")
    if resource_type == ConfigResourceType.BROKER and name == "":
        return (resource_type, name, keys), partial(describe_cluster_default_config, defaults, keys)
    own = configs.get(ConfigResourceType.BROKER, str(config.node_id))
    if resource_type == ConfigResourceType.BROKER:
        return (
            (resource_type, name, keys),
            partial(describe_broker_config, config, defaults, own, keys),
        )
    overrides = configs.get(resource_type, name)
    describe = (
        describe_group_config
        if resource_type == ConfigResourceType.GROUP
        else describe_topic_config
    )
    return (
        (resource_type, frozenset(overrides.items()), keys),
        partial(describe, config, defaults, own, overrides, keys),
    )


MAX_DESCRIBED_ENTRIES: Final = 500_000
"""15,000 topics with all their keys, or 25 to 200 MB. A request of 1 MB may name four times as
many, and each as often as it likes.
"""

TOO_MANY_ENTRIES: Final = (
    f"the answer has {MAX_DESCRIBED_ENTRIES} entries already: ask for this one in another request"
)


@dataclass(eq=False, repr=False)
class DescribedEntries:
    """Makes the entries of one answer, resource by resource."""

    _request: p32.DescribeConfigsRequest
    _config: NodeConfig
    _configs: ConfigsImage
    _loggers: Callable[[Collection[str] | None], Iterable[DescribedConfig]] | None = None
    _entries: dict[Hashable, list[p32.DescribeConfigsResourceResult]] = field(default_factory=dict)
    _entry_count: int = 0

    def result(
        self, resource: p32.DescribeConfigsResource, problem: tuple[ErrorCode, str] | None
    ) -> p32.DescribeConfigsResult:
        """The entries of a resource, or what is wrong with it."""
        kind, name = resource.resource_type, resource.resource_name
        result = p32.DescribeConfigsResult(resource_type=kind, resource_name=name)
        if problem is not None:
            result.error_code, result.error_message = problem
            return result
        # An empty list means all keys, as null does.
        keys = frozenset(resource.configuration_keys or ()) or None
        if kind == ConfigResourceType.BROKER_LOGGER and self._loggers is not None:
            self.fill(result, (kind, keys), partial(self._loggers, keys))
        else:
            self.fill(result, *description(self._config, self._configs, kind, name, keys))
        return result

    def fill(
        self,
        result: p32.DescribeConfigsResult,
        likeness: Hashable,
        describe: Callable[[], Iterable[DescribedConfig]],
    ) -> None:
        """Give one more resource its entries, or the error that they are too many for the answer.

        Args:
            likeness: equal for resources whose descriptions are equal.
        """
        entries = self._entries.get(likeness)
        if entries is None and self._entry_count < MAX_DESCRIBED_ENTRIES:
            entries = [config_entry(self._request, config) for config in describe()]
            self._entries[likeness] = entries
        if entries is None or self._entry_count + len(entries) > MAX_DESCRIBED_ENTRIES:
            result.error_code, result.error_message = ErrorCode.POLICY_VIOLATION, TOO_MANY_ENTRIES
            return
        self._entry_count += len(entries)
        result.configs = entries
