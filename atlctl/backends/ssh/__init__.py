"""Hosts reached over SSH, by asyncssh."""
