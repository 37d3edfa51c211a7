"""Nodes of a cluster on one machine: their layout, ports, certificates, processes, supervision.

What `moldau dev` and `moldau quorum bootstrap` run in production, and what `moldau.testing` stands
on. Must not be imported by a running node.
"""
