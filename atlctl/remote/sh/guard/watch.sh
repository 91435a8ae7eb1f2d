#!/bin/sh
# Watches a command as a separate exec, and ends processes that it left behind. Arguments: mark, PID and start time of
# the exec's first process, `HUP` if that is the command itself (terminal).
m=$1 w=$2 t=$3 h=$4 y=$$ k=
exec 3>&2 2>/dev/null
trap '' TERM INT HUP
echo "$m R" >&3
. ./find.sh
. ./end.sh
L
