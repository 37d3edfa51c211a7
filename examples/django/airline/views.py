"""Booking a seat, and looking at it."""

from functools import partial

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_GET, require_POST

from airline.events import announce
from airline.models import Booking


@require_POST
def book(request: HttpRequest) -> JsonResponse:
    """Save a booking. Its record is written when the database has it: never one without a row."""
    flight, passenger = request.POST.get("flight"), request.POST.get("passenger")
    if not flight or not passenger:
        return JsonResponse({"error": "flight and passenger are needed"}, status=400)
    with transaction.atomic():
        booking = Booking.objects.create(flight=flight, passenger=passenger)
        transaction.on_commit(partial(announce, booking.id, flight))
    return JsonResponse({"booking": booking.id}, status=201)


@require_GET
def show(request: HttpRequest, booking_id: int) -> JsonResponse:
    """Whether it is confirmed."""
    booking = get_object_or_404(Booking, id=booking_id)
    return JsonResponse({"flight": booking.flight, "confirmed": booking.is_confirmed})
