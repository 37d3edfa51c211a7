"""The files of profiles: named sets of client properties, one of which commands use.

Owns `profiles/NAME.properties` in the configuration directory, readable by their owner alone, and
`profile` beside it, which names the one in use. Must not know a property. Invariant: a file is
replaced as a whole or not at all.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

from moldau.cli.output import fail, file_errors, refusing
from moldau.config import ConfigError, read_properties_file
from moldau.text import did_you_mean

NO_PROFILE: Final = "none"
ENVIRONMENT: Final = "MOLDAU_PROFILE"
HOME_ENVIRONMENT: Final = "MOLDAU_CONFIG_HOME"


class Profile(NamedTuple):
    """A profile that commands use: its name, and its properties."""

    name: str
    properties: dict[str, str]


def chosen_profile(named: str | None) -> Profile | None:
    """The profile of `--profile`, else of the environment, else the one in use. Exits with status 2
    when there is no such profile, or its file cannot be read.
    """
    name = named if named is not None else os.environ.get(ENVIRONMENT)
    if name is None:
        name = profile_in_use()
    if name in (None, "", NO_PROFILE):
        return None
    return Profile(name, read_profile(name))


def profile_names() -> list[str]:
    """All profiles, sorted."""
    try:
        found = sorted(each.stem for each in _profiles().glob("*.properties"))
    except OSError:
        return []
    return found


def configuration_home() -> Path:
    given = os.environ.get(HOME_ENVIRONMENT)
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "moldau"


def _profiles() -> Path:
    return configuration_home() / "profiles"


def profile_path(name: str) -> Path:
    return _profiles() / f"{name}.properties"


def profile_in_use() -> str | None:
    try:
        return (configuration_home() / "profile").read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def read_profile(name: str) -> dict[str, str]:
    known = profile_names()
    if name not in known:
        hint = did_you_mean(name, known, f"; there are {', '.join(known) or 'none'}")
        fail(f"there is no profile {name!r}{hint} (`moldau profile create`)", status=2)
    with refusing(ConfigError, of=f"profile {name}"):
        return read_properties_file(str(profile_path(name)))


def use_profile(name: str | None) -> None:
    """Have commands use that one from now on."""
    replace_file(configuration_home() / "profile", f"{name}\n" if name else "")


def replace_file(path: Path, text: str) -> None:
    """Replace a file. Exits with status 1 when the system refuses."""
    from moldau.runtime import private_files

    with file_errors(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        private_files.replace_file(path, text.encode())
