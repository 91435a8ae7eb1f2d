#!/bin/sh
# Runs a command on a terminal, where it takes the place of this shell; its watcher is a separate exec (watch.sh).
# Arguments: mark, value of TERM, rows, columns, words of the command. The size is set here as well, since the client's
# first message of it may come after the command has asked.
export TERM="$2" ATLCTL_EXEC="$1"
stty rows $3 cols $4 2>/dev/null
m=$1
shift 4
. ./begin.sh
echo "$m S $w $t"
exec "$@"
