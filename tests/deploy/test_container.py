"""The container file: what it copies exists, so does what it runs, and no process is root."""

from __future__ import annotations

import fnmatch
import json
import re
import tomllib
from typing import NamedTuple

import pytest

from moldau.config import NodeConfig
from tests.deploy.files import DEPLOY, ROOT, compose

CONTAINERFILE = DEPLOY / "container" / "Containerfile"
USER_ID = "10001"


class Instruction(NamedTuple):
    """One instruction of a stage."""

    word: str
    text: str


def stages() -> dict[str, tuple[str, list[Instruction]]]:
    """The stages by name: what each is made from, and its instructions."""
    text = re.sub(r"^\s*#.*\n", "", CONTAINERFILE.read_text(), flags=re.MULTILINE)
    found: dict[str, tuple[str, list[Instruction]]] = {}
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if not line.strip():
            continue
        word, _, rest = line.partition(" ")
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            found[name] = (base, instructions := [])
        else:
            instructions.append(Instruction(word, rest.strip()))
    return found


def of(stage: str, word: str) -> list[str]:
    return [each.text for each in stages()[stage][1] if each.word == word]


def test_every_instruction_is_one():
    known = {"RUN", "COPY", "WORKDIR", "ENV", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL", "CMD"}
    used = {each.word for _, instructions in stages().values() for each in instructions}
    assert used <= known | {"HEALTHCHECK"}


def test_bases_are_slim_pythons_that_the_project_supports_or_stages_before():
    names: list[str] = []
    lowest = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    for name, (base, _) in stages().items():
        if base not in names:
            found = re.fullmatch(r"python:3\.(\d+)-slim-bookworm", base)
            assert found, base
            assert int(found[1]) >= int(lowest.rpartition(".")[2])
        names.append(name)


def test_what_is_copied_exists_and_is_sent_to_the_builder():
    ignored = (CONTAINERFILE.parent / "Containerfile.dockerignore").read_text().splitlines()
    assert "*" in ignored
    sent = [line[1:] for line in ignored if line.startswith("!")]
    copied = []
    for instruction in of("build", "COPY"):
        *sources, _ = instruction.split()
        copied += sources
    assert {name for name in copied if not (ROOT / name).exists()} == set()
    assert sorted(sent) == sorted(copied)


def test_what_the_installation_reads_is_copied():
    """Setuptools needs what pyproject.toml names, and every package of its list."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = {project["project"]["readme"], *project["project"]["license-files"], "setup.py"}
    patterns = project["tool"]["setuptools"]["packages"]["find"]["include"]
    packages = {
        path.parent.name
        for path in ROOT.glob("*/__init__.py")
        if any(fnmatch.fnmatch(path.parent.name, pattern) for pattern in patterns)
    }
    copied = {source for text in of("build", "COPY") for source in text.split()[:-1]}
    assert needed | packages | {"pyproject.toml"} <= copied


def test_the_record_codec_is_built_or_the_build_fails():
    [installation] = [text for text in of("build", "RUN") if "pip install" in text]
    # -I leaves out the directory with the sources, which have no compiled module.
    module = re.search(r'python -I -c "import (\S+)"', installation)
    assert module is not None
    assert (ROOT / (module[1].replace(".", "/") + ".pyx")).exists()
    assert any("gcc" in text for text in of("build", "RUN"))


def test_extras_exist():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = re.findall(r'"\.\[([\w,-]+)\]"', CONTAINERFILE.read_text())
    assert named
    for name in ",".join(named).split(","):
        assert name in project["optional-dependencies"]


@pytest.mark.parametrize("stage", ["node", "spark"])
def test_no_process_is_root_and_data_are_on_volumes(stage: str):
    assert of(stage, "USER")[-1] == f"{USER_ID}:{USER_ID}"
    [volume] = of(stage, "VOLUME")
    made = [text for text in of(stage, "RUN") if f"--owner={USER_ID}" in text]
    assert any(volume in text for text in made)
    assert of(stage, "WORKDIR")[-1] == volume


@pytest.mark.parametrize("name", ["moldau-node", "moldau-kubernetes", "moldau-secrets"])
def test_a_helper_is_installed_under_the_name_that_is_used(name: str):
    module = f"{name.replace('-', '_')}.py"
    [copied] = [text for text in of("build", "COPY") if module in text]
    source, target = copied.split()
    if name == "moldau-secrets":  # which moldau-kubernetes imports from beside itself
        assert target == f"/opt/moldau/bin/{module}"
        assert f"ln -s {module} /opt/moldau/bin/{name}" in of("build", "RUN")
    else:
        assert target == f"/opt/moldau/bin/{name}"
    assert (ROOT / source).stat().st_mode & 0o111 == 0o111
    assert (ROOT / source).read_text().startswith("#!/usr/bin/env python3\n")
    [environment] = of("node", "ENV")
    assert "PATH=/opt/moldau/bin:$PATH" in environment


def test_start_and_health_are_the_helpers():
    [command] = of("node", "CMD")
    [health] = of("node", "HEALTHCHECK")
    asked = json.loads(health[health.index("CMD ") + 4 :])
    services = compose()["services"]
    assert json.loads(command) == services["broker-1"]["command"]
    assert ["CMD", *asked] == services["broker-1"]["healthcheck"]["test"]
    assert of("node", "STOPSIGNAL") == ["SIGTERM"]


def test_exposed_ports_are_those_of_the_configurations():
    exposed = {int(port) for port in of("node", "EXPOSE")[0].split()}
    used = set()
    for name, extra in (("broker", {"node.id": "1"}), ("controller", {"node.id": "101"})):
        path = DEPLOY / "compose" / f"{name}.properties"
        names = ("CLIENT", "INTERNAL", "EXTERNAL") if name == "broker" else ("CONTROLLER",)
        advertised = {
            "advertised.listeners": ",".join(
                f"{each}://h:{port}" for port, each in enumerate(names, start=1)
            )
        }
        config = NodeConfig.load(str(path), {**extra, **advertised})
        used |= {each.port for each in config.listeners if each.listener_name != "EXTERNAL"}
        used.add(int(config["moldau.http.listener"].rpartition(":")[2]))
    assert exposed == used
