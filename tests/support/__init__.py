"""Helpers shared by tests. Contains no tests."""
