"""Failure signatures: texts in logs that say what failed, as data (`signatures.toml`, `categories.toml`)."""
