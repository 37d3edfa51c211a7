"""Builds what a release consists of, and checks it (`make dist`).

    python tools/distributions.py                       builds dist/
    python tools/distributions.py --check DIR           checks the files in DIR
    python tools/distributions.py --check DIR --tag v1  and whether tag and CHANGELOG.md agree

Owns dist/: a source distribution, and a wheel for this Python that is built from it. Invariant: a
wheel has every module and data file of the packages, the compiled record codec, and nothing else:
no Cython, no C, no tests. Needs the extra `release` (tools/with_extra.py brings it).
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
DIST: Final = ROOT / "dist"
UNREPAIRED: Final = ROOT / "build" / "dist"
PACKAGES: Final = ("moldau", "pyspark_moldau")
PAGE: Final = (".html", ".css", ".js", ".gz", ".br", "licenses.txt")
DATA: Final = (".py", ".pyi", ".tsv", "py.typed", *PAGE)
SOURCES: Final = (".pyx", ".pxi")
CODEC: Final = re.compile(r"moldau/protocol/records/_native\.[\w.-]+\.(?:so|pyd)")
COMMANDS: Final = {"console_scripts": "moldau = ", "pytest11": "moldau = "}
MOST_WHEEL_BYTES: Final = 5_000_000


class Refused(Exception):
    """A distribution is not as it must be; one line that says why."""


def version() -> str:
    """The project's, from pyproject.toml."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found: str = tomllib.loads(text)["project"]["version"]
    return found


def package_files(*suffixes: str) -> set[str]:
    """The files of the packages with these endings, as they stand in an archive."""
    return {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.name.endswith(suffixes) and "__pycache__" not in path.parts
    }


def check_wheel(path: Path) -> None:
    """Raises: Refused."""
    with zipfile.ZipFile(path) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        [entry_points] = [name for name in names if name.endswith(".dist-info/entry_points.txt")]
        commands = archive.read(entry_points).decode()
    info = {name for name in names if name.split("/")[0].endswith(".dist-info")}
    codecs = {name for name in names if CODEC.fullmatch(name)}
    is_pure = path.name.endswith("-none-any.whl")
    if len(codecs) != (0 if is_pure else 1):
        raise Refused(f"{path.name} has {len(codecs)} compiled record codecs: no C compiler?")
    _same(path, names - info - codecs, package_files(*DATA))
    for group, command in COMMANDS.items():
        if f"[{group}]\n{command}" not in commands:
            raise Refused(f"{path.name} has no {group} entry for moldau")
    if not {"LICENSE", "NOTICE"} <= {name.rpartition("/")[2] for name in info}:
        raise Refused(f"{path.name} has no licence")
    if path.stat().st_size > MOST_WHEEL_BYTES:
        raise Refused(f"{path.name} has {path.stat().st_size} bytes, more than {MOST_WHEEL_BYTES}")


def check_source(path: Path) -> None:
    """Raises: Refused."""
    with tarfile.open(path) as archive:
        names = {each.name.partition("/")[2] for each in archive if each.isfile()}
    inside = {name for name in names if name.split("/")[0] in PACKAGES}
    _same(path, inside, package_files(*DATA, *SOURCES))
    needed = {"pyproject.toml", "setup.py", "README.md", "LICENSE", "NOTICE", "CHANGELOG.md"}
    if needed - names:
        raise Refused(f"{path.name} lacks {', '.join(sorted(needed - names))}")


def _same(path: Path, found: set[str], wanted: set[str]) -> None:
    if wanted - found:
        raise Refused(f"{path.name} lacks {', '.join(sorted(wanted - found)[:5])}")
    if found - wanted:
        raise Refused(f"{path.name} must not have {', '.join(sorted(found - wanted)[:5])}")


def check(directory: Path, tag: str | None = None) -> list[Path]:
    """Check every file of a directory; returns them. Raises: Refused."""
    files = sorted(path for path in directory.iterdir() if path.is_file())
    for path in files:
        if f"moldau-{version()}" not in path.name:
            raise Refused(f"{path.name} is not of version {version()}")
        if path.suffix == ".whl":
            check_wheel(path)
        else:
            check_source(path)
    if not any(path.suffix == ".whl" for path in files) or all(p.suffix == ".whl" for p in files):
        raise Refused(f"{directory} needs a source distribution and a wheel at least")
    if tag is not None:
        check_tag(tag)
    return files


def check_tag(tag: str) -> None:
    """Raises: Refused."""
    if tag != f"v{version()}":
        raise Refused(f"the tag is {tag}, the version in pyproject.toml is {version()}")
    if not notes(version()):
        raise Refused(f"CHANGELOG.md has no section [{version()}], or an empty one")


def notes(wanted: str) -> str:
    """What CHANGELOG.md says about a version, empty when it says nothing."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    found = re.search(rf"^## \[{re.escape(wanted)}\].*?\n(.*?)(?=^## \[|\Z)", text, re.M | re.S)
    return found[1].strip() if found else ""


def build() -> None:
    """Fill dist/. Raises: Refused, subprocess.CalledProcessError."""
    for directory in (UNREPAIRED, DIST):
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
    subprocess.run(
        [sys.executable, "-m", "build", "--outdir", str(UNREPAIRED)], cwd=ROOT, check=True
    )
    for path in check(UNREPAIRED):
        if path.suffix == ".whl" and "-linux_" in path.name:
            _repair(path)
        else:
            shutil.copy2(path, DIST)
    for path in check(DIST):
        print(f"dist/{path.name}  {path.stat().st_size / 1e6:.2f} MB")


def _repair(wheel: Path) -> None:
    """Give the wheel the tag of the oldest systems that it runs on."""
    missing = [name for name in _missing_tools()]
    if missing:
        print(f"WARNING: {' and '.join(missing)} missing: the wheel is for this machine only")
        shutil.copy2(wheel, DIST)
        return
    auditwheel = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", str(DIST)]
    subprocess.run([*auditwheel, str(wheel)], check=True)


def _missing_tools() -> Iterator[str]:
    if importlib.util.find_spec("auditwheel") is None:
        yield "auditwheel"
    if shutil.which("patchelf") is None:
        yield "patchelf"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", type=Path, metavar="DIR", help="check DIR instead of building")
    parser.add_argument("--tag", help="the tag of the release, as v0.1.0")
    parser.add_argument("--notes", action="store_true", help="print the release's notes")
    options = parser.parse_args()
    try:
        if options.notes:
            print(notes(version()))
        elif options.check is not None:
            for path in check(options.check, options.tag):
                print(f"{path.name}: as it must be")
        else:
            build()
    except Refused as problem:
        print(f"dist: {problem}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"dist: {error.cmd[2]} failed", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
