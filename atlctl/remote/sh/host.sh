#!/bin/sh
# Samples a host: load (L), CPUs (C), number of ranks (R), and after a line G the output of nvidia-smi, which is last
# because a driver that hangs must not delay the rest. Arguments: the nvidia-smi query.
read -r l _ </proc/loadavg && echo "L $l"
echo "C `getconf _NPROCESSORS_ONLN 2>/dev/null || grep -c ^processor /proc/cpuinfo`"
(
  . ./ranks.sh
) | sort -u | {
  n=0
  while read -r r; do n=$((n + 1)); done
  echo "R $n"
}
command -v nvidia-smi >/dev/null || exit 0
echo G
timeout 10 "$@" 2>&1
exit 0
