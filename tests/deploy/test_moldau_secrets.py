"""`moldau-secrets`: what the compose files have it make on their volumes, and make once."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from moldau.client import AdminConfig
from moldau.config import read_properties_file
from tests.deploy.files import DEPLOY, compose


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """The container's script."""
    path = DEPLOY / "container" / "moldau_secrets.py"
    spec = importlib.util.spec_from_file_location("moldau_secrets_of_the_container", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look for it there
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def volumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the service in compose.yaml has, with its variable."""
    service = compose()["services"]["certificates"]
    monkeypatch.setenv("MOLDAU_SECRETS", service["environment"]["MOLDAU_SECRETS"])
    found = [tmp_path / "authority", tmp_path / "secrets"]
    for each in found:
        each.mkdir()
    return [str(each) for each in found]


def contents(home: str) -> dict[str, bytes]:
    files = [path for path in Path(home).rglob("*") if path.is_file() and not path.is_symlink()]
    return {str(path.relative_to(home)): path.read_bytes() for path in files}


def test_everything_is_made_once(
    script: ModuleType, volumes: list[str], capsys: pytest.CaptureFixture[str]
):
    assert script.main(volumes) == 0
    shared = contents(volumes[1])
    assert {"ca.pem", "admin.pem", "admin.password", "broker-1/certificate.pem"} <= shared.keys()
    assert "moldau-secrets: made a password for admin" in capsys.readouterr().err
    assert script.main(volumes) == 0
    assert contents(volumes[1]) == shared
    assert capsys.readouterr().err == ""


def test_nodes_do_not_read_the_key_that_signs(script: ModuleType, volumes: list[str]):
    assert script.main(volumes) == 0
    home, shared = (contents(each) for each in volumes)
    key = home["authority/ca-key.pem"]
    assert all(key not in content for content in shared.values())
    for name in shared:
        mode = (Path(volumes[1]) / name).stat().st_mode & 0o777
        assert mode == (0o644 if name == "ca.pem" else 0o600), name


def test_profiles_are_settings_of_a_client(script: ModuleType, volumes: list[str]):
    assert script.main(volumes) == 0
    profiles = Path(volumes[1]) / "client" / "profiles"
    for name in ("admin", "outside", "controllers"):
        config = AdminConfig.from_properties(
            dict(read_properties_file(str(profiles / f"{name}.properties")))
        )
        assert config.asks_controllers is (name == "controllers")
    outside = read_properties_file(str(profiles / "outside.properties"))
    assert outside["ssl.truststore.certificates"].startswith("-----BEGIN CERTIFICATE-----\n")


@pytest.mark.parametrize(
    ("arguments", "variable", "words"),
    [
        (["one"], "{}", "usage: moldau-secrets HOME SHARED"),
        (None, "", "MOLDAU_SECRETS: "),
        (None, "[]", "MOLDAU_SECRETS: "),
        (None, json.dumps({"nodes": {"n": ["ü"]}}), "a host name in ASCII"),
    ],
)
def test_what_is_wrong_is_one_line(
    script: ModuleType,
    volumes: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str] | None,
    variable: str,
    words: str,
):
    monkeypatch.setenv("MOLDAU_SECRETS", variable)
    assert script.main(volumes if arguments is None else arguments) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


def test_a_volume_that_cannot_be_written_is_one_line(
    script: ModuleType, volumes: list[str], capsys: pytest.CaptureFixture[str]
):
    (Path(volumes[0]) / "authority").write_text("no directory")
    assert script.main(volumes) == 1
    assert capsys.readouterr().err.startswith(f"moldau-secrets: {volumes[0]}/authority")
