#!/bin/sh
# Shows what a worker's GPUs, CPUs and memory do, again and again.
#
# One command for each worker as long as the view lives: a new one for each look would pay for a connection, the guard and
# a shell each time. The guard ends it with its client. It needs `sh` and `sleep`, and uses what is there of `nvidia-smi`
# and cgroups; everything else is read by the shell itself, so that a look starts two processes.
#
# Two loops, so that an `nvidia-smi` that hangs in the driver stops only what it reports itself.
#
# On stdout, CPU and memory; a line is a letter and numbers as the kernel gives them:
#
#     A LIST CPUS         once: CPUs that this process may use, CPUs of the machine
#     T SECONDS           a sample begins: uptime of the machine
#     S TICKS...          first line of /proc/stat
#     M KIB, F KIB        MemTotal, MemAvailable
#     V 2|1               what follows is of the cgroup, version 2 or 1
#     U BYTES, L BYTES    memory in use, its limit (`max`)
#     I BYTES             of that: file cache that is not in use
#     P COUNT             CPU time used: microseconds (2), nanoseconds (1)
#     Q QUOTA PERIOD      CPU limit (`max`, -1)
#     .                   it ends
#
# On stderr, since it comes from another process at the same time, GPUs:
#
#     N 0|1               there is no nvidia-smi; whether there are GPU devices all the same
#     G FORM              a look begins; which query is used
#     ...                 what nvidia-smi prints
#     E CODE              it ended
#
# Arguments: seconds between two looks, the same as a whole number, samples of CPU and memory (0: no end), looks at GPUs
# (0: no end), where /proc, /sys and /dev are (empty: /), the query of GPUs, two more fields of it of which a driver knows
# one or none, the form of its output.
i=$1 j=$2 n=$3 k=$4 r=$5 f=$6 a=$7 b=$8 o=$9

w() { sleep $i 2>/dev/null || sleep $j 2>/dev/null || exit 9; }

# A sample is one write: each is a message for the client to take. e adds a line to it, v the first line of a file behind
# a letter, s the number behind a name.
e() {
  u="$u$1
"
}
v() {
  x=
  [ -r $2 ] && read -r x y <$2 && e "$1 $x $y"
}
s() {
  while read -r x y z; do
    [ "$x" != $2 ] || {
      e "$1 $y"
      break
    }
  done <$3
}

m() {
  u=
  c=0
  while read -r x y; do
    case $x in
      cpu) ;;
      cpu*) c=$((c + 1)) ;;
      *) break ;;
    esac
  done <$r/proc/stat
  while read -r x y; do
    case $x in
      Cpus_allowed_list:)
        e "A $y $c"
        break
        ;;
    esac
  done <$r/proc/self/status
  # A cgroup of version 2 that has `memory.current` is not the root of a machine: it is a container's. One of version 1
  # has the same files in both; that it is a container's is known by a limit alone, which the reader looks at. With both
  # versions at once (hybrid), version 2 is in a folder of its own.
  d=$r/sys/fs/cgroup g= l=
  if [ -r $d/memory.current ]; then
    g=2
  elif [ -r $d/memory/memory.usage_in_bytes ]; then
    g=1
  elif [ -r $d/unified/memory.current ]; then
    d=$d/unified g=2
  fi
  while :; do
    v T $r/proc/uptime
    read -r x y <$r/proc/stat
    e "S $y"
    s M MemTotal: $r/proc/meminfo
    s F MemAvailable: $r/proc/meminfo
    case $g in
      2)
        e "V 2"
        v U $d/memory.current
        v L $d/memory.max
        s I inactive_file $d/memory.stat
        s P usage_usec $d/cpu.stat
        v Q $d/cpu.max
        ;;
      1)
        e "V 1"
        v U $d/memory/memory.usage_in_bytes
        v L $d/memory/memory.limit_in_bytes
        s I total_inactive_file $d/memory/memory.stat
        v P $d/cpuacct/cpuacct.usage
        read -r q <$d/cpu/cpu.cfs_quota_us && v "Q $q" $d/cpu/cpu.cfs_period_us
        ;;
    esac
    echo "$u."
    u=
    n=$((n - 1))
    [ $n != 0 ] || break
    [ $l ] && w || sleep 1 || exit 9
    l=1
  done
}

g() {
  command -v nvidia-smi >/dev/null 2>&1 || {
    x=0
    [ ! -e $r/dev/nvidia0 ] || x=1
    echo "N $x"
    return
  }
  h=0
  while :; do
    case $h in
      0) t=,$a ;;
      1) t=,$b ;;
      *) t= ;;
    esac
    echo "G $h"
    nvidia-smi $f$t $o 2>&1
    x=$?
    echo
    echo "E $x"
    if [ $x = 2 ] && [ $h -lt 2 ]; then
      h=$((h + 1))
      continue
    fi
    k=$((k - 1))
    [ $k != 0 ] || break
    w
  done
}

g >&2 &
m 2>/dev/null
wait
