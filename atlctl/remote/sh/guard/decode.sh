# shellcheck shell=sh disable=SC2154
# Puts the words of a command together again that come in the form of `printf %b`.
n=$#
while [ $n != 0 ]; do
  a=`printf %b. "$1"`
  shift
  set -- "$@" "${a%.}"
  n=$((n-1))
done
