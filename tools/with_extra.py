"""Runs Python with the packages of one extra beside those that are installed.

    python tools/with_extra.py docs -m mkdocs build

Owns build/tools/EXTRA, where `pip install --target` puts the packages, once for as long as the
extra's list and the interpreter stay the same. What only a release or the site needs stays out of
.venv this way. Must not install the project itself.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
STAMP: Final = ".current"


def packages_of(extra: str) -> Path:
    """The directory with the extra's packages, filled when it is not current.

    Raises:
        KeyError: there is no such extra.
        subprocess.CalledProcessError: pip could not install them, and has said why.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    requirements = project["optional-dependencies"][extra]
    wanted = "\n".join([sys.version, *requirements])
    target = ROOT / "build" / "tools" / extra
    stamp = target / STAMP
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return target
    shutil.rmtree(target, ignore_errors=True)
    print(f"installing {', '.join(requirements)} into {target.relative_to(ROOT)}", flush=True)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "--target", str(target), *requirements], check=True)
    stamp.write_text(wanted, encoding="utf-8")
    return target


def main() -> int:
    if len(sys.argv) < 3:
        print("usage: with_extra.py EXTRA ARGUMENTS-OF-PYTHON…", file=sys.stderr)
        return 2
    extra, *arguments = sys.argv[1:]
    try:
        target = packages_of(extra)
    except KeyError:
        print(f"pyproject.toml has no extra {extra}", file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as error:
        return error.returncode
    environment = dict(os.environ)
    for name, path in (("PYTHONPATH", target), ("PATH", target / "bin")):
        environment[name] = os.pathsep.join(filter(None, [str(path), environment.get(name)]))
    return subprocess.run([sys.executable, *arguments], env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
