"""The committed assets of the page are what its sources give, and the page keeps to its bounds."""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.tidy.sources import ROOT

SOURCES = ROOT / "console"
BUILT = ROOT / "moldau" / "console" / "page"
NODE, NPM = shutil.which("node"), shutil.which("npm")
MOST_BYTES = 150_000
"""The most bytes of all assets together by Brotli, and of what one view loads by gzip."""
LAZY = ("chart_uplot", "editor_codemirror")
"""What only some views load, and no view both."""
UNPACK = (
    "const {brotliDecompressSync: plain} = require('zlib'), {readFileSync: read} = require('fs');"
    "for (const path of process.argv.slice(1))"
    " if (!plain(read(path)).equals(read(path.slice(0, -3)))) throw new Error(path);"
)
INSTALL_TIMEOUT_S = 300
BUILD_TIMEOUT_S = 120


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder; compressed ones as what is in them, since versions of zlib differ.
    Those of Brotli are read by Node alone.
    """
    found = {}
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix != ".br":
            data = path.read_bytes()
            name = path.relative_to(folder).as_posix()
            found[name] = gzip.decompress(data) if path.suffix == ".gz" else data
    return found


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's sources with the packages of its lock file."""
    if NODE is None or NPM is None:
        pytest.skip("node or npm is not installed: the page is not built again")
    if (SOURCES / "node_modules").is_dir():
        return SOURCES
    copied = tmp_path_factory.mktemp("page") / "console"
    shutil.copytree(SOURCES, copied)
    try:
        subprocess.run(
            [NPM, "ci", "--ignore-scripts"],
            cwd=copied,
            check=True,
            capture_output=True,
            timeout=INSTALL_TIMEOUT_S,
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as failed:
        pytest.skip(f"npm cannot install the page's packages: {failed}")
    return copied


def test_assets_are_built_again_byte_by_byte(sources: Path, tmp_path: Path):
    out = tmp_path / "page"
    subprocess.run(
        [str(NODE), "build.mjs", str(out)],
        cwd=sources,
        check=True,
        capture_output=True,
        timeout=BUILD_TIMEOUT_S,
    )
    built, committed = contents(out), contents(BUILT)
    assert built.keys() == committed.keys()
    assert [name for name in built if built[name] != committed[name]] == []


def test_sources_have_the_types_that_they_say(sources: Path):
    checked = subprocess.run(
        [str(NODE), "node_modules/typescript/bin/tsc", "--noEmit"],
        cwd=sources,
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
    )
    assert checked.stdout == ""
    assert checked.returncode == 0


def compressed(suffix: str) -> dict[str, int]:
    """Bytes of the compressed forms, by the names of the assets."""
    found = (BUILT / "assets").glob(f"*{suffix}")
    return {path.name.removesuffix(suffix): path.stat().st_size for path in found}


def test_each_asset_has_its_compressed_forms(sources: Path):
    plain = [path for path in (BUILT / "assets").iterdir() if path.suffix not in (".gz", ".br")]
    names = {path.name for path in plain}
    assert names == compressed(".gz").keys() == compressed(".br").keys()
    subprocess.run(
        [str(NODE), "-e", UNPACK, *(f"{path}.br" for path in plain)],
        cwd=sources,
        check=True,
        capture_output=True,
        timeout=BUILD_TIMEOUT_S,
    )


def test_assets_are_small():
    assert sum(compressed(".br").values()) < MOST_BYTES
    gzipped = compressed(".gz")
    lazy = {name: size for name, size in gzipped.items() if name.startswith(LAZY)}
    assert len(lazy) == len(LAZY)
    assert sum(gzipped.values()) - min(lazy.values()) < MOST_BYTES


def test_the_page_names_its_own_assets_alone():
    page = (BUILT / "index.html").read_text(encoding="utf-8")
    named = re.findall(r'(?:src|href)="(?!data:)([^"]+)"', page)
    assert len(named) == 3
    for path in named:
        folder, _, name = path.rpartition("/")
        assert folder == "/console/assets"
        assert (BUILT / "assets" / name).is_file()


def test_the_page_has_no_inline_script_or_style():
    page = (BUILT / "index.html").read_text(encoding="utf-8")
    assert re.search(r"<script(?![^>]*\bsrc=)|<style|\bstyle=|\bon\w+=", page) is None


def test_no_source_makes_markup_of_text():
    makers = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(")
    found = [
        f"{path.name}: {makers.search(path.read_text(encoding='utf-8'))}"
        for path in (SOURCES / "src").rglob("*.ts*")
        if makers.search(path.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_no_source_is_longer_than_files_of_the_house():
    long = [
        path.name
        for path in (SOURCES / "src").rglob("*")
        if path.is_file() and len(path.read_text(encoding="utf-8").splitlines()) > 800
    ]
    assert long == []
