#!/bin/sh
# Runs a command on a terminal, in place of this shell; its watcher is a separate exec (watch.sh). Arguments: mark,
# value of TERM, rows, columns, words of the command. The size is set here, too, because the client's first message with
# it may arrive after the command has read it.
export TERM="$2" ATLCTL_EXEC="$1"
stty rows $3 cols $4 2>/dev/null
m=$1
shift 4
. ./begin.sh
echo "$m S $w $t"
exec "$@"
