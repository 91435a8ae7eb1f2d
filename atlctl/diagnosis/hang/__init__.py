"""From what every rank is doing right now to the one that the others wait for. Pure functions, no I/O."""
