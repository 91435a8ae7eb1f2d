"""Rendering: streams and colour decisions, sanitising, prefixes, tables, plain text, JSON."""
