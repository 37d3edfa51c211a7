"""An index for pip of the packages that are installed here, as files.

Owns: packing an installed distribution into a wheel again, by its RECORD. Must not: fetch anything,
or offer this project itself. Invariant: pip can install from the index what it has installed here,
for a Python of the same version on the same system.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

OURS = "moldau"
_WRITTEN_BY_PIP = ("INSTALLER", "REQUESTED", "RECORD", "direct_url.json")


def write_index(directory: Path, requirements: Iterable[str]) -> int:
    """Write the index (PEP 503) into a directory; how many packages it has.

    Args:
        directory: is made.
        requirements: as `pip install` takes them; what they require comes too. What is not
            installed here is not in the index.
    """
    found: dict[str, Distribution] = {}
    _collect([*map(Requirement, requirements)], found)
    for name, each in found.items():
        place = directory / name
        place.mkdir(parents=True)
        wheel = _wheel(each, place)
        (place / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>\n')
    return len(found)


def _collect(requirements: list[Requirement], found: dict[str, Distribution]) -> None:
    for each in requirements:
        name = _normal(each.name)
        try:
            installed = distribution(each.name)
        except PackageNotFoundError:
            continue
        if name != OURS:
            found[name] = installed
        for extra in ("", *each.extras):
            needed = [Requirement(text) for text in installed.requires or ()]
            _collect([one for one in needed if _is_new(one, extra, found)], found)


def _is_new(requirement: Requirement, extra: str, found: dict[str, Distribution]) -> bool:
    """It is required here, with that extra, and has not been looked at."""
    if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
        return False
    return bool(requirement.extras) or _normal(requirement.name) not in found


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _wheel(installed: Distribution, place: Path) -> Path:
    name = _normal(installed.metadata["Name"]).replace("-", "_")
    stem = f"{name}-{installed.version}"
    path = place / f"{stem}-{_tags(installed.read_text('WHEEL') or '')}.whl"
    generated = {each.name for each in installed.entry_points}
    with zipfile.ZipFile(path, "w") as archive:
        names = []
        for file in installed.files or ():
            if "__pycache__" in file.parts or file.name in _WRITTEN_BY_PIP:
                continue
            inside = file.as_posix()
            if file.parts[0] == "..":
                if file.name in generated or "bin" not in file.parts:
                    continue
                inside = f"{stem}.data/scripts/{file.name}"
            elif file.parts[0].endswith(".dist-info"):
                inside = "/".join((f"{stem}.dist-info", *file.parts[1:]))
            archive.write(str(file.locate()), inside)
            names.append(inside)
        rows = "".join(f"{each},,\n" for each in [*names, f"{stem}.dist-info/RECORD"])
        archive.writestr(f"{stem}.dist-info/RECORD", rows)
    return path


def _tags(wheel: str) -> str:
    """Which Pythons, interfaces and systems it is for, as a file's name has them."""
    tags = [text.split("-") for text in re.findall(r"^Tag: (\S+)$", wheel, re.MULTILINE)]
    return "-".join(".".join(dict.fromkeys(part)) for part in zip(*tags, strict=True))
