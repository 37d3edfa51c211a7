"""Where the files of deploy/ are, and how they are read.

Owns paths, schemas, and the variables of compose.yaml. Must not decide what is right.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

import jsonschema
import yaml

ROOT: Final = Path(__file__).resolve().parents[2]
DEPLOY: Final = ROOT / "deploy"
OPERATIONS: Final = ROOT / "docs" / "operations.md"
SECURITY: Final = ROOT / "docs" / "security.md"
SCHEMAS: Final = Path(__file__).parent / "schemas"

_VARIABLE = re.compile(r"\$\{(\w+)\}")


def yaml_of(path: Path) -> Any:
    """A YAML file with one document."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def compose_variables() -> dict[str, str]:
    """What deploy/compose/.env says."""
    lines = (DEPLOY / "compose" / ".env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def compose(name: str = "compose.yaml") -> Any:
    """A compose file with its variables filled in. Raises: KeyError: there is no such variable."""
    variables = compose_variables()
    text = (DEPLOY / "compose" / name).read_text()
    return yaml.safe_load(_VARIABLE.sub(lambda match: variables[match[1]], text))


def problems_of(document: Any, schema_name: str, part: str | None = None) -> list[str]:
    """What a schema of `schemas/` (or one definition in it) has against a document."""
    schema = json.loads((SCHEMAS / schema_name).read_text(encoding="utf-8"))
    if part is not None:
        schema = {**schema, "$ref": f"#/definitions/{part}"}
    found = jsonschema.Draft7Validator(schema).iter_errors(document)
    return [f"{each.json_path}: {each.message}" for each in found]
