"""What the service answers."""

from django.urls import path

from airline import views

urlpatterns = [
    path("bookings", views.book),
    path("bookings/<int:booking_id>", views.show),
]
