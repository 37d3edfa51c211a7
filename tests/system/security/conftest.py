"""One secured node for all tests that leave its settings alone, and who gives out tokens."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.identity_provider import IdentityProvider
from tests.system.security.nodes import AUTHORIZER, SecuredNode


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredNode]:
    """With an authorizer, whose super users are the node itself and alice."""
    changed = {
        "authorizer.class.name": AUTHORIZER,
        "super.users": "User:ANONYMOUS;User:alice",
    }
    with SecuredNode(tmp_path_factory.mktemp("secured"), changed) as running:
        yield running


@pytest.fixture(scope="module")
def provider() -> Iterator[IdentityProvider]:
    with IdentityProvider() as running:
        yield running
