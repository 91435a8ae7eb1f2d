"""Copy files to and from workers: a tar stream over a command, read and written by own code."""
