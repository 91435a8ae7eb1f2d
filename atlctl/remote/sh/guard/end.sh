# shellcheck shell=sh disable=SC2154
# Ends the rest of a command when the client requests it or has gone. In: as find.sh; descriptor 3 for messages.

# Sends SIGTERM, and SIGKILL $1 tenths of a second later. Signals go to the whole group at once, so that a child being
# forked cannot escape; each process outside the group gets its own, once, so that a handler may start processes to
# clean up.
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

# Reads the client's requests, and ends everything when the client has gone. The exec's shell is then killed by SIGKILL:
# it may be blocked writing to a client that does not read.
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
