"""Regular expressions that clients send: which are taken, and what matches them."""
