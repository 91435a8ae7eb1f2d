# shellcheck shell=sh disable=SC2154
# Finds the rest of a command. In: m, the mark; w and t, PID and start time of the exec's first process; h, `HUP` if
# that is the command itself; y, the PID of this process.

# One `grep` reads the stat of all processes, another one the environments of candidates: reading byte by byte in the
# shell, or starting a process for each, is slow if there are many. Environments of processes older than the exec are
# skipped, because reading that of a hung one may block. Not `grep -F`: some builds of busybox find nothing after the
# first NUL. The mark is the same as a pattern.
command -v grep >/dev/null || grep() {
  g=$1$2
  shift 2
  for d; do
    case $g in
      *.) while read -r l; do echo "$d:$l"; done <$d ;;
      *) case `tr '\0' ' '<$d` in *$m*) echo $d ;; esac ;;
    esac
  done
}

# Sets w to x when the exec's shell has gone.
W() { read -r l </proc/$w/stat && set -- ${l##*) } && [ $1 != Z ] && [ ${20} = $t ] || w=x; }

# Finds the rest; fails if no search process could be started. v: all of it, o: processes outside the exec's process
# group, a: the shells that wait for it, one of which may be about to start it.
f() {
  v= o= a= b= e=-
  W
  case $h$w in
    HUPx | [!H]*) ;;
    *) v=" $w" o=$w ;;
  esac
  while [ "$e" != "$a$v$b" ]; do
    e=$a$v$b c=
    s=`grep -aH . /proc/[0-9]*/stat`
    set -f
    IFS='
'
    for l in $s; do
      unset IFS
      d=${l%%/s*} q=${d#/proc/} l=${l#*) }
      case "$a$v $w $y " in *" $q "*) continue ;; esac
      case $l in *\)*) l=${l##*) } ;; esac
      set -- $l
      [ $1 != Z ] && [ ${20} -ge $t ] || continue
      case "$a$v $b" in
        *" $2 "* | *$d/e*)
          v="$v $q"
          [ $3 = $w ] || o="$o $q"
          ;;
        *) if [ $2 = $w ]; then a="$a $q"; else c="$c $d/environ"; fi ;;
      esac
    done
    set +f
    unset IFS
    b=$b`[ ! "$c" ]||grep -l $m $c`
  done
  [ "$v$a" -o ! "$s" ]
}
