#!/bin/sh
# Checks whether processes of a command are left. Arguments: mark, PID and start time of the exec's first process.
m=$1 w=$2 t=$3 h= y=$$
exec 3>&2 2>/dev/null
. ./find.sh
f && g=1 || g=0
echo "$m L $g" >&3
