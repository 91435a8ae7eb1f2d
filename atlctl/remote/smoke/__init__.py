"""The smoke test's agent on a worker: answers the client's commands (facts, network, storage, GPUs), starts the ranks.

Separate programs, sent as text: Python 3.8, standard library only; only `probe.py` needs torch.
"""
