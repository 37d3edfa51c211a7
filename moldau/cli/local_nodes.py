"""Nodes on this machine: `moldau server start`, `moldau quorum bootstrap`, `moldau dev`.

Owns the commands, their supervision, and the defaults that make a development cluster convenient
instead of durable. Must not know what nodes do. A single node takes this process over (`exec`, with
the same process id and signals): the command line's libraries would cost a serving node memory.
Invariants: a directory that holds anything is left as it is; a cluster is made only when its ports
are free, and what a failure leaves of it is removed.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from moldau.cli.client_settings import key_values
from moldau.cli.nearby import nearby
from moldau.cli.output import fail, file_errors, refusing, say, warn
from moldau.cli.parameters import Within
from moldau.config.listeners import host_and_port
from moldau.local.layout import (
    FIRST_BROKER_ID,
    HIGHEST_PORT,
    MOST_BROKERS,
    MOST_CONTROLLERS,
    QUICK_GROUPS,
    ClusterLayout,
    NextPort,
    NodeSpec,
    NoFreePort,
    PortHolder,
    PortInUse,
    counting_from,
    replication_properties,
    serves_http,
)
from moldau.local.secure_files import LOOPBACK, LayoutError, SecureFiles

server_app = typer.Typer()
#: Controllers listen this far above the first broker.
CONTROLLER_PORTS = 100
LOCALHOST = "localhost"
FIRST_PORT = 9092
#: Brokers of a secured cluster listen for each other this far above the first broker.
INTERNAL_PORTS = 200
#: Nodes of a secured cluster are scraped this far above the first broker, one after the other. The
#: console of a cluster that only this machine reaches is at the first of these ports.
HTTP_PORTS = 300
HOW_MANY_VOTE = typer.Option(min=1, max=MOST_CONTROLLERS, help="How many vote.")
HOW_MANY_SERVE = typer.Option(min=1, max=MOST_BROKERS, help="How many serve clients.")
Secure = Annotated[bool, "With TLS, certificates, users and ACLs."]


@server_app.callback()
def server() -> None:
    """Run a node."""


@server_app.command("start")
def start(
    config: Annotated[str, "The node's server.properties."],
    override: Annotated[list[str] | None, "KEY=VALUE; may be repeated."] = None,
) -> None:
    """Run one node until SIGTERM or Ctrl-C."""
    arguments = [config]
    for key, value in key_values(override or [], "--override").items():
        arguments += ["--override", f"{key}={value}"]
    become_node(arguments)


@server_app.command("health")
def health(config: Annotated[str, "The node's server.properties."]) -> None:
    """Ask a node on this machine whether its event loops run.

    The status is 0 if so. It needs no network, but the key moldau.health.socket.
    """
    from moldau.config import ConfigError, NodeConfig
    from moldau.runtime.health_socket import HEALTHY, ask_health

    with refusing(ConfigError):
        path: str = NodeConfig.load(config, {}, os.environ)["moldau.health.socket"]
    if not path:
        fail("moldau.health.socket is not set", status=2)
    with file_errors(path):
        answer = ask_health(path)
    if answer != HEALTHY:
        fail(answer)
    say(answer)


def become_node(arguments: list[str]) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", "moldau.broker", *arguments])


def bootstrap(
    directory: Annotated[Path, "DIR", "A new or empty directory for all nodes."],
    controllers: Annotated[int, HOW_MANY_VOTE] = 3,
    brokers: Annotated[int, HOW_MANY_SERVE] = 3,
    host: Annotated[str, "The address that all of them listen on."] = LOCALHOST,
    base_port: Annotated[
        int, Within(1, HIGHEST_PORT), "The first broker's port; controllers are 100 above."
    ] = FIRST_PORT,
    secure: Secure = False,
    start: Annotated[bool, "Run all nodes until Ctrl-C or SIGTERM."] = False,
) -> None:
    """Lay out and format a cluster: one directory per node, one cluster id, one voter set."""
    home = directory.absolute()
    with _complaints(home), closing(PortHolder(host)) as ports:
        if holds_anything(home):
            command = f"moldau dev --data {shlex.quote(str(directory))}"
            hint = f": a cluster is in it, which `{command}` runs" if _has_nodes(home) else ""
            fail(f"{directory} is not empty; it is left as it is{hint}")
        console_port = None if secure else _console_port(ports, base_port, is_held=start)
        layout = _planned(
            *(home, controllers, brokers, host, base_port, "--base-port"),
            secure=secure,
            console_port=console_port,
        )
        if start:
            layout.hold_ports(ports)
        cluster_id = make_cluster(home, layout)
        say(f"cluster {cluster_id}: {controllers} controllers, {brokers} brokers in {directory}")
        if start:
            raise typer.Exit(run_cluster(layout))
    say("start each node with:")
    for node in (*layout.controllers, *layout.brokers):
        say(f"  moldau server start {shlex.quote(str(node.config_path))}")
    say(f"clients connect to {layout.bootstrap_server}")
    _tell_console(layout)
    _tell_how(layout)


def _tell_how(layout: ClusterLayout) -> None:
    """How a secured cluster is scraped, and three commands that work on it; else nothing."""
    files = layout.secure
    if files is None:
        return
    http = [host_and_port(layout.host, each.http_port) for each in layout.nodes if each.http_port]
    if http:
        trust, own = (shlex.quote(str(each)) for each in (files.trust, files.admin_certificate))
        say(f"metrics: curl --cacert {trust} --cert {own} https://{http[0]}/metrics")
    config = f"--command-config {shlex.quote(str(files.admin_properties))}"
    say(f"the super user's settings: {files.admin_properties}, {files.kcat_conf}; try")
    say(f"  moldau topics create flights {config}")
    say(f"  echo Prague | moldau produce flights {config}")
    say(f"  moldau consume flights --from-beginning --until-end {config}")
    sys.stdout.flush()


def _tell_console(layout: ClusterLayout) -> None:
    line = _console_line(layout)
    if line is not None:
        say(line)


def _console_line(layout: ClusterLayout) -> str | None:
    """Where the console is, or what it needs; None where others reach the nodes."""
    if layout.console_address is not None:
        return f"console: {layout.console_address}"
    return (
        "no console: pip install 'moldau[server]'" if layout.is_near and not serves_http() else None
    )


@contextmanager
def _complaints(home: Path | None = None) -> Iterator[None]:
    """What keeps a cluster from being made or started is one line."""
    try:
        yield
    except PortInUse as error:
        fail(f"{error}: stop what listens there, or choose another port")
    except (LayoutError, NoFreePort) as error:
        fail(str(error))
    except OSError as error:
        fail(f"{error.filename or home or 'moldau'}: {error.strerror or error}")


def holds_anything(directory: Path) -> bool:
    """Raises: OSError: it cannot be looked at, or is no directory."""
    return directory.exists() and any(directory.iterdir())


def _has_nodes(directory: Path) -> bool:
    with suppress(LayoutError):
        ClusterLayout.found(directory)
        return True
    return False


def make_cluster(directory: Path, layout: ClusterLayout) -> str:
    """Write and format all nodes into a directory that is empty; returns the cluster id. Raises:
    LayoutError, OSError: it cannot be done; what this call has made is removed again
    """
    missing = [each for each in (directory, *directory.parents) if not each.exists()]
    try:
        layout.write_configs()
        return "" if layout.formats_itself else layout.format()
    except BaseException:
        for made in missing[-1:] or list(directory.iterdir()):
            shutil.rmtree(made, ignore_errors=True)
        raise


def run_cluster(layout: ClusterLayout, topics: Sequence[str] = ()) -> int:
    """Run all nodes, creating `topics` before `ready`, until a stop signal; the exit status."""
    from moldau.local.node_process import NodeProcess
    from moldau.local.supervisor import Supervisor
    from moldau.local.watchdog import Watchdog
    from moldau.runtime.telemetry.logs import configure_logging

    configure_logging()  # events are not results: they go to stderr, as a node's do
    watchdog = Watchdog(None)
    brokers, controllers = (
        {
            node.name: NodeProcess(node.config_path, node.log_path, watchdog=watchdog)
            for node in nodes
        }
        for nodes in (layout.brokers, layout.controllers)
    )

    def on_ready() -> None:
        if topics:
            _create_topics(layout.client_properties(), topics)
        say(f"ready: {layout.bootstrap_server}")
        _tell_console(layout)
        sys.stdout.flush()
        _tell_how(layout)

    try:
        return Supervisor([brokers, controllers]).run(on_ready)
    finally:
        watchdog.close()


def dev(
    controllers: Annotated[int | None, HOW_MANY_VOTE] = None,
    brokers: Annotated[int | None, HOW_MANY_SERVE] = None,
    host: Annotated[str | None, f"Where to listen ({LOCALHOST})."] = None,
    port: Annotated[
        int | None, Within(0, HIGHEST_PORT), f"The first broker's ({FIRST_PORT}); 0: any."
    ] = None,
    data: Annotated[
        Path | None, "Keep the data here, and go on with what is here; else it goes."
    ] = None,
    topic: Annotated[list[str] | None, "NAME:PARTITIONS[:RF] to create; may be repeated."] = None,
    secure: Secure = False,
) -> None:
    """Run a cluster in the foreground; prints `ready: HOST:PORT` when it serves.

    One controller and one broker, which is the default, are a single node.
    """
    topics = [_checked(text) for text in topic or []]
    with _complaints(data), ExitStack() as undo:
        if data is None:
            home = Path(tempfile.mkdtemp(prefix="moldau-dev-"))
            undo.callback(shutil.rmtree, home, ignore_errors=True)
        else:
            home = data.absolute()
        if holds_anything(home):
            layout = _found_cluster(home)
            counts = {"--controllers": controllers, "--brokers": brokers}
            asked = {**counts, "--host": host, "--port": port}
            _refuse_other_shape(home, layout, asked, secure=secure)
            ports = undo.enter_context(closing(PortHolder(layout.host)))
            layout.hold_ports(ports)
        else:
            ports = undo.enter_context(closing(PortHolder(host or LOCALHOST)))
            layout = _new_cluster(home, controllers or 1, brokers or 1, port, ports, secure=secure)
        if len(layout.nodes) == 1:
            _tell_how(layout)
            arguments = ["--format-if-needed", "--announce", "--quiet-start"]
            for text in topics:
                arguments += ["--create-topic", text]
            line = _console_line(layout)
            if line is not None:
                arguments += ["--then-print", line]
            if data is None:
                arguments += ["--remove-on-exit", str(home)]
            become_node([str(layout.nodes[0].config_path), *arguments])
        raise typer.Exit(run_cluster(layout, topics))


def _found_cluster(home: Path) -> ClusterLayout:
    """The cluster in a directory; exits with status 1, and names a directory near by, for none."""
    try:
        return ClusterLayout.found(home)
    except LayoutError as error:
        fail(f"{error}{nearby(str(home), _holds_cluster)}")


def _holds_cluster(path: str) -> bool:
    try:
        return bool(ClusterLayout.found(Path(path)).nodes)
    except LayoutError:
        return False


def _new_cluster(
    home: Path, controllers: int, brokers: int, port: int | None, ports: PortHolder, *, secure: bool
) -> ClusterLayout:
    """Make the nodes, on ports that are free."""
    port = FIRST_PORT if port is None else port
    if controllers == brokers == 1:
        internal_port = ports.take()[0] if secure else None
        own_port = port or ports.take()[0]
        http_port = ports.take()[0] if secure and serves_http() else None
        if not secure:
            http_port = _console_port(ports, port, is_held=True)
        own = (own_port, ports.take()[0], internal_port, http_port)
        node = NodeSpec(FIRST_BROKER_ID, home, *own)
        files = SecureFiles(home) if secure else None
        layout = ClusterLayout(ports.host, (node,), QUICK_GROUPS, files)
    else:
        free_port = None if port else lambda: ports.take()[0]
        layout = _planned(
            *(home, controllers, brokers, ports.host, port, "--port", free_port),
            secure=secure,
            console_port=None if secure else _console_port(ports, port, is_held=True),
        )
        layout = replace(layout, config={**layout.config, **QUICK_GROUPS})
    layout.hold_ports(ports)
    make_cluster(home, layout)
    return layout


def _refuse_other_shape(
    home: Path, layout: ClusterLayout, asked: Mapping[str, object], *, secure: bool
) -> None:
    """The cluster in a directory keeps its shape; exits with status 1 when another one is asked."""
    has: dict[str, object] = {
        "--controllers": len(layout.controllers),
        "--brokers": len(layout.brokers),
        "--host": layout.host,
        "--port": layout.brokers[0].broker_port,
    }
    if secure and layout.secure is None:
        fail(
            f"{home} holds a cluster that is not secured: leave out --secure, or choose another "
            "directory"
        )
    for option, value in asked.items():
        if value not in (None, 0, has[option]):
            fail(
                f"{home} holds a cluster of {has['--controllers']} controllers and "
                f"{has['--brokers']} brokers on {layout.bootstrap_server}, it cannot have {option} "
                f"{value}: leave that out, or choose another directory"
            )


def _planned(
    home: Path,
    controllers: int,
    brokers: int,
    host: str,
    port: int,
    option: str,
    free_port: NextPort | None = None,
    *,
    secure: bool,
    console_port: int | None,
) -> ClusterLayout:
    """A cluster on free ports, or on those from the option's on; three brokers replicate."""
    if port + CONTROLLER_PORTS + controllers - 1 > HIGHEST_PORT:
        fail(f"{option} {port} leaves no ports for {controllers} controllers", status=2)
    if secure and port + HTTP_PORTS + controllers + brokers - 1 > HIGHEST_PORT:
        nodes = f"{controllers} controllers and {brokers} brokers"
        fail(f"{option} {port} leaves no ports for {nodes} with --secure", status=2)
    http_port: Callable[[], int | None] | None = None
    if secure:
        http_port = (free_port or counting_from(port + HTTP_PORTS)) if serves_http() else None
    elif console_port is not None:  # of the first broker alone
        http_port = chain([console_port], repeat(None)).__next__
    internal_port = free_port or counting_from(port + INTERNAL_PORTS)
    return ClusterLayout.plan(
        home,
        controllers=controllers,
        brokers=brokers,
        host=host,
        broker_port=free_port or counting_from(port),
        controller_port=free_port or counting_from(port + CONTROLLER_PORTS),
        internal_port=internal_port if secure else None,
        http_port=http_port,
        config=replication_properties(brokers),
    )


def _console_port(ports: PortHolder, port: int, *, is_held: bool) -> int | None:
    """Where the console of a cluster without TLS listens: as far above its first broker each time,
    so that a browser knows it again; None: it has none.

    Args:
        is_held: hold the port, and take another one if it is in use; else it is looked at later.
    """
    if ports.host.strip("[]") not in LOOPBACK or not serves_http():
        return None
    wanted = port + HTTP_PORTS
    if not is_held:
        return wanted if wanted <= HIGHEST_PORT else None
    if port and wanted <= HIGHEST_PORT:
        with suppress(NoFreePort):
            ports.hold(wanted)
            return wanted
    return ports.take()[0]


def _create_topics(properties: dict[str, str], topics: Sequence[str]) -> None:
    """Create the topics that are not there; the cluster runs on when one cannot be made."""
    import asyncio

    from moldau.client import Admin, AdminConfig, KafkaError, NewTopic, TopicAlreadyExists

    async def create() -> None:
        async with Admin(config=AdminConfig.from_properties(properties)) as admin:
            for text in topics:
                name, partitions, factor, *_ = [*text.split(":"), "-1", "-1"]
                try:
                    await admin.create_topics([NewTopic(name, int(partitions), int(factor))])
                except TopicAlreadyExists:
                    continue
                except KafkaError as error:
                    warn(f"topic {text}: {error}")

    asyncio.run(create())


def _checked(text: str) -> str:
    """`NAME:PARTITIONS[:RF]`, or status 2."""
    parts = text.split(":")
    numbers = parts[1:]
    if not 1 <= len(parts) <= 3 or not parts[0] or not all(n.isdigit() for n in numbers):
        fail(f"--topic {text!r} is not NAME:PARTITIONS[:RF]", status=2)
    if any(int(number) < 1 for number in numbers):
        fail(f"--topic {text!r}: partitions and replication factor are at least 1", status=2)
    return text
