"""Which expressions are taken."""
