"""Packages whose names are imported when they are first used (PEP 562).

`import moldau.client` costs next to nothing this way, and `moldau topics list` does not pay for the
producer. Type checkers read the same names where `X as X` says that a name is exported: in the
package's `__init__.pyi`, which a script writes from its table, or in an `if TYPE_CHECKING:` block.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module


def at_first_use(
    package: dict[str, object], names: str, *, needs: Mapping[str, str] | None = None
) -> None:
    """Let a package import its names when they are first asked for.

    Args:
        package: the package's `globals()`.
        names: "module: name name … module: name …", with the modules as below `moldau`.
        needs: packages that come with an extra of this one, by their names.
    """
    modules = modules_of(names)

    def imported(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package['__name__']!r} has no attribute {name!r}")
        try:
            module = import_module(modules[name])
        except ModuleNotFoundError as error:
            extra = (needs or {}).get(error.name or "")
            if extra is None:
                raise
            text = f"{name} needs {error.name}: pip install 'moldau[{extra}]'"
            raise ModuleNotFoundError(text, name=error.name) from None
        value = package[name] = getattr(module, name)
        return value

    package.setdefault("__all__", [*modules])
    package["__getattr__"] = imported
    package["__dir__"] = lambda: sorted({*package, *modules})


def modules_of(names: str) -> dict[str, str]:
    """The module of each name of a package's table."""
    modules: dict[str, str] = {}
    module = ""
    for word in names.split():
        if word.endswith(":"):
            module = f"moldau.{word[:-1]}"
        else:
            modules[word] = module
    return modules
