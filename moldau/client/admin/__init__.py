"""The admin client: calls by subject, one module each, and their typed values."""
