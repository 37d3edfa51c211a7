"""One configuration key as DescribeConfigs shows it, whoever is asked: broker or controller.

Owns the translation from a described key to its entry. Must not: decide what is shown. Invariant:
documentation and synonyms are there only for those who asked for them.
"""

from __future__ import annotations

from moldau.config.describe import DescribedConfig
from moldau.protocol.messages.p32_describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsSynonym,
)


def config_entry(
    request: DescribeConfigsRequest, config: DescribedConfig
) -> DescribeConfigsResourceResult:
    """The entry of one key, with as much as the request asks for."""
    entry = DescribeConfigsResourceResult(
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
            DescribeConfigsSynonym(name=each.name, value=each.value, source=each.source)
            for each in config.synonyms
        ]
    return entry
