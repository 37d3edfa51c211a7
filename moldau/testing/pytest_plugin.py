"""The pytest plugin: clusters for the session (`moldau_cluster`), topics per test (`moldau_topic`).

Must not import the rest of Moldau before a fixture asks for it: the plugin is loaded in every run
of pytest in the environment it is installed in. Invariant: an option or marker that cannot be ends
the run, or the file's collection, with one line that names it.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest

from moldau.testing.node_settings import node_settings, texts_of

if TYPE_CHECKING:
    from moldau.testing.cluster import Cluster

COUNTS: Final = ("brokers", "controllers")
ARGUMENTS: Final = "(brokers=NUMBER, controllers=NUMBER, config={KEY: VALUE}, secure=BOOL)"


class Shape(NamedTuple):
    """What a cluster is made of."""

    brokers: int = 1
    controllers: int = 1
    config: tuple[tuple[str, str], ...] = ()
    secure: bool = False

    def changed(self, **given: object) -> Shape:
        """This shape, but for the counts that are given; `config` is laid over its configuration.
        Raises: ValueError: it cannot be; the text says what can
        """
        __tracebackhide__ = True
        shape = self
        for name, value in given.items():
            if name == "config" and isinstance(value, Mapping):
                try:
                    config = {**dict(shape.config), **node_settings(value)}
                except ValueError as error:
                    raise ValueError(f"config: {error}") from None
                shape = shape._replace(config=tuple(sorted(config.items())))
            elif name == "secure" and isinstance(value, bool):
                shape = shape._replace(secure=value)
            elif name not in COUNTS:
                raise ValueError(f"{name}={value!r}: {ARGUMENTS} can be given")
            elif type(value) is not int or not 1 <= value <= 100:
                raise ValueError(f"{name}={value!r}: a whole number from 1 to 100 is needed")
            elif name == "brokers":
                shape = shape._replace(brokers=value)
            else:
                shape = shape._replace(controllers=value)
        return shape


_configured: Final = pytest.StashKey[Shape]()
_started: Final = pytest.StashKey["list[Cluster]"]()
_lengths: Final = pytest.StashKey[dict[Path, int]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare what a project's pytest configuration may say."""
    for name in COUNTS:
        parser.addini(f"moldau_{name}", f"{name} of moldau_cluster (1)", default="1")
    parser.addini("moldau_config", "configuration of its nodes, KEY=VALUE per line", "linelist")


def pytest_configure(config: pytest.Config) -> None:
    """Check the options. Raises: pytest.UsageError."""
    config.stash[_started] = []
    config.addinivalue_line("markers", f"moldau{ARGUMENTS}: the cluster that moldau_cluster gives")
    texts = {name: config.getini(f"moldau_{name}").strip() for name in COUNTS}
    given = {name: int(text) if text.isdecimal() else text for name, text in texts.items()}
    lines = [line.partition("=") for line in config.getini("moldau_config")]
    try:
        for key, equals, _ in lines:
            if not (key.strip() and equals):
                raise ValueError(f"config: {key + equals!r} is not KEY=VALUE")
        pairs = {key.strip(): value.strip() for key, _, value in lines}
        config.stash[_configured] = Shape().changed(**given, config=pairs)
    except ValueError as error:
        raise pytest.UsageError(f"moldau_{error}") from None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a test with the marker the cluster that it asks for; of several the nearest wins."""
    shape = metafunc.config.stash[_configured]
    markers = list(metafunc.definition.iter_markers("moldau"))
    if not markers or "moldau_cluster" not in metafunc.fixturenames:
        return
    wrong = ""
    try:
        for marker in reversed(markers):
            unnamed = {"arguments": marker.args} if marker.args else {}
            shape = shape.changed(**unnamed, **marker.kwargs)
    except ValueError as error:
        wrong = f"{metafunc.definition.name}: @pytest.mark.moldau: {error}"
    if wrong:  # here, or pytest shows the ValueError, too
        pytest.fail(wrong, pytrace=False)
    name = getattr(pytest, "HIDDEN_PARAM", "moldau")  # the former from pytest 8.4 on
    metafunc.parametrize("moldau_cluster", [shape], ids=[name], indirect=True, scope="session")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Remember how long the logs of nodes are before the test."""
    if item.config.stash[_started]:
        from moldau.testing.node_logs import lengths

        started = item.config.stash[_started]
        item.stash[_lengths] = lengths(started)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    """Show what nodes complained of during a test that fails: their logs go with the session."""
    outcome = yield
    report = outcome.get_result()
    started = item.config.stash[_started]
    names: list[str] = getattr(item, "fixturenames", [])
    if report.failed and started and not {"moldau_cluster", "moldau_clusters"}.isdisjoint(names):
        from moldau.testing.node_logs import complaints

        before = item.stash.get(_lengths, None) or {}
        report.sections += complaints(started, before)


@pytest.fixture(scope="session")
def moldau_clusters(pytestconfig: pytest.Config) -> Iterator[Callable[..., Cluster]]:
    """Gives running clusters: `moldau_clusters(brokers=3, controllers=1, config={…}, secure=True)`.
    What is not given is as configured; the same arguments give the same cluster, all session long.
    """
    from moldau.testing.cluster import Cluster

    clusters: dict[Shape, Cluster] = {}

    def running(**given: object) -> Cluster:
        __tracebackhide__ = True
        shape = pytestconfig.stash[_configured].changed(**given)
        if shape not in clusters:
            cluster = Cluster(
                shape.brokers, shape.controllers, config=dict(shape.config), secure=shape.secure
            )
            stack.callback(cluster.close)
            clusters[shape] = cluster.start()
            pytestconfig.stash[_started].append(cluster)
        return clusters[shape]

    with contextlib.ExitStack() as stack:
        yield running


@pytest.fixture(scope="session")
def moldau_cluster(
    request: pytest.FixtureRequest, moldau_clusters: Callable[..., Cluster]
) -> Cluster:
    """A running cluster, shared by all tests of the session that ask for the same one: a node, or
    what the options `moldau_…` and the test's `@pytest.mark.moldau` say.
    """
    __tracebackhide__ = True
    shape: Shape = getattr(request, "param", request.config.stash[_configured])
    return moldau_clusters(**{**shape._asdict(), "config": dict(shape.config)})


@pytest.fixture
def moldau_topics(moldau_cluster: Cluster) -> Callable[..., str]:
    """Makes topics that no other test uses: `moldau_topics(partitions=3, replication_factor=1,
    config={…})` gives the name. Also inside of a running event loop.
    """
    from moldau.client import KafkaError, NewTopic
    from moldau.client.sync import Admin

    def made(
        partitions: int = 1, replication_factor: int = -1, config: Mapping[str, object] = {}
    ) -> str:
        __tracebackhide__ = True
        if type(partitions) is not int:
            raise TypeError(f"partitions={partitions!r}: a number is needed; names are made up")
        name = f"test-{uuid.uuid4().hex}"
        topic = NewTopic(name, partitions, replication_factor, texts_of(config))
        try:
            with Admin(config=moldau_cluster.client_properties) as admin:
                admin.create_topics([topic])
        except KafkaError as error:  # where in the client it was raised says nothing to the test
            raise error.with_traceback(None) from None
        return name

    made.__qualname__ = "moldau_topics"  # what Python calls it when an argument is wrong
    return made


@pytest.fixture
def moldau_topic(moldau_topics: Callable[..., str]) -> str:
    """The name of a topic with one partition that no other test uses."""
    __tracebackhide__ = True
    return moldau_topics()
