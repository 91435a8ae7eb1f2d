#!/bin/sh
# Runs a Python 3.8 or newer: one in PATH (the distribution's may be old, with another one next to it), else one that a
# process runs, probably a trainer's. Arguments: flags (split at blanks), arguments of "-c". Exits with 3 if there is no
# suitable Python.
#
# The conditions for programs of other processes, with their reasons, are in remote/trust.py, which cannot run without a
# Python. The path is the kernel's, without links. A boot that exits with 97 has read nothing: the next Python is tried.
# shellcheck disable=SC2086  # flags are split
# shellcheck disable=SC3013,SC3067  # -ef and -O: dash, busybox and bash have both
flags=$1
shift
run() {
  "$p" $flags -c "$@"
  code=$?
  case $code in
    97) old="$old $p ($("$p" -V 2>&1))" ;;
    126 | 127) ;;
    *) exit $code ;;
  esac
}
old=''
for p in python3 python3.14 python3.13 python3.12 python3.11 python3.10 python3.9 python3.8 python; do
  command -v "$p" >/dev/null 2>&1 && run "$@"
done
mine() {
  while read -r key ids; do
    case $key in Uid:) [ "$ids" = "${me-$ids}" ]; return ;; esac
  done 2>/dev/null <"$1/status"
  return 1
}
safe() {
  up=$1
  set -- /
  while [ "$up" ]; do set -- "$@" "$up"; up=${up%/*}; done
  all=$(ls -ldn "$@" 2>/dev/null) || return 1
  printf '%s\n' "$all" | while read -r mode _ uid gid _; do
    case $mode in [d-]????w*+) exit 1 ;; [d-]????w*) [ "$gid" = "$uid" ] || [ "$gid" = 0 ] || exit 1 ;; esac
    case $mode in [d-]???????w[tT]*) sticky=1 ;; [d-]???????w*) exit 1 ;; [d-]*) ;; *) exit 1 ;; esac
    [ "$uid" = 0 ] || [ "$uid" = "${me%%[!0-9]*}" ] || foreign=1
    [ -z "$sticky" ] || [ -z "$foreign" ] || exit 1
  done
}
sticky='' foreign='' seen=' ' unsafe=''
mine /proc/self && me=$ids
for d in /proc/[0-9]*; do
  [ -O "$d" ] || continue
  p=$(readlink "$d/exe" 2>/dev/null)
  case ${p##*/} in python*) ;; *) continue ;; esac
  case $seen in *" $p "*) continue ;; esac
  mine "$d" && [ "$p" -ef "$d/exe" ] && mine "$d" || continue
  seen="$seen$p "
  if safe "$p"; then run "$@"; else unsafe="$unsafe $p"; fi
done
echo "no Python 3.8 or newer found${old:+; too old:$old}${unsafe:+; not used, because other users can change it:$unsafe}" >&2
exit 3
