"""A booking from the request to its confirmation, with a real node and a database in memory."""

from __future__ import annotations

import django
import pytest
from django.core.management import call_command
from django.test import Client


@pytest.fixture(scope="module")
def service(moldau_clusters):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DJANGO_SETTINGS_MODULE", "airline.settings")
        patch.setenv("BOOTSTRAP_SERVERS", moldau_clusters().bootstrap_server)
        patch.setenv("DATABASE", ":memory:")
        django.setup()
        call_command("migrate", verbosity=0)
        yield Client()


def test_a_booking_is_confirmed_when_its_record_is_read(service, capsys):
    booked = service.post("/bookings", {"flight": "UA1545", "passenger": "Ada"}).json()["booking"]
    assert service.get(f"/bookings/{booked}").json() == {"flight": "UA1545", "confirmed": False}
    call_command("confirm_bookings", count=1)
    assert service.get(f"/bookings/{booked}").json()["confirmed"]
    assert capsys.readouterr().out == f"confirmed booking {booked}\n"


def test_half_a_booking_is_refused(service):
    assert service.post("/bookings", {"flight": "UA1545"}).status_code == 400
