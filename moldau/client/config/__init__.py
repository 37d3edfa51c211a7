"""Every setting of the clients: tables, parsing, typed keyword arguments."""
