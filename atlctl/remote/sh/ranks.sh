#!/bin/sh
# Prints the global rank of each process started as a rank by a launcher, and of its children: the same processes as
# `rank_of` in remote/ranks.py.
f=/proc/[0-9]*/environ
command -v grep >/dev/null && f=`grep -la LOCAL_RANK= $f 2>/dev/null`
for f in $f; do
  tr '\0' '\n' <"$f" 2>/dev/null | {
    r= l= n=
    while IFS= read -r x; do
      case $x in
        RANK=*) r=${x#*=} ;;
        LOCAL_RANK=*) l=${x#*=} ;;
        WORLD_SIZE=* | MASTER_ADDR=* | TORCHELASTIC_RUN_ID=*) n=1 ;;
      esac
    done
    case $r:$l:$n in
      :* | *::* | *: | *[!0-9:]*) ;;
      *) echo "$r" ;;
    esac
  }
done
exit 0
