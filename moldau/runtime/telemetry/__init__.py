"""Logs, metrics, and the brake on lines that repeat."""
