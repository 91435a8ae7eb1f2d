"""Backends: how jobs are found and their workers reached."""
