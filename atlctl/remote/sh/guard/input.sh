#!/bin/sh
# Runs a command that reads the exec's stdin, so its watcher is a separate exec (watch.sh). It starts after the first
# line of input, which the client sends once the watcher is ready. Arguments: mark, words of the command.
m=$1
shift
. ./begin.sh
trap : TERM INT HUP
exec 3>&2 5>&1 6<&0 2>/dev/null
i=1
. ./run.sh
exit ${x:-125}
