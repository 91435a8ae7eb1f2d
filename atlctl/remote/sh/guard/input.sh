#!/bin/sh
# Runs a command whose stdin is the exec's, so that its watcher is a separate exec (watch.sh). It does not start before
# the first line of input, which the client sends when the watcher reads. Arguments: mark, words of the command.
m=$1
shift
. ./begin.sh
trap : TERM INT HUP
exec 3>&2 5>&1 6<&0 2>/dev/null
i=1
. ./run.sh
exit ${x:-125}
