"""How tests start a JVM with Apache Kafka's classes, for a life of seconds.

Owns what makes that cheap, kept in `.cache`: our few Java sources compiled, and the classes of a
Kafka server that has started once, as the JVM shares them (JEP 350). Whichever process asks first
makes it, the others wait. Must not: fail where the JVM shares no classes; each start takes longer
then.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

from tests.kit.ports import free_ports
from tests.kit.waiting import until

ROOT: Final = Path(__file__).parents[3]
CACHE: Final = (ROOT / ".cache").resolve()
JARS: Final = CACHE / "kafka-4.3.0"
JAVA: Final = shutil.which("java")
CLASS_PATH: Final = f"{JARS}/*"
SOURCES: Final = ("tests/interop/java/ToolServer.java", "tests/interop/java/ReplicationClient.java")
SHARED_CLASSES: Final = "classes.jsa"
COMPILED: Final = "compiled"
MAKE_DEADLINE_S: Final = 120.0
KEPT_S: Final = 7 * 86_400.0
CLUSTER_ID: Final = "AAAAAAAAAAAAAAAAAAAAAQ"

CONFIG: Final = """\
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
controller.listener.names=CONTROLLER
controller.quorum.bootstrap.servers=127.0.0.1:{controller_port}
log.dirs={home}/data
"""


def jvm_command(*arguments: str, heap_mib: int, options: Sequence[str] = ()) -> list[str]:
    """The command line of a JVM: a main class with its arguments, behind the JVM's own options."""
    kept = _kept_files()
    shared = kept / SHARED_CLASSES
    sharing = [f"-XX:SharedArchiveFile={shared}"] if shared.exists() else []
    return [*_plain_command(heap_mib), *sharing, *options,
            "-cp", f"{CLASS_PATH}:{kept / COMPILED}", *arguments]  # fmt: skip


def _plain_command(heap_mib: int) -> list[str]:
    assert JAVA is not None
    return [JAVA, "-Xshare:auto", "-XX:TieredStopAtLevel=1", f"-Xmx{heap_mib}m"]


@cache
def _kept_files() -> Path:
    """The directory of what is kept for this JVM, these jars and these sources."""
    assert JAVA is not None
    digest = hashlib.sha256(CLASS_PATH.encode())
    for path in (Path(JAVA).resolve(), *sorted(JARS.iterdir())):
        status = path.stat()
        digest.update(f"{path}:{status.st_size}:{status.st_mtime_ns}".encode())
    for source in (*SOURCES, "tests/interop/java/jvm.py"):
        digest.update((ROOT / source).read_bytes())
    kept = CACHE / f"kafka-jvm-{digest.hexdigest()[:16]}"
    with (CACHE / "kafka-jvm.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            for old in CACHE.glob("kafka-jvm-*/"):
                if time.time() - old.stat().st_mtime > KEPT_S:
                    shutil.rmtree(old, ignore_errors=True)
            home = Path(tempfile.mkdtemp(prefix="partial-kafka-jvm-", dir=CACHE))
            try:
                _compile(home / COMPILED)
                with contextlib.suppress(subprocess.SubprocessError, TimeoutError):
                    _share_classes(home)
                home.rename(kept)
            finally:
                shutil.rmtree(home, ignore_errors=True)
    return kept


def _compile(target: Path) -> None:
    compiler = [*_plain_command(256), "-m", "jdk.compiler/com.sun.tools.javac.Main"]
    jars = ":".join(str(jar) for jar in sorted(JARS.glob("*.jar")))  # it expands no asterisk
    sources = [str(ROOT / source) for source in SOURCES]
    subprocess.run(
        [*compiler, "-nowarn", "-cp", jars, "-d", str(target), *sources],
        check=True,
        timeout=MAKE_DEADLINE_S,
    )


def _share_classes(home: Path) -> None:
    """Start a server once, and have the JVM write down its classes when it ends."""
    port, controller_port = free_ports(2)
    properties = home / "server.properties"
    properties.write_text(CONFIG.format(port=port, controller_port=controller_port, home=home))
    format_ = ["kafka.tools.StorageTool", "format", "--standalone", "-t", CLUSTER_ID]
    with (home / "kafka.log").open("wb") as log:
        subprocess.run(
            [*_plain_command(256), "-cp", CLASS_PATH, *format_, "-c", str(properties)],
            check=True,
            stdout=log,
            stderr=log,
            timeout=MAKE_DEADLINE_S,
        )
        archive = f"-XX:ArchiveClassesAtExit={home / SHARED_CLASSES}"
        server = subprocess.Popen(
            [*_plain_command(384), archive, "-cp", CLASS_PATH, "kafka.Kafka", str(properties)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )

    def listens() -> bool:
        with socket.socket() as probe:
            return server.poll() is not None or probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        until(listens, what="Apache Kafka listens", deadline_s=MAKE_DEADLINE_S)
        server.terminate()
        server.wait(MAKE_DEADLINE_S)
    finally:
        server.kill()
        server.wait()
    shutil.rmtree(home / "data")


if __name__ == "__main__":  # `make setup-all`: no test has to wait for it
    if JAVA is not None and JARS.exists():
        _kept_files()
