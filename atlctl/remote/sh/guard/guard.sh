#!/bin/sh
# Runs a command that ends with its client. The command reads /dev/null, its watcher the exec's stdin. Four processes:
# the exec's shell, one that waits for the command, the watcher, the command. Arguments: mark, words of the command.
# backends/guarded/guard.py explains the messages to the client.
m=$1
shift
. ./begin.sh
trap : TERM INT HUP
exec 3>&2 4<&0 5>&1 6</dev/null 2>/dev/null
i=
. ./find.sh
. ./end.sh
(
  trap '' TERM INT HUP
  h=
  read -r y l </proc/self/stat
  L
) <&4 >&- 5>&- &
r=$!
. ./run.sh
# Without an exit code the command may still run: the watcher ends it when the client knows that and has gone.
[ ! $x ] || kill -USR1 $r
wait $r
exit ${x:-125}
