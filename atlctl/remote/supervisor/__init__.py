"""Supervisor of a job. `boot` is its entry point, `supervisor` its core. It runs with `python -I -S`, to start quickly
and to be independent of installed packages.

It also serves requests of a client on another machine: `asked` is the entry point, and `starting` for a start. Each
request is one process: arguments in, lines of JSON out.
"""
