"""What every rank is doing right now: a probe that runs in each worker, and the look at all of them at once."""
