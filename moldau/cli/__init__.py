"""The `moldau` command. Its modules talk to a running cluster through `moldau.client` only."""
