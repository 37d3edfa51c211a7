"""Runs tests/spark with older PySparks than the one in `.venv`: `make spark-matrix`.

Owns: `.cache/pyspark-VERSION`, one PySpark each, put in front of the installed one by PYTHONPATH.
Must not: change `.venv`. Invariant: the exit status is 0 only when every version passed.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"
VERSIONS = ("4.1", "4.2")


def main():
    """Every version after the other; those of the command line, or all.

    `--fetch VERSION` only fetches one, and prints where it is.
    """
    if sys.argv[1:2] == ["--fetch"]:
        home = fetch(sys.argv[2])
        print(home or "")
        return 0 if home else 1
    failed = []
    for version in sys.argv[1:] or VERSIONS:
        home = fetch(version)
        if home is None or not passes(version, home):
            failed.append(version)
    for version in failed:
        print("spark-matrix: PySpark " + version + " FAILED", flush=True)
    return 1 if failed else 0


def fetch(version):
    """The newest PySpark of a release line, in its own directory; None when there is none."""
    home = CACHE / ("pyspark-" + version)
    if (home / "pyspark").is_dir():
        return home
    partial = CACHE / ("pyspark-" + version + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    command += ["--target", str(partial), "pyspark==" + version + ".*"]
    if subprocess.call(command, stdout=sys.stderr) != 0:
        shutil.rmtree(partial, ignore_errors=True)
        return None
    partial.rename(home)
    return home


def passes(version, home):
    """Whether the tests pass; they must have run with this version and no other."""
    environment = dict(os.environ, PYTHONPATH=str(home))
    environment.pop("SPARK_HOME", None)
    asked = [sys.executable, "-c", "import pyspark; print(pyspark.__version__)"]
    found = subprocess.run(asked, env=environment, capture_output=True, text=True, check=True)
    found = found.stdout.strip()
    print("spark-matrix: PySpark " + found, flush=True)
    if not found.startswith(version + "."):
        return False
    command = [sys.executable, "-m", "pytest", "tests/spark"]
    return subprocess.call(command, cwd=str(ROOT), env=environment) == 0


if __name__ == "__main__":
    sys.exit(main())
