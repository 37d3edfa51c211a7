"""The service with a real node behind it."""

from __future__ import annotations

import flights_api
import pytest
from fastapi.testclient import TestClient

from moldau.testing import wait_until


@pytest.fixture
def service(moldau_cluster, moldau_topics, monkeypatch):
    monkeypatch.setenv("BOOTSTRAP_SERVERS", moldau_cluster.bootstrap_server)
    monkeypatch.setenv("FLIGHTS_TOPIC", moldau_topics(partitions=3))
    with TestClient(flights_api.app) as client:
        yield client


def test_the_mean_delay_is_that_of_all_flights(service):
    for flight, delay_min in (("UA1545", 2), ("UA1714", 4)):
        posted = {"flight": flight, "carrier": "UA", "delay_min": delay_min}
        assert service.post("/flights", json=posted).status_code == 201
    expected = {"flights": 2, "mean_delay_min": 3.0}
    wait_until(
        lambda: service.get("/carriers/UA").json() == expected, what="both flights are counted"
    )


def test_a_carrier_without_flights_is_not_found(service):
    assert service.get("/carriers/AA").status_code == 404


def test_half_a_flight_is_refused_and_not_written(service):
    assert service.post("/flights", json={"flight": "UA1545"}).status_code == 422
