#!/bin/sh
# Prints a regular file that is no link, up to $2 bytes. The name cannot be an option of anything.
[ ! -L "$1" ] && [ -f "$1" ] && exec head -c "$2" <"$1"
