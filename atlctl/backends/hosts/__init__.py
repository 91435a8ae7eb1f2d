"""This machine and hosts that are reached over SSH: real process groups under supervisors, and lists of hosts."""
