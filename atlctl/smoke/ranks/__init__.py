"""Checks with torch processes (GPUs, collectives, DDP): one process for each tested GPU, or one for each worker."""
