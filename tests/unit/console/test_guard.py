"""What may come in, by its target and headers: one spelling, our name, our site."""

from __future__ import annotations

import base64

import pytest

from moldau.console.guard import (
    LOOPBACK_NAMES,
    Basic,
    Bearer,
    Host,
    check_host,
    check_site,
    cookie_name,
    credentials_of,
    decoded,
    host_of,
    is_of_browser,
    target_of,
)
from moldau.console.problems import Problem

OWN = Host("localhost", "8090")


def status_of(error: pytest.ExceptionInfo[Problem]) -> int:
    return error.value.status


@pytest.mark.parametrize(
    ("raw", "segments", "has_end", "query"),
    [
        ("/", (), True, ""),
        ("/console/", ("console",), True, ""),
        ("/v3/clusters", ("v3", "clusters"), False, ""),
        ("/v3/a%2Fb?x=1&y", ("v3", "a%2Fb"), False, "x=1&y"),
        ("/v3/configs:alter", ("v3", "configs:alter"), False, ""),
        ("/g/%2e%2E%2e", ("g", "%2e%2E%2e"), False, ""),
    ],
)
def test_a_target_is_its_segments(
    raw: str, segments: tuple[str, ...], has_end: bool, query: str
) -> None:
    assert target_of(raw) == (segments, has_end, query)


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        ("//", 404),
        ("//v3/clusters", 404),
        ("/v3//clusters", 404),
        ("/v3/clusters//", 404),
        ("/console/../v3", 404),
        ("/console/./app.js", 404),
        ("/console/%2e%2e/secret", 404),
        ("/console/.%2E/secret", 404),
        ("/console/%2e", 404),
        ("/" + "a/" * 20, 404),
        ("/v3\\clusters", 400),
        ("/v3/%zz", 400),
        ("/v3/%", 400),
        ("/v3/%4", 400),
        ("/v3?q=%q", 400),
        ("/v3/ü", 400),
        ("/v3#a", 400),
        ("http://localhost:8090/v3", 400),
        ("*", 400),
        ("", 400),
        ("/" + "a" * 9_000, 414),
    ],
)
def test_other_spellings_and_ways_up_are_refused(raw: str, status: int) -> None:
    with pytest.raises(Problem) as refused:
        target_of(raw)
    assert status_of(refused) == status


def test_names_in_paths_are_utf8() -> None:
    assert decoded("a%2Fb%C3%BC%00") == "a/bü\0"
    with pytest.raises(Problem) as refused:
        decoded("%ff")
    assert status_of(refused) == 400


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("localhost:8090", ("localhost", "8090")),
        ("LocalHost", ("localhost", "")),
        ("localhost.:1", ("localhost", "1")),
        ("[::1]:80", ("::1", "80")),
        ("[0:0:0:0:0:0:0:1]", ("::1", "")),
        ("127.0.0.1:9", ("127.0.0.1", "9")),
    ],
)
def test_the_host_is_read(value: str, expected: tuple[str, str]) -> None:
    assert host_of(value) == expected


@pytest.mark.parametrize(
    "value", [None, "", "a b", "a:b", "a:123456", "a@b", "[::1", "a/b", "localhost:80:80", "ü"]
)
def test_a_host_that_is_none_is_refused(value: str | None) -> None:
    with pytest.raises(Problem) as refused:
        host_of(value)
    assert status_of(refused) == 400


def test_foreign_names_are_refused() -> None:
    """Rebinding gives an attacker's name our address; the header `Host` keeps that name."""
    for name in ("localhost", "127.0.0.1", "::1"):
        check_host(Host(name, "1"), LOOPBACK_NAMES, "127.0.0.1")
    check_host(Host("10.0.0.7", ""), LOOPBACK_NAMES, "::ffff:10.0.0.7")
    for name in ("evil.example", "localhost.evil.example", "10.0.0.8", "127.0.0.2"):
        with pytest.raises(Problem) as refused:
            check_host(Host(name, "8090"), LOOPBACK_NAMES, "127.0.0.1")
        assert status_of(refused) == 421
        check_host(Host(name, "8090"), {name}, "127.0.0.1")


@pytest.mark.parametrize("site", ["cross-site", "same-site", "something"])
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_what_other_sites_ask_for_is_refused(site: str, method: str) -> None:
    headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "cors"}
    for is_page in (False, True):
        with pytest.raises(Problem) as refused:
            check_site(method, headers, OWN, is_page=is_page)
        assert status_of(refused) == 403


def test_links_of_other_sites_lead_to_the_page_alone() -> None:
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    check_site("GET", headers, OWN, is_page=True)
    with pytest.raises(Problem):
        check_site("GET", headers, OWN, is_page=False)
    with pytest.raises(Problem):
        check_site("POST", headers, OWN, is_page=True)


@pytest.mark.parametrize("site", ["same-origin", "none"])
def test_the_own_page_may_ask(site: str) -> None:
    headers = {"Sec-Fetch-Site": site, "Origin": "http://localhost:8090"}
    check_site("POST", headers, OWN, is_page=False)
    assert is_of_browser(headers)


@pytest.mark.parametrize(
    ("origin", "host", "is_own"),
    [
        ("http://localhost:8090", "localhost:8090", True),
        ("http://LOCALHOST:8090", "localhost:8090", True),
        ("https://moldau.example", "moldau.example", True),
        ("https://moldau.example", "moldau.example:443", True),
        ("https://moldau.example:443", "moldau.example", True),
        ("http://[::1]:8090", "[::1]:8090", True),
        ("http://localhost:8091", "localhost:8090", False),
        ("http://localhost", "localhost:8090", False),
        ("http://evil.example:8090", "localhost:8090", False),
        ("null", "localhost:8090", False),
        ("file://localhost:8090", "localhost:8090", False),
        ("http://localhost:x", "localhost:8090", False),
        ("", "localhost:8090", False),
    ],
)
@pytest.mark.parametrize("header", ["Origin", "Referer"])
def test_the_origin_of_a_change_is_this_server(
    origin: str, host: str, is_own: bool, header: str
) -> None:
    own, headers = host_of(host), {header: origin}
    if is_own:
        check_site("POST", headers, own, is_page=False)
        check_site("GET", headers, own, is_page=False)
        return
    with pytest.raises(Problem) as refused:
        check_site("POST", headers, own, is_page=False)
    assert status_of(refused) == 403
    if header == "Referer":
        check_site("GET", headers, own, is_page=False)  # a link somewhere; it changes nothing


def test_clients_that_are_no_browsers_say_nothing_of_sites() -> None:
    headers = {"User-Agent": "curl/8", "Accept": "*/*"}
    assert not is_of_browser(headers)
    check_site("POST", headers, OWN, is_page=False)
    for name in ("Origin", "Cookie", "Referer", "Sec-Fetch-Mode"):
        assert is_of_browser({name: "x"})


def test_a_cookie_has_the_name_of_its_port() -> None:
    assert cookie_name(OWN) == "moldau-session-8090"
    assert cookie_name(Host("moldau.example", "")) == "moldau-session"


def basic(text: bytes) -> str:
    return "Basic " + base64.b64encode(text).decode()


def test_credentials_are_read() -> None:
    assert credentials_of(basic(b"alice:a:b")) == Basic("alice", "a:b")
    assert credentials_of(basic("ü:ö".encode())) == Basic("ü", "ö")
    assert credentials_of("bearer a.b-c_d~e+f/g==") == Bearer("a.b-c_d~e+f/g==")


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Basic",
        "Basic !!!",
        basic(b"no-colon"),
        basic(b":password"),
        basic(b"\xff:\xff"),
        "Bearer",
        "Bearer a b",
        "Bearer ü",
        "Bearer " + "a" * 70_000,
        "Negotiate abc",
    ],
)
def test_credentials_that_are_none_are_refused(header: str) -> None:
    with pytest.raises(Problem) as refused:
        credentials_of(header)
    assert status_of(refused) == 401
