"""A path leads to one route, by its exact spelling; a query has typed values."""

from __future__ import annotations

from typing import Any

import pytest

from moldau.console.calls import Call, Reply
from moldau.console.guard import target_of
from moldau.console.problems import Problem
from moldau.console.routes import MAX_PARAMETERS, Parameter, Route, RouteTable
from moldau.console.schemas import BOOLEAN, INTEGER, STRING, array, one_of
from moldau.console.tables import ROUTES


async def handler(_: Call) -> Reply:
    return Reply({})


def route(method: str, path: str, **more: Any) -> Route:
    return Route(method=method, path=path, handler=handler, name=path, summary="", **more)


TABLE = RouteTable(
    (
        route("GET", "/v3/clusters"),
        route("GET", "/v3/clusters/{cluster_id}/topics/{topic_name}"),
        route("DELETE", "/v3/clusters/{cluster_id}/topics/{topic_name}"),
        route("GET", "/v3/clusters/{cluster_id}/topics/-/configs"),
        route("GET", "/v3/clusters/{cluster_id}/topics/{topic_name}/configs"),
        route("POST", "/v3/clusters/{cluster_id}/topics/{topic_name}/configs:alter"),
        route("GET", "/v3/stream", is_stream=True),
    )
)


def found(path: str, method: str = "GET") -> tuple[str, dict[str, str]]:
    route, names = TABLE.find(method, target_of(path))
    return route.path, names


def test_names_in_a_path_are_decoded() -> None:
    path = "/v3/clusters/{cluster_id}/topics/{topic_name}"
    assert found("/v3/clusters/c%201/topics/a%2Fb") == (
        path,
        {"cluster_id": "c 1", "topic_name": "a/b"},
    )
    assert found("/v3/clusters/c/topics/t", "HEAD")[0] == path


def test_fixed_segments_go_before_names() -> None:
    assert found("/v3/clusters/c/topics/-/configs")[0].endswith("/-/configs")
    assert found("/v3/clusters/c/topics/t/configs")[0].endswith("/{topic_name}/configs")
    # The tree is searched on where a fixed segment leads nowhere.
    assert found("/v3/clusters/c/topics/-") == (
        "/v3/clusters/{cluster_id}/topics/{topic_name}",
        {"cluster_id": "c", "topic_name": "-"},
    )


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v3",
        "/v3/clusters/",
        "/V3/clusters",
        "/v3/Clusters",
        "/v3/%63lusters",
        "/v3/clusters/c",
        "/v3/clusters/c/topics",
        "/v3/clusters/c/topics/t/more",
        "/v3/clusters/c/topics/t/configs%3Aalter",
    ],
)
def test_other_spellings_and_other_paths_are_not_served(path: str) -> None:
    with pytest.raises(Problem) as refused:
        found(path)
    assert refused.value.status == 404


def test_other_methods_are_refused_with_those_that_are_served() -> None:
    with pytest.raises(Problem) as refused:
        found("/v3/clusters/c/topics/t", "PATCH")
    assert refused.value.status == 405
    assert refused.value.headers == (("Allow", "DELETE, GET, HEAD"),)
    with pytest.raises(Problem) as refused:
        found("/v3/clusters/c/topics/t/configs:alter")
    assert refused.value.headers == (("Allow", "POST"),)
    with pytest.raises(Problem) as refused:
        found("/v3/stream", "HEAD")
    assert refused.value.headers == (("Allow", "GET"),)


ASKED = route(
    "GET",
    "/x",
    query=(
        Parameter("limit", "", {**INTEGER, "minimum": 1, "maximum": 10}, default=5),
        Parameter("deep", "", BOOLEAN),
        Parameter("order", "", one_of("asc", "desc")),
        Parameter("with", "", array(one_of("sizes", "groups"))),
        Parameter("q", "", STRING),
    ),
)


def test_a_query_has_typed_values() -> None:
    assert ASKED.parameters("limit=3&deep=true&order=asc&with=sizes,groups&q=a%20b+c&else=1") == {
        "limit": 3,
        "deep": True,
        "order": "asc",
        "with": ["sizes", "groups"],
        "q": "a b c",
    }
    none = dict.fromkeys(("deep", "order", "with", "q"))
    assert ASKED.parameters("") == {"limit": 5, **none}
    assert ASKED.parameters("with=&q=") == {"limit": 5, **none, "with": [], "q": ""}


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=11",
        "limit=x",
        "limit=",
        "limit=1.5",
        "limit=%31%30%30%30",
        "limit=99999999999999999999",
        "deep=1",
        "order=ASC",
        "with=sizes,else",
        "q=%ff",
        "q=a&q=b",
        "&".join(f"p{number}=1" for number in range(MAX_PARAMETERS + 1)),
    ],
)
def test_a_value_that_cannot_be_is_refused(query: str) -> None:
    with pytest.raises(Problem) as refused:
        ASKED.parameters(query)
    assert refused.value.status == 422


def test_a_parameter_may_be_needed() -> None:
    needed = route("GET", "/x", query=(Parameter("p", "", STRING, is_required=True),))
    assert needed.parameters("p=1") == {"p": "1"}
    with pytest.raises(Problem) as refused:
        needed.parameters("")
    assert "p is needed" in refused.value.detail


def test_operations_have_names_of_their_own() -> None:
    names = [each.name for each in ROUTES]
    assert len(names) == len(set(names))
    assert all(each.summary for each in ROUTES)


def test_changes_have_methods_for_it() -> None:
    """What has a body or no answer is asked for by a method that browsers do not send unasked."""
    for each in ROUTES:
        assert each.method in ("GET", "POST", "PUT", "PATCH", "DELETE")
        if each.method == "GET":
            assert each.body is None
            assert not each.reads_body
            assert each.status == 200
