"""The folder that is handed on: evidence with its secrets hidden, as a folder or an archive."""
