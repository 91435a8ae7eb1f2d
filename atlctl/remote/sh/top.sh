#!/bin/sh
# Samples a worker's GPUs, CPUs and memory repeatedly.
#
# One command per worker for the whole view: a new one per sample would cost a connection, the guard and a shell each
# time. The guard ends it with its client. It needs `sh` and `sleep`, and uses `nvidia-smi` and cgroups if available;
# the shell reads everything else, so a sample starts two processes.
#
# Two loops, so that an `nvidia-smi` that hangs in the driver delays only the GPUs.
#
# On stdout, CPU and memory; each line is a letter and the kernel's numbers:
#
#     A LIST CPUS         once: CPUs that this process may use, CPUs of the machine
#     T SECONDS           start of a sample: uptime of the machine
#     S TICKS...          first line of /proc/stat
#     M KIB, F KIB        MemTotal, MemAvailable
#     V 2|1               the following lines are from the cgroup, version 2 or 1
#     U BYTES, L BYTES    memory in use, its limit (`max`)
#     I BYTES             inactive file cache in it
#     P COUNT             CPU time used: microseconds (2), nanoseconds (1)
#     Q QUOTA PERIOD      CPU limit (`max`, -1)
#     .                   end of the sample
#
# On stderr, GPUs, because another process writes them at the same time:
#
#     N 0|1               nvidia-smi not found; whether there are GPU devices
#     G FORM              start of a sample; which query is used
#     ...                 output of nvidia-smi
#     E CODE              exit code of nvidia-smi
#
# Arguments: seconds between samples, the same as an integer, number of CPU and memory samples (0: unlimited), number of
# GPU samples (0: unlimited), prefix of /proc, /sys and /dev (empty: /), the GPU query, two additional fields of which a
# driver knows one or none, the output format.
i=$1 j=$2 n=$3 k=$4 r=$5 f=$6 a=$7 b=$8 o=$9

w() { sleep $i 2>/dev/null || sleep $j 2>/dev/null || exit 9; }

# A sample is one write, so the client receives it as one message. e adds a line, v the first line of a file after a
# letter, s the number after a name.
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
  # A version 2 cgroup with `memory.current` is a container's, not the root of a machine. A version 1 cgroup has the
  # same files in both; only a limit shows that it is a container's, which the reader checks. With both versions
  # (hybrid), version 2 is in a separate folder.
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
