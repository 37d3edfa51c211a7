"""Installs dist/ into clean environments, measures that, and tries each (`make try-dist`).

    python tools/try_distributions.py [PYTHON…]

For this interpreter and every PYTHON: the wheel where it fits, else the source distribution; for
this one also the source distribution with a compiler that always fails. Prints packages, MB and
seconds. Owns build/environments.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
ENVIRONMENTS: Final = ROOT / "build" / "environments"
BROUGHT_BY_VENV: Final = {"pip", "setuptools"}
THEIR_PLACES: Final = {*BROUGHT_BY_VENV, "pkg_resources", "_distutils_hack"}


def newest(pattern: str) -> Path | None:
    """The one file of dist/ that a pattern names."""
    return next(iter(sorted((ROOT / "dist").glob(pattern), reverse=True)), None)


def try_it(python: str, what: Path, name: str, *, has_compiler: bool) -> bool:
    """One environment; whether everything worked."""
    home = ENVIRONMENTS / name
    shutil.rmtree(home, ignore_errors=True)
    subprocess.run([python, "-m", "venv", str(home)], check=True)
    own = str(home / "bin" / "python")
    environment = dict(os.environ)
    environment.pop("PYTHONPATH", None)
    if not has_compiler:
        environment["CC"] = "/bin/false"
    pip = [own, "-m", "pip", "--disable-pip-version-check"]
    print(f"== {name}: {what.name}", flush=True)
    began = time.monotonic()
    installed = subprocess.run([*pip, "install", "-q", str(what)], env=environment, check=False)
    if installed.returncode != 0:
        return False
    seconds = time.monotonic() - began
    listed = subprocess.run(
        [*pip, "list", "--format", "json"], env=environment, capture_output=True, check=True
    )
    names = {each["name"] for each in json.loads(listed.stdout)} - BROUGHT_BY_VENV
    size = sum(
        path.stat().st_size
        for place in (home / "lib").glob("*/site-packages/*")
        if place.name.partition("-")[0] not in THEIR_PLACES
        for path in ([place] if place.is_file() else place.rglob("*"))
        if path.is_file()
    )
    print(f"   {len(names)} packages, {size / 1e6:.1f} MB, {seconds:.1f} s: {sorted(names)}")
    script = [own, str(ROOT / "tools" / "try_installation.py")]
    tried = subprocess.run(
        [*script, *(["--native"] if has_compiler else [])], env=environment, check=False
    )
    return tried.returncode == 0


def main() -> int:
    source = newest("moldau-*.tar.gz")
    if source is None:
        print("try: dist/ is empty; `make dist` fills it", file=sys.stderr)
        return 2
    results = {}
    for python in [sys.executable, *sys.argv[1:]]:
        tag = subprocess.run(
            [python, "-c", "import sys; print('cp%d%d' % sys.version_info[:2])"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        what = newest(f"moldau-*-{tag}-*.whl") or source
        results[tag] = try_it(python, what, tag, has_compiler=True)
    results["no compiler"] = try_it(sys.executable, source, "no-compiler", has_compiler=False)
    for name, works in results.items():
        print(f"{name}: {'works' if works else 'FAILED'}")
    return 0 if all(results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
