"""The current stack of every rank: a probe that runs in each worker, and its run on all workers at once."""
