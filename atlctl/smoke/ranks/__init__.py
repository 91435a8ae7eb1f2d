"""Checks by processes with torch, one for each GPU that is tested, or one for each worker: GPUs, collectives, DDP."""
