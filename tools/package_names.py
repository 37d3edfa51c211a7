"""Writes what type checkers read of packages whose names are imported at first use (`make fmt`).

Owns the `__init__.pyi` of these packages. Invariant: the result depends on the tables in their
`__init__.py` alone; tests/tidy checks that the files are current.
"""

from __future__ import annotations

import ast
from pathlib import Path

from moldau.first_use import at_first_use, modules_of

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("moldau/client", "moldau/client/sync", "moldau/schema_registry")

HEAD = '"""Written by tools/package_names.py (`make fmt`): do not edit."""\n\n'
LINE = "from {module} import {name} as {name}\n"
LONG_LINE = "from {module} import (\n    {name} as {name},\n)\n"
LINE_LENGTH = 100


def render(package: str) -> str:
    """The text of the package's `__init__.pyi`."""
    tree = ast.parse((ROOT / package / "__init__.py").read_text(encoding="utf-8"))
    (table,) = (
        ast.literal_eval(call.args[1])
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and ast.unparse(call.func) == at_first_use.__name__
    )
    lines = []
    for name, module in modules_of(table).items():
        line = LINE.format(module=module, name=name)
        fits = len(line) <= LINE_LENGTH + 1
        lines.append(line if fits else LONG_LINE.format(module=module, name=name))
    return HEAD + "".join(lines)


FILES = {ROOT / package / "__init__.pyi": render(package) for package in PACKAGES}

if __name__ == "__main__":
    for path, text in FILES.items():
        path.write_text(text, encoding="utf-8")
