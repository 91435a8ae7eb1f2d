# shellcheck shell=sh disable=SC2154
# Ends what is left of a command when the client asks, or nobody asks any more. In: as find.sh; descriptor 3 for words.

# Ends it, $1 tenths of a second after SIGTERM by SIGKILL. Signals go to the whole group at once, since a child that is
# just being forked cannot escape that; each process outside gets its own, once, so that a handler may clean up with new
# processes.
K() {
  g=$1 n=0 T= p=
  while f; do
    if [ $n -lt $g ]; then
      for s in TERM $h CONT; do
        [ ! "$v" ] || [ $p ] || kill -$s -$w
        for q in $o; do case "$T " in *" $q "*) ;; *) kill -$s $q ;; esac done
      done
      T="$T $o" p=$p${v:+1}
    else
      [ $n -lt $((g+50)) ] || return 1
      kill -9 $v
    fi
    n=$((n+1))
    sleep .1 || sleep 1
  done
}

# Reads what the client asks, and ends everything if nobody asks any more. The shell that is the exec goes by SIGKILL
# then: it may hang in a word to a client that does not read.
L() {
  k=
  while read -r g; do
    [ "$g" != \? ] || {
      W
      [ $w != x ] || {
        echo "$m D" >&3
        K 10
        exit
      }
      continue
    }
    trap '' USR1
    [ ! $k ] || kill -9 $k
    [ $g != q ] || exit 0
    (K $g && echo "$m G" >&3) &
    k=$!
  done
  trap '' USR1
  [ ! $k ] || kill -9 $k
  K 10
  [ $w = x ] || kill -9 $w
}
