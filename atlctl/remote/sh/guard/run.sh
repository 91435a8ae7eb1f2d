# shellcheck shell=sh disable=SC2154
# Runs the command and reports how it ended. In: m, w, t as find.sh; i, not empty: wait for a line of input first; the
# words. Descriptors: 3 the exec's stderr, 4 its stdin, 5 its stdout, 6 the command's stdin. The shell's own messages,
# about signals or the watcher's end, must not get to stderr. Out: x, the exit code, empty if unknown.
C() {
  trap - TERM HUP
  [ $BASH_VERSION ] || trap 'echo F' 0
  export ATLCTL_EXEC=$m
  exec "$@" <&6 >&5 2>&3 3>&- 4<&- 5>&- 6<&-
}
x=$(
  exec 2>&1
  trap '' TERM HUP
  s="$m S $w $t"
  echo "$s" >&5
  echo "$s" >&3
  [ ! $i ] || read -r s <&6 || exit
  if [ $BASH_VERSION ]; then
    trap 'LC_ALL=C jobs %%' CHLD
    (C "$@") <&6 &
    LC_ALL=C jobs %%
    while kill -0 $! 2>&-; do wait $!; done
    wait $!
  else
    (C "$@")
  fi
  echo $?
)
set -f
echo "$m X" $x >&3
echo "$m E" >&5
x=${x##*[!0-9]}
