"""Helpers that tests share. No test lives here."""
