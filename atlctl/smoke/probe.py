"""The ranks of the smoke test."""
