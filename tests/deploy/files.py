"""Where the files of deploy/ are, and how they are read.

Owns paths and the interpolation of compose.yaml's variables. Must not decide what is right.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parents[2]
DEPLOY: Final = ROOT / "deploy"
OPERATIONS: Final = ROOT / "docs" / "operations.md"

_VARIABLE = re.compile(r"\$\{(\w+)\}")


def yaml_of(path: Path) -> Any:
    """A YAML file with one document."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def compose_variables() -> dict[str, str]:
    """What deploy/compose/.env says."""
    lines = (DEPLOY / "compose" / ".env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def compose() -> Any:
    """compose.yaml with its variables, as docker compose reads it; KeyError for an unknown one."""
    variables = compose_variables()
    text = (DEPLOY / "compose" / "compose.yaml").read_text()
    return yaml.safe_load(_VARIABLE.sub(lambda match: variables[match[1]], text))
