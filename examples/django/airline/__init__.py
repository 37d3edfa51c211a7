"""Bookings: saved in the database, announced in a topic, confirmed by who reads the topic."""
