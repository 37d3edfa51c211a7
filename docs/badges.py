"""The badges of README.md, as pictures in docs/badges: what the project's own files say.

Owns their texts and drawing; asks no service, and claims nothing that no file here shows.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from moldau.metadata.features import LATEST_METADATA_LEVEL, METADATA_RELEASES

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = ROOT / "docs" / "badges"
HEIGHT: Final = 20
LETTER: Final = 6.6
"""So wide is a letter of 11 pixels, about; `textLength` makes it exact."""
PADDING: Final = 6
BLUE, GREEN, AMBER = "#2563a8", "#2e7d32", "#9a6700"


def badges() -> Iterator[tuple[str, str, str, str]]:
    """Name, left text, right text, colour."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        configured = tomllib.load(file)
    project = configured["project"]
    yield "status", "status", _classified(project, "Development Status")[0].lower(), AMBER
    pythons = [each for each in _classified(project, "Programming Language") if "." in each]
    yield "python", "Python", " | ".join(pythons), BLUE
    yield "kafka", "Apache Kafka", METADATA_RELEASES[LATEST_METADATA_LEVEL].split("-")[0], BLUE
    if configured["tool"]["mypy"]["strict"]:
        yield "types", "types", "mypy strict", GREEN
    yield "licence", "licence", project["license"], GREEN


def _classified(project: dict[str, Any], kind: str) -> list[str]:
    """The ends of the classifiers of a kind, without a number before them."""
    prefix = f"{kind} :: "
    found = [each for each in project["classifiers"] if each.startswith(prefix)]
    return [each.rpartition(" :: ")[2].rpartition(" - ")[2] for each in found]


def pictures() -> dict[Path, str]:
    """What stands in docs/badges."""
    return {FOLDER / f"{name}.svg": _drawn(*texts) for name, *texts in badges()}


def row() -> str:
    """The line of README.md."""
    return " ".join(
        f"![{left}: {right.replace(' | ', ', ')}](docs/badges/{name}.svg)"
        for name, left, right, _ in badges()
    )


def _drawn(left: str, right: str, colour: str) -> str:
    widths = [round(len(text) * LETTER) + 2 * PADDING for text in (left, right)]
    texts = "".join(
        f'<text x="{x}" y="14" textLength="{width - 2 * PADDING}">{text}</text>'
        for text, x, width in ((left, PADDING, widths[0]), (right, widths[0] + PADDING, widths[1]))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{sum(widths)}" height="{HEIGHT}" '
        f'role="img" aria-label="{left}: {right}">\n'
        f'<rect width="{sum(widths)}" height="{HEIGHT}" rx="3" fill="#444"/>\n'
        f'<path d="M{widths[0]} 0h{widths[1] - 3}a3 3 0 0 1 3 3v14a3 3 0 0 1-3 3H{widths[0]}z" '
        f'fill="{colour}"/>\n'
        f'<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">{texts}</g>\n'
        "</svg>\n"
    )


def write() -> None:
    """Write the pictures, and remove others."""
    FOLDER.mkdir(exist_ok=True)
    made = pictures()
    for path in FOLDER.glob("*.svg"):
        if path not in made:
            path.unlink()
    for path, text in made.items():
        path.write_text(text, encoding="utf-8")
