"""Runs in a worker: answers commands of the client about facts, network, storage and GPUs, and starts the ranks.

Programs of their own, sent as text: Python 3.8, standard library alone; torch comes in with `probe.py` only.
"""
