#!/bin/sh
# Lists the files that match a pattern. $1: the pattern; unquoted, it is split at newlines and matched, nothing in it is
# run. $2: maximum number of files. Records end in NUL, which no name contains: `f|size|time|checksum of both
# ends|name`, `u|...` not readable, `s|...` not a regular file (never opened), `m|...` there are more, `e|...` the end.
IFS='
'
n=0
for f in $1; do
  if [ -d "$f" ]; then
    continue
  elif [ -f "$f" ]; then
    n=$((n + 1))
    if [ "$n" -gt "$2" ]; then
      printf 'm||||\0'
      break
    fi
    if [ -r "$f" ] && size=$(wc -c <"$f") && ends=$( (head -c 4096 <"$f"; tail -c 4096 <"$f") | cksum); then
      printf 'f|%s|%s|%s|%s\0' "$size" "$(date -r "$f" +%s.%N)" "$ends" "$f"
    else
      printf 'u||||%s\0' "$f"
    fi
  elif [ -e "$f" ]; then
    printf 's||||%s\0' "$f"
  fi
done 2>/dev/null
printf 'e||||\0'
