# shellcheck shell=sh disable=SC2154
# Checks whether the command can be started, and finds the start time of the exec's first process. In: m, the mark; the
# words of the command. Out: w and t, PID and start time of this process.
case $1 in
  */*)
    c=126
    [ ! -x "$1" ] || [ -d "$1" ] || c=0
    [ -e "$1" ] || c=127
    ;;
  *)
    c=127
    command -v "$1" >/dev/null && c=0
    ;;
esac
[ $c = 0 ] || {
  echo "$m F $c" >&2
  exit $c
}
read -r l </proc/$$/stat
P() { t=${20}; }
P ${l##*) }
w=$$
