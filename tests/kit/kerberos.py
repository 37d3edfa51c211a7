"""A separate Kerberos realm on loopback: Debian's KDC with its files in a temporary directory."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

import pytest

from moldau.local.layout import PortHolder
from tests.kit.waiting import until

REALM: Final = "MOLDAU.TEST"
HOST: Final = "localhost"
SERVICE: Final = f"kafka/{HOST}@{REALM}"
MODULE: Final = "com.sun.security.auth.module.Krb5LoginModule"
DEADLINE_S: Final = 60.0

_PATH: Final = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/lib/mit/sbin"))
_PROGRAMS: Final = ("krb5kdc", "kdb5_util", "kadmin.local", "kinit")


def missing() -> str:
    """Why there can be no realm here; empty when there can."""
    for program in _PROGRAMS:
        if shutil.which(program, path=_PATH) is None:
            return f"{program} is not installed (Debian: krb5-kdc, krb5-admin-server, krb5-user)"
    if importlib.util.find_spec("gssapi") is None:
        return "the package gssapi is not installed (make setup-all tries to, with libkrb5-dev)"
    return ""


class Realm:
    """A running KDC. Use as a context.

    Attributes:
        environment: what processes need to find the realm; there is no ticket in their cache.
        keytab: has the key of SERVICE.
        port: the KDC's.
        keytab: has the key of SERVICE.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self._holder = PortHolder("127.0.0.1")
        [self.port] = self._holder.take()
        self.config_path = home / "krb5.conf"
        self.environment: Mapping[str, str] = {
            "KRB5_CONFIG": str(self.config_path),
            "KRB5_KDC_PROFILE": str(home / "kdc.conf"),
            "KRB5RCACHEDIR": str(home),
            "KRB5CCNAME": f"FILE:{home / 'no-cache'}",
        }
        self.keytab = home / "kafka.keytab"
        self._process: subprocess.Popen[bytes] | None = None
        self._write()
        self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", "master")
        self.add(SERVICE, self.keytab)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._holder.close()

    def start(self) -> None:
        """Run the KDC until `stop`."""
        log = self.home / "kdc.log"
        log.write_text("")
        with (self.home / "kdc.out").open("wb") as output:
            self._process = subprocess.Popen(
                [self._program("krb5kdc"), "-n", "-r", REALM],
                env=self._child_environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        until(
            lambda: "commencing operation" in log.read_text(),
            what="the KDC answers",
            deadline_s=DEADLINE_S,
        )

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(DEADLINE_S)
            self._process = None

    def add(self, principal: str, keytab: Path | None = None, **options: str) -> None:
        """Make a principal, with its key in a keytab or a password that equals its name.

        Args:
            options: of kadmin's add_principal, as in maxlife="1 second".
        """
        extra = "".join(f' -{name} "{value}"' for name, value in options.items())
        key = "-randkey" if keytab is not None else f"-pw {principal.partition('@')[0]}"
        self._run("kadmin.local", "-r", REALM, "-q", f"add_principal{extra} {key} {principal}")
        if keytab is not None:
            self.export(principal, keytab)

    def change(self, command: str) -> None:
        """Run a command of kadmin."""
        self._run("kadmin.local", "-r", REALM, "-q", command)

    def export(self, principal: str, keytab: Path) -> None:
        """Put a principal's present key into a keytab, next to what is in there."""
        self.change(f"ktadd -norandkey -k {keytab} {principal}")

    def kinit(self, principal: str, cache: Path, *options: str) -> None:
        """Get a ticket with a password that equals the name, into a cache."""
        self._run("kinit", "-c", str(cache), *options, principal,
                  stdin=f"{principal.partition('@')[0]}\n")  # fmt: skip

    def jaas(self, principal: str, keytab: Path) -> str:
        """A login module with a keytab, as Java writes it."""
        return (
            f'{MODULE} required useKeyTab=true storeKey=true keyTab="{keytab}" '
            f'principal="{principal}";'
        )

    def config_with_kdc(self, port: int) -> Path:
        """Another krb5.conf, whose KDC is at that port."""
        path = self.home / f"krb5-{port}.conf"
        path.write_text(self.config_path.read_text().replace(f":{self.port}", f":{port}"))
        return path

    def _write(self) -> None:
        self.config_path.write_text(
            f"[libdefaults]\ndefault_realm = {REALM}\ndns_lookup_kdc = false\n"
            "dns_lookup_realm = false\ndns_canonicalize_hostname = false\nrdns = false\n"
            "udp_preference_limit = 1\n"
            f"[realms]\n{REALM} = {{\n kdc = 127.0.0.1:{self.port}\n}}\n"
            f"[domain_realm]\nlocalhost = {REALM}\n"
        )
        (self.home / "kdc.conf").write_text(
            f"[kdcdefaults]\nkdc_ports = {self.port}\nkdc_tcp_ports = {self.port}\n"
            f"[realms]\n{REALM} = {{\n database_name = {self.home / 'principals'}\n"
            f" key_stash_file = {self.home / 'stash'}\n acl_file = {self.home / 'acl'}\n"
            f" kdc_ports = {self.port}\n kdc_tcp_ports = {self.port}\n"
            f" kdc_listen = 127.0.0.1:{self.port}\n kdc_tcp_listen = 127.0.0.1:{self.port}\n"
            " max_renewable_life = 1d\n}\n"
            f"[logging]\nkdc = FILE:{self.home / 'kdc.log'}\n"
        )

    @staticmethod
    def _program(name: str) -> str:
        found = shutil.which(name, path=_PATH)
        assert found is not None, name
        return found

    def _child_environment(self) -> dict[str, str]:
        return {**os.environ, **self.environment}

    def _run(self, program: str, *arguments: str, stdin: str = "") -> None:
        done = subprocess.run(
            [self._program(program), *arguments],
            env=self._child_environment(),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, f"{program}: {done.stdout}\n{done.stderr}"


@contextmanager
def running_realm(home: Path) -> Iterator[Realm]:
    """A realm that this process and its children find; the test is skipped where there can be
    none.
    """
    reason = missing()
    if reason:
        pytest.skip(reason)
    with pytest.MonkeyPatch.context() as patch, Realm(home) as realm:
        for name, value in realm.environment.items():
            patch.setenv(name, value)
        yield realm
