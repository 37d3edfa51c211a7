"""The admin client: calls by subject, one module each, their typed results."""

from moldau.client.admin.admin import Admin

__all__ = ["Admin"]
