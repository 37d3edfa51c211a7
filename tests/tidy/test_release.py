"""A release: the checks of `make dist`, the extras, the workflow that publishes."""

from __future__ import annotations

import importlib.util
import re
import tarfile
import tomllib
import zipfile
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from tests.tidy.sources import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOW = ROOT / ".github" / "workflows" / "release.yml"
ENTRIES = "[console_scripts]\nmoldau = moldau.__main__:main\n\n[pytest11]\nmoldau = x\n"


@pytest.fixture(scope="module")
def distributions() -> ModuleType:
    path = ROOT / "tools" / "distributions.py"
    spec = importlib.util.spec_from_file_location("moldau_distributions", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wheel(home: Path, names: Iterable[str], platform: str = "manylinux_2_17_x86_64") -> Path:
    """A wheel with these files, which are empty, and what tools write into every one."""
    tag = "py3-none-any" if platform == "any" else f"cp311-cp311-{platform}"
    path = home / f"moldau-{PROJECT['version']}-{tag}.whl"
    info = f"moldau-{PROJECT['version']}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, "")
        archive.writestr(f"{info}/entry_points.txt", ENTRIES)
        for name in ("LICENSE", "NOTICE"):
            archive.writestr(f"{info}/licenses/{name}", "")
    return path


def source(home: Path, names: Iterable[str]) -> Path:
    path = home / f"moldau-{PROJECT['version']}.tar.gz"
    with tarfile.open(path, "w:gz", compresslevel=0) as archive:
        for name in names:
            archive.add(ROOT / name, f"moldau-{PROJECT['version']}/{name}", recursive=False)
    return path


CODEC = "moldau/protocol/records/_native.cpython-311-x86_64-linux-gnu.so"
BESIDE = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "NOTICE", "CHANGELOG.md")


def test_whole_distributions_are_as_they_must_be(distributions: ModuleType, tmp_path: Path):
    files = distributions.package_files(*distributions.DATA)
    wheel(tmp_path, files | {CODEC})
    wheel(tmp_path, files, "any")
    source(tmp_path, [*distributions.package_files(*distributions.DATA, ".pyx", ".pxi"), *BESIDE])
    assert len(distributions.check(tmp_path)) == 3


@pytest.mark.parametrize(
    ("more", "less", "words"),
    [
        ((), (CODEC,), "has 0 compiled record codecs"),
        (("moldau/protocol/records/_native.c",), (), "must not have moldau/protocol"),
        (("moldau/protocol/records/_native.pyx",), (), "must not have moldau/protocol"),
        (("tests/conftest.py",), (), "must not have tests/conftest.py"),
        ((), ("moldau/py.typed",), "lacks moldau/py.typed"),
        ((), ("moldau/config/unserved_keys.tsv",), "lacks moldau/config/unserved_keys.tsv"),
        ((), ("moldau/config/client_keys.tsv",), "lacks moldau/config/client_keys.tsv"),
        ((), ("moldau/client/config/keywords.pyi",), "lacks moldau/client/config/keywords.pyi"),
    ],
)
def test_a_wheel_with_more_or_less_is_refused(
    distributions: ModuleType,
    tmp_path: Path,
    more: tuple[str, ...],
    less: tuple[str, ...],
    words: str,
):
    files = distributions.package_files(*distributions.DATA) | {CODEC}
    with pytest.raises(distributions.Refused, match=re.escape(words)):
        distributions.check_wheel(wheel(tmp_path, (files | set(more)) - set(less)))


def test_a_source_distribution_without_the_codecs_sources_is_refused(
    distributions: ModuleType, tmp_path: Path
):
    path = source(tmp_path, [*distributions.package_files(*distributions.DATA), *BESIDE])
    with pytest.raises(distributions.Refused, match=r"lacks moldau/protocol/records/_native"):
        distributions.check_source(path)


def test_a_tag_of_another_version_is_refused(distributions: ModuleType):
    with pytest.raises(distributions.Refused, match=r"the tag is v9\.9\.9"):
        distributions.check_tag("v9.9.9")


def test_the_changelog_has_what_comes_next(distributions: ModuleType):
    assert "### Added" in distributions.notes("Unreleased")
    assert distributions.notes("9.9.9") == ""


def test_a_plain_installation_has_nothing_of_a_server():
    """aiohttp alone would bring eight more packages."""
    named = {re.split(r"[<>=;\[ ]", each)[0] for each in PROJECT["dependencies"]}
    extras = PROJECT["optional-dependencies"]
    served = {re.split(r"[<>=;\[ ]", each)[0] for each in extras["server"]}
    assert served == {"aiohttp", "google-re2", "joserfc", "prometheus-client", "uvloop"}
    assert not named & served
    assert "moldau[server" in extras["dev"][0], "tests need all of it"


def test_extras_that_errors_name_exist():
    named = {
        name
        for path in (ROOT / "moldau").rglob("*.py")
        for name in re.findall(r"moldau\[([a-z-]+)\]", path.read_text(encoding="utf-8"))
    }
    assert "server" in named
    assert named <= PROJECT["optional-dependencies"].keys()


@pytest.fixture(scope="module")
def jobs() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"]
    return found


def test_the_workflow_runs_scripts_that_exist(jobs: dict[str, Any]):
    text = WORKFLOW.read_text(encoding="utf-8")
    text += (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    scripts = set(re.findall(r"\btools/\w+\.py", text))
    assert scripts >= {"tools/distributions.py", "tools/try_installation.py"}
    assert {name for name in scripts if not (ROOT / name).exists()} == set()
    for job in jobs.values():
        for needed in job.get("needs", []):
            assert needed in jobs


def test_only_publishing_may_prove_who_it_is_and_only_for_a_tag(jobs: dict[str, Any]):
    having = [name for name, job in jobs.items() if "id-token" in job.get("permissions", {})]
    assert having == ["publish"]
    assert "tag" in jobs["publish"]["if"]
    assert jobs["publish"]["environment"] == "release"
    assert "secrets." not in WORKFLOW.read_text(encoding="utf-8")


def test_every_python_that_is_promised_gets_a_wheel():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    built = tomllib.loads(text)["tool"]["cibuildwheel"]["build"]
    promised = re.findall(r"Programming Language :: Python :: 3\.(\d+)", text)
    assert promised
    assert all(f"cp3{minor}-*" in built for minor in promised)
