"""docs/operations.md, docs/security.md and the texts of deploy/: every command, key, metric, file
and page they name exists.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from moldau.client import AdminConfig, ConsumerConfig, ProducerConfig
from moldau.config import BROKER_KEYS, GROUP_KEYS, TOPIC_KEYS, Status
from moldau.metadata.features import (
    ELIGIBLE_LEADER_REPLICAS_VERSION,
    GROUP_VERSION,
    KRAFT_VERSION,
    METADATA_VERSION,
    SHARE_VERSION,
    STREAMS_VERSION,
    TRANSACTION_VERSION,
)
from tests.deploy.command_lines import CommandLine, NotTaken, check, in_markdown, in_shell
from tests.deploy.files import DEPLOY, OPERATIONS, ROOT, SECURITY, yaml_of
from tests.deploy.headings import anchors
from tests.deploy.promql import documented_metrics, is_series_of

README = DEPLOY / "README.md"
DOCUMENTS = (OPERATIONS, SECURITY, README)
TEXTS = (
    DEPLOY / "compose" / "compose.yaml",
    DEPLOY / "compose" / ".env",
    DEPLOY / "container" / "Containerfile",
    DEPLOY / "container" / "moldau_node.py",
    DEPLOY / "container" / "moldau_kubernetes.py",
    DEPLOY / "container" / "moldau_secrets.py",
    DEPLOY / "helm" / "moldau" / "values.yaml",
    DEPLOY / "systemd" / "moldau@.service",
    DEPLOY / "systemd" / "sysctl.conf",
)
FEATURES = {
    METADATA_VERSION,
    KRAFT_VERSION,
    TRANSACTION_VERSION,
    GROUP_VERSION,
    ELIGIBLE_LEADER_REPLICAS_VERSION,
    SHARE_VERSION,
    STREAMS_VERSION,
}
CLIENT_KEYS = {
    name.replace("_", ".")
    for config in (AdminConfig, ConsumerConfig, ProducerConfig)
    for name in config.KEYS
}
#: Words in code with dots that are no keys: files, hosts, loggers, classes.
_NO_KEY = re.compile(
    r".*\.(?:md|py|ya?ml|json|properties|service|conf|log|checkpoint|jsonl|env|csv|sh|example)"
    r"|moldau\.(?:broker|testing|node|server|storage|controller)\b.*|server\.properties"
    r"|(?:moldau|kafka)\.(?:authorizer|authentication)\b.*|moldau\.audit|moldau\.http|listener\.name\.controller"
    r"|org\.apache\..*|(?:vm|net|fs|kernel)\..*|quorum\.founding|(?:brokers|controllers|security)\.\w+.*"
    r"|tls-combined\.pem|ca\.crt|streams-moldau.*"
)
_DOTTED = re.compile(
    r"(?<![\w./$-])([a-z][a-z0-9]*(?:[.-][a-z0-9]+)*\.[a-z0-9.-]*[a-z0-9])(?![\w/(-]|\.[\w*])"
)
_CODE = re.compile(r"`([^`\n]+)`")
_METRIC = re.compile(r"(?<![.\w])((?:kafka|process|python)_[a-z_]+)\b")


def code_of(path: Path) -> list[str]:
    """Inline code, and the lines of indented blocks that set something."""
    text = path.read_text(encoding="utf-8")
    blocks = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    return _CODE.findall(text) + [line for line in blocks if re.match(r"[a-z.]+=", line)]


def shell_lines() -> list[CommandLine]:
    found = [command for path in DOCUMENTS for command in in_markdown(path)]
    for path in TEXTS:
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            for span in re.findall(r"`(moldau [^`]+)`", line):
                words = tuple(span.split()[1:])
                found.append(CommandLine(f"{path.name}:{number}", words, may_be_a_name=True))
    return found


def test_every_command_is_taken_by_the_command_line():
    refused = []
    lines = shell_lines()
    for command in lines:
        try:
            check(command)
        except NotTaken as problem:
            refused.append(str(problem))
    assert refused == []
    assert len(lines) > 100


def test_a_command_that_does_not_exist_is_found():
    for text in ("moldau topics destroy x", "moldau topics list --jsn", "moldau storage format"):
        [command] = in_shell("here", text)
        with pytest.raises(NotTaken):
            check(command)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_key_exists(path: Path):
    keys = {*BROKER_KEYS, *TOPIC_KEYS, *GROUP_KEYS, *CLIENT_KEYS, *FEATURES}
    unknown = {
        word
        for code in code_of(path)
        if not code.startswith("moldau ") and "/" not in code.partition("=")[0]
        for word in _DOTTED.findall(code.partition("=")[0])
        if _of_any_listener(word) not in keys and not _NO_KEY.fullmatch(word)
    }
    assert unknown == set()


def _of_any_listener(word: str) -> str:
    """The key that one for a listener alone, or for a mechanism there, is about."""
    suffix = re.sub(r"^listener\.name\.[^.]+\.", "", word)
    return re.sub(r"^(?:plain|oauthbearer|scram-sha-(?:256|512))\.", "", suffix)


def test_keys_that_are_set_are_served():
    """A document must not set a key for which the node warns that it has no effect."""
    lines = [
        line for path in DOCUMENTS for line in code_of(path) if re.match(r"[a-z][a-z.]+=", line)
    ]
    names = {line.partition("=")[0] for line in lines}
    assert len(names) > 10
    assert [
        name
        for name in sorted(names)
        if name in BROKER_KEYS and BROKER_KEYS[name].status is not Status.SERVED
    ] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_metric_exists(path: Path):
    named = set(_METRIC.findall(path.read_text(encoding="utf-8")))
    known = documented_metrics()
    assert {name for name in named if not is_series_of(name, known)} == set()


def test_values_of_the_chart_exist():
    """Values are written in code as `brokers.external`, on command lines as `--set
    brokers.replicas=4`.
    """
    values = yaml_of(DEPLOY / "helm" / "moldau" / "values.yaml")
    text = README.read_text(encoding="utf-8")
    named = set(re.findall(r"--set ([\w.]+)=", text))
    named |= {
        word
        for word in _CODE.findall(text)
        if re.match(r"(?:brokers|controllers|quorum|security)\.", word)
    }
    assert len(named) > 5
    for name in named:
        found = values
        for part in name.split("."):
            assert part in found, name
            found = found[part]


def test_files_that_are_named_exist():
    named = {
        code
        for path in DOCUMENTS
        for code in _CODE.findall(path.read_text(encoding="utf-8"))
        if re.fullmatch(r"(?:deploy|docs|tests|demo)/[\w./@-]+", code)
    }
    assert named
    assert {name for name in named if not (ROOT / name).exists()} == set()


def test_every_file_of_deploy_is_explained():
    text = README.read_text(encoding="utf-8")
    for folder in sorted(path for path in DEPLOY.iterdir() if path.is_dir()):
        assert f"`deploy/{folder.name}/" in text, folder.name


def test_links_inside_the_document_lead_somewhere():
    text = OPERATIONS.read_text(encoding="utf-8")
    links = set(re.findall(r"\]\(#([^)]+)\)", text))
    assert links
    assert links <= anchors(OPERATIONS)


def test_kernel_settings_are_the_same_everywhere():
    """docs/operations.md shows the values of deploy/systemd/sysctl.conf."""
    text = (DEPLOY / "systemd" / "sysctl.conf").read_text()
    document = OPERATIONS.read_text()
    for line in text.splitlines():
        if line and not line.startswith("#"):
            assert f"`{line.replace(' = ', '=')}`" in document, line
