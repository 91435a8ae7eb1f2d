"""Files to and from workers: a tar stream over a command, read and written by code of our own."""
