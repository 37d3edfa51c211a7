"""What MkDocs does besides reading docs/ (mkdocs.yml): what stands elsewhere in the repository.

Owns the pages below `outside/`, which are the Markdown files that stand elsewhere, and where links
lead: to a page of the site, or, when the target is no page, to its name alone. Invariant: the
documents keep the links that work in the repository.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parent.parent
OUTSIDE: Final = (
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "README.md",
    "SECURITY.md",
    "deploy/README.md",
    "examples/README.md",
)
PREFIX: Final = "outside/"
_LINK: Final = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]+)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """A directory in the navigation (`adr/`) stands for its pages."""
    if config.nav is not None:
        config.nav = [_expanded(item) for item in config.nav]
    return config


def _expanded(item: object) -> object:
    if isinstance(item, list):
        return [_expanded(each) for each in item]
    if isinstance(item, dict):
        return {title: _expanded(each) for title, each in item.items()}
    if isinstance(item, str) and item.endswith("/"):
        pages = sorted((ROOT / "docs" / item).glob("*.md"))
        return [item + page.name for page in pages]
    return item


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that stand outside docs/."""
    from mkdocs.structure.files import File

    for name in OUTSIDE:
        files.append(File.generated(config, PREFIX + name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links lead to where their targets are in the site."""
    own = page.file.src_uri
    return _LINK.sub(lambda link: _in_site(own, link), markdown)


def _in_site(own: str, link: re.Match[str]) -> str:
    image, text, target, anchor = link.groups()
    standing = own.removeprefix(PREFIX) if own.startswith(PREFIX) else f"docs/{own}"
    path = posixpath.normpath(posixpath.join(posixpath.dirname(standing), target))
    if path.startswith("docs/") and not (ROOT / path).is_dir():
        page = path.removeprefix("docs/")
    elif path in OUTSIDE:
        page = PREFIX + path
    else:
        return text if text.startswith("`") else f"`{text}`"
    there = posixpath.relpath(page, posixpath.dirname(own) or ".")
    return f"{image}[{text}]({there}{anchor or ''})"
