"""Configurations of clients: how settings are given and shown, and what excludes what."""
