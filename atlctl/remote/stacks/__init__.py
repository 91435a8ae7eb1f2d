"""Runs in a worker: what every rank process there is doing, as one line of JSON.

A program of its own, sent as text: Python 3.8, standard library alone. It stops no process.
"""
