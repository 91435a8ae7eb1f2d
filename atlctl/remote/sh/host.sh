#!/bin/sh
# One look at a host: its load (L), its CPUs (C), how many ranks run there (R), and after a line G what nvidia-smi prints.
# A driver that hangs must not keep the rest from being shown, so it is asked last. Arguments: the query of nvidia-smi.
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
