"""Makes a fresh machine ready: a virtual environment, and optional tools that are easy to get.

    python3 .ci/bootstrap.py lean [VENV]    what the gate needs
    python3 .ci/bootstrap.py all [VENV]     Spark, Java, the demos' data and others' tools as well
    python3 .ci/bootstrap.py helm

Owns: `.venv` (or VENV), `.cache`, the stamps that show whether they are current. Standard library
only. Must not: fail because an optional tool is missing; it says so in one line instead.
Invariants: a second run with unchanged inputs does nothing, whatever the files' times are; an
environment that has everything keeps everything.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / (sys.argv[2] if len(sys.argv) > 2 else ".venv")
VENV_PYTHON = VENV / "bin" / "python"
CACHE = ROOT / ".cache"
KAFKA_VERSION = "4.3.0"
APICURIO_VERSION = "2.6.13.Final"
HELM_VERSION = "3.18.4"
KAFKAJS_VERSION = "2.2.4"
SPARK_KAFKA_VERSION = "4.1.1"
MINIMUM = (3, 11)
IS_NEW_ENOUGH = "import sys; sys.exit(sys.version_info < %r)" % (MINIMUM,)  # noqa: UP031
LEAN, ALL = "lean", "all"
EXTRAS = {LEAN: "dev", ALL: "dev-all"}
STAMPS = {LEAN: VENV / ".moldau-stamp-lean", ALL: VENV / ".moldau-stamp"}
OPTIONAL_TOOL_TIMEOUT_SECONDS = 300


def main():
    """Does what the command line asks for; returns the exit code."""
    if sys.version_info < MINIMUM:
        return run_with_newer_python()
    asked = sys.argv[1] if len(sys.argv) > 1 else LEAN
    if asked == "helm":
        fetch_helm()
        return 0
    if asked not in EXTRAS:
        say("it takes lean, all or helm, not " + asked)
        return 2
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "setup.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of make -j, and of a second terminal
        return bring_up_to_date(asked)


def bring_up_to_date(asked):
    """Installs what is asked for, or everything where everything was; returns the exit code."""
    digest = input_digest()
    if VENV_PYTHON.exists() and (is_current(ALL, digest) or is_current(asked, digest)):
        return 0
    if STAMPS[ALL].exists():
        asked = ALL
    began = time.monotonic()
    announce(asked)
    if not has_pip() and not create_venv():
        say("cannot create " + VENV.name + ": install your system's python3-venv package, or uv")
        return 1
    if not install(EXTRAS[asked]):
        say("installation failed; the lines above say why")
        return 1
    report_native_codec()
    if asked == ALL:
        fetch_tools()
    STAMPS[asked].write_text(digest + "\n")
    size = "%d MB in %s" % (megabytes(VENV), VENV.name)  # noqa: UP031 - parsed by old versions too
    say("ready after %d seconds, %s" % (time.monotonic() - began, size))  # noqa: UP031
    return 0


def is_current(kind, digest):
    """Whether the environment was made, as lean or with everything, of the same inputs."""
    return STAMPS[kind].exists() and STAMPS[kind].read_text().strip() == digest


def announce(kind):
    """What will be done, and how long it takes."""
    if kind == LEAN:
        say("the packages of the gate into " + VENV.name + ": 400 MB, one to three minutes")
        say("without Spark, Java, the demos' data and others' tools, which are in make setup-all")
    else:
        say("everything into " + VENV.name + ": 1,950 MB, two to five minutes, and then others'")
        say("tools into .cache: kcat, Chromium, Kerberos, Kafka's own, kafkajs, where the machine")
        say("has what gets them (apt, a C compiler, Maven, npm): 750 MB, one to ten minutes")


def megabytes(directory):
    """What the files below a directory take."""
    found = (path.lstat() for path in directory.rglob("*") if not path.is_dir())
    return sum(each.st_blocks for each in found) * 512 // 1_000_000


def fetch_tools():
    """Gets what tests compare with, one after the other; what is missing is said in one line."""
    install_kerberos()
    fetch_from_debian("kcat", "its interop tests")
    fetch_from_debian("chromium", "tests that look at the console's page")
    fetch_jars(
        "Apache Kafka " + KAFKA_VERSION + "'s tools",
        ROOT / "tests" / "interop" / "java" / "pom.xml",
        CACHE / ("kafka-" + KAFKA_VERSION),
        "kafka-tools-*.jar",
        "interop tests with Apache Kafka's tools",
    )
    quiet([str(VENV_PYTHON), "-m", "tests.interop.java.jvm"])
    fetch_artifact(
        "Apicurio Registry " + APICURIO_VERSION,
        "io.apicurio:apicurio-registry-app:" + APICURIO_VERSION + ":tar.gz:all",
        CACHE / ("apicurio-" + APICURIO_VERSION),
        "interop tests with a schema registry",
    )
    fetch_jars(
        "Spark's own Kafka source",
        ROOT / "tests" / "spark" / "java" / "pom.xml",
        CACHE / ("spark-kafka-" + SPARK_KAFKA_VERSION),
        "spark-sql-kafka-*.jar",
        "comparisons with Spark's own Kafka source",
    )
    fetch_kafkajs()
    fetch_page_packages()


def say(text):
    """One line for the terminal."""
    print("setup: " + text, flush=True)


def run_with_newer_python():
    """Starts over with a newer interpreter, when there is one."""
    for minor in range(20, MINIMUM[1] - 1, -1):
        found = shutil.which("python3.%d" % minor)  # noqa: UP031 - parsed by old versions too
        if found and quiet([found, "-c", IS_NEW_ENOUGH]):  # pyenv has names that do not start
            return subprocess.call([found, str(Path(__file__).resolve()), *sys.argv[1:]])
    say("Python %d.%d or newer is needed, this is %s" % (MINIMUM + (sys.version.split()[0],)))  # noqa: UP031, RUF005
    say("an interpreter that is not in PATH: make setup PYTHON=/opt/python/bin/python3.12")
    return 1


def input_digest():
    """What the installation depends on: the project files, native sources, and the interpreter."""
    digest = hashlib.sha256(sys.version.encode())
    inputs = [ROOT / "pyproject.toml", ROOT / "setup.py", Path(__file__).resolve()]
    inputs += sorted((ROOT / "moldau").rglob("*.pyx"))
    inputs += [ROOT / "tests" / tests / "java" / "pom.xml" for tests in ("interop", "spark")]
    for path in inputs:
        if path.exists():
            digest.update(path.read_bytes())
    return digest.hexdigest()


def has_pip():
    """Whether the environment was made to its end: Ctrl-C leaves an interpreter without pip."""
    return VENV_PYTHON.exists() and quiet([str(VENV_PYTHON), "-m", "pip", "--version"])


def create_venv():
    """Tries the venv module, then virtualenv put beside it by pip, then uv."""
    say("creating " + VENV.name + " with Python " + sys.version.split()[0])
    if quiet([sys.executable, "-m", "venv", str(VENV)]):
        return True
    shutil.rmtree(VENV, ignore_errors=True)
    target = CACHE / "virtualenv"
    if quiet([sys.executable, "-m", "pip", "install", "-q", "--target", str(target), "virtualenv"]):
        environment = dict(os.environ, PYTHONPATH=str(target))
        if quiet([sys.executable, "-m", "virtualenv", str(VENV)], environment):
            return True
        shutil.rmtree(VENV, ignore_errors=True)
    uv = shutil.which("uv")
    if uv:
        return quiet([uv, "venv", "--seed", "--python", sys.executable, str(VENV)])
    return False


def install(extra):
    """Installs the project in editable form with an extra of its development."""
    say("installing moldau[" + extra + "] from the package registry")
    command = [str(VENV_PYTHON), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    # By a plain path: an import hook instead would cost each of the tests' Python processes 20 ms.
    command += ["--config-settings", "editable_mode=compat"]
    return subprocess.call([*command, "-e", ".[" + extra + "]"], cwd=str(ROOT)) == 0


def report_native_codec():
    """Says loudly when the record codec runs in plain Python."""
    if not quiet([str(VENV_PYTHON), "-c", "import moldau.protocol.records._native"]):
        say("WARNING: NO NATIVE RECORD CODEC (no C compiler?), plain Python is slower")


def install_kerberos():
    """Compiles the package behind SASL GSSAPI, where the headers of Kerberos are."""
    if quiet([str(VENV_PYTHON), "-c", "import gssapi"]):
        return
    without = ": Kerberos is not tested here"
    if not shutil.which("krb5-config"):
        say("no krb5-config here (Debian: libkrb5-dev)" + without)
        return
    import tomllib  # newer than the oldest Python that reads this file

    say("compiling gssapi for Kerberos (a minute or two)")
    command = [str(VENV_PYTHON), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    # Without optimization: it takes a third of the time, and the work is the library's.
    environment = dict(os.environ, CFLAGS="-O0 -g0")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    if not quiet([*command, *project["optional-dependencies"]["gssapi"]], environment):
        say("gssapi could not be compiled" + without)


def fetch_from_debian(package, without):
    """Gets a command of Debian's that tests use, when that takes no more than asking."""
    if shutil.which(package):
        return
    apt_get = shutil.which("apt-get")
    if apt_get and hasattr(os, "geteuid") and os.geteuid() == 0:
        environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
        quiet([apt_get, "update", "-q"], environment)
        if quiet([apt_get, "install", "-y", "-q", "--no-install-recommends", package], environment):
            return
    say("no " + package + " here: " + without + " will be skipped")


def fetch_jars(what, pom, jars, wanted, without):
    """Gets jars that tests compare with into `.cache`, when Java and Maven are installed."""
    if not list(jars.glob(wanted)):
        fetch(what, ["-f", str(pom), "dependency:copy-dependencies"], jars, without)


def fetch_artifact(what, artifact, target, without):
    """As `fetch_jars`, of one file without what it depends on."""
    if not target.exists():
        copy = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"
        fetch(what, [copy, "-Dartifact=" + artifact], target, without)


def fetch(what, arguments, jars, without):
    """Has Maven put files into a folder, which exists when all of them do."""
    maven = shutil.which("mvn")
    if not maven or not shutil.which("java"):
        say("no Java and Maven here: " + without + " will be skipped")
        return
    say("fetching " + what + " with Maven")
    partial = jars.with_name(jars.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    if quiet([maven, "-q", "-B", *arguments, "-DoutputDirectory=" + str(partial)]):
        shutil.rmtree(jars, ignore_errors=True)
        partial.rename(jars)
    else:
        shutil.rmtree(partial, ignore_errors=True)
        say("Maven could not fetch them: " + without + " will be skipped")


def fetch_kafkajs():
    """Gets the client kafkajs for the interop tests, where Node and npm are."""
    target = CACHE / ("kafkajs-" + KAFKAJS_VERSION)
    npm = shutil.which("npm")
    if target.exists() or (npm and shutil.which("node") and install_kafkajs(npm, target)):
        return
    say("no kafkajs here (Node and npm get it): its interop tests will be skipped")


def install_kafkajs(npm, target):
    """Into a folder that exists when all of it does; whether npm could do it."""
    partial = target.with_name(target.name + ".partial")
    shutil.rmtree(str(partial), ignore_errors=True)
    command = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix"]
    if not quiet([*command, str(partial), "kafkajs@" + KAFKAJS_VERSION]):
        shutil.rmtree(str(partial), ignore_errors=True)
        return False
    partial.rename(target)
    return True


def fetch_page_packages():
    """Gets what the console's page is built and checked with, where Node and npm are."""
    there = ROOT / "console" / "node_modules" / ".package-lock.json"
    lock = ROOT / "console" / "package-lock.json"
    if there.exists() and there.stat().st_mtime >= lock.stat().st_mtime:
        return
    npm = shutil.which("npm")
    command = [npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix"]
    if not (npm and shutil.which("node") and quiet([*command, str(ROOT / "console")])):
        say("no packages of the console's page (Node and npm get them): it is not checked by axe")


def fetch_helm():
    """Builds helm from its Go module into `.cache`, where Go is: it renders the chart in tests."""
    target = CACHE / "helm"
    if shutil.which("helm") or target.exists():
        return
    go = shutil.which("go")
    if not go:
        say("no helm and no Go here: tests of the chart with helm will be skipped")
        return
    say("building helm " + HELM_VERSION + " with Go")
    partial = CACHE / "helm.partial"
    shutil.rmtree(str(partial), ignore_errors=True)
    environment = dict(os.environ, GOBIN=str(partial))
    if quiet([go, "install", "helm.sh/helm/v3/cmd/helm@v" + HELM_VERSION], environment):
        partial.rename(target)
    else:
        shutil.rmtree(str(partial), ignore_errors=True)
        say("Go could not build it: tests of the chart with helm will be skipped")


def quiet(command, environment=None):
    """Runs a command without its output; whether it succeeded in time."""
    try:
        finished = subprocess.run(
            command,
            cwd=str(ROOT),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=OPTIONAL_TOOL_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return finished.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
