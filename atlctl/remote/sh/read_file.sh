#!/bin/sh
# Prints up to $2 bytes of a regular file that is not a link. The name cannot be taken for an option.
[ ! -L "$1" ] && [ -f "$1" ] && exec head -c "$2" <"$1"
