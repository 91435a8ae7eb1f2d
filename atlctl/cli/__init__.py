"""What the user types: one file per command, parse, call, render."""
