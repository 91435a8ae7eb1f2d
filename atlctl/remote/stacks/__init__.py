"""Stack probe: collects the state of each rank process in a worker as one line of JSON.

A separate program, sent as text: Python 3.8, standard library only. It stops no process.
"""
