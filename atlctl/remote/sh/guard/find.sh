# shellcheck shell=sh disable=SC2154
# What is left of a command. In: m, the mark; w and t, PID and start time of the exec's first process; h, `HUP` if that is
# the command itself; y, the PID of this process.

# One `grep` reads the stat of all processes, one the environments of those that it may be about: byte by byte, as a shell
# reads, or with a process for each it takes long if they are many. Environments of processes that are older than the exec
# are left alone: to read that of a hung one may hang. Not `grep -F`: in some builds of busybox it sees nothing behind the
# first NUL. The mark reads the same as a pattern.
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

# Sets w to x once the shell that is the exec has gone.
W() { read -r l </proc/$w/stat && set -- ${l##*) } && [ $1 != Z ] && [ ${20} = $t ] || w=x; }

# Finds what is left, or could start no process that looks. v: all of it, o: those outside of the exec's process group,
# a: the shells that wait for it, one of which may be about to start it.
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
