"""The limit of open files."""

import logging
import resource
from collections.abc import Iterator

import pytest

from moldau.node import foreground
from moldau.node.foreground import raise_descriptor_limit


@pytest.fixture
def hard_limit() -> Iterator[int]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_soft_limit_is_raised_to_the_hard_one(
    hard_limit: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if hard_limit == resource.RLIM_INFINITY:
        pytest.skip("this system has no hard limit")
    monkeypatch.setattr(foreground, "FEW_DESCRIPTORS", hard_limit)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit // 2, hard_limit))
    assert raise_descriptor_limit() == hard_limit
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard_limit, hard_limit)
    assert not caplog.records


def test_a_low_limit_of_descriptors_is_logged(
    hard_limit: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_which: int, _limits: tuple[int, int]) -> None:
        raise ValueError("not allowed to raise maximum limit")

    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit - 1, hard_limit))
    with monkeypatch.context() as patched, caplog.at_level(logging.INFO):
        patched.setattr(resource, "setrlimit", refuse)
        patched.setattr(foreground, "FEW_DESCRIPTORS", hard_limit)
        assert raise_descriptor_limit() == hard_limit - 1
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]
