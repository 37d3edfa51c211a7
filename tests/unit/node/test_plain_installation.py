"""A node of a plain installation, without `moldau[server]`: what it refuses, and how it says so."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from moldau.broker.coordinator.core import expressions
from moldau.config import ConfigError, NodeConfig
from moldau.node import Node, NodeStartError, settings
from moldau.runtime.event_loop import new_event_loop


def config_of(home: Path, listener: str) -> NodeConfig:
    return NodeConfig(
        {
            "process.roles": "broker,controller",
            "node.id": "1",
            "listeners": "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": "1@127.0.0.1:9093",
            "log.dirs": str(home / "data"),
            "moldau.http.listener": listener,
        }
    )


@pytest.fixture
def without_http(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "HTTP_PACKAGES", ("aiohttp", "a_package_that_is_not_there"))


@pytest.mark.usefixtures("without_http")
def test_an_http_listener_is_refused_before_anything_is_opened(tmp_path: Path):
    async def start() -> None:
        node = Node(config_of(tmp_path, "127.0.0.1:8080"), on_fatal=pytest.fail)
        try:
            await node.start(format_if_needed=True)
        finally:
            await node.stop()

    with pytest.raises(NodeStartError) as refused:
        asyncio.run(start())
    assert "moldau.http.listener" in str(refused.value)
    assert "pip install 'moldau[server]'" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "data").exists()


@pytest.mark.usefixtures("without_http")
def test_without_a_listener_nothing_is_missing(tmp_path: Path):
    assert settings.http_address(config_of(tmp_path, "")) is None
    with pytest.raises(ConfigError):
        settings.http_address(config_of(tmp_path, "127.0.0.1:8080"))


def test_with_the_packages_there_is_an_address(tmp_path: Path):
    assert settings.http_address(config_of(tmp_path, "[::1]:8080")) == ("::1", 8080)


def test_a_regular_expression_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(expressions, "_re2", lambda: None)
    with pytest.raises(expressions.InvalidExpression, match=r"pip install 'moldau\[server\]'"):
        expressions.compile_expression("flights.*")


@pytest.mark.parametrize("has_uvloop", [True, False])
def test_the_event_loop_is_the_fastest_that_is_installed(
    monkeypatch: pytest.MonkeyPatch, has_uvloop: bool
):
    if not has_uvloop:
        monkeypatch.setitem(sys.modules, "uvloop", None)
    loop = new_event_loop()
    try:
        assert type(loop).__module__.startswith("uvloop") is has_uvloop
    finally:
        loop.close()
