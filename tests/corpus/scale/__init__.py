"""Synthetic cases of many ranks, in the corpus' form: written line by line, no job ever ran.

The texts follow the sources of PyTorch, NCCL, CUDA and the kernel and what these printed in public logs; who dies when
follows from a small simulation of agents and watchdogs. `python -m tests.corpus.scale OUT` writes all cases.
"""
