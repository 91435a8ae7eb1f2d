"""What runs on the worker: two fixed scripts for a POSIX shell. Paths reach them as arguments, never as text of theirs.

Each says in its first line on stdout what it found and how bytes will be told (`folder tar`, `file cat 12`), so that
one command settles everything. Exit code 3: a refusal, with its reason on stderr. They need `sh`, and `tar` or, for
single files, `cat` and `wc`; to receive also `mkdir`, `mv` and `rm`.
"""

from __future__ import annotations

from atlctl.backends.base import Argv, ExecRequest, Script, as_argv

#: Bytes of the longest first line.
MAX_GREETING = 64

# LC_ALL=C: messages are looked at, and names are bytes.
# GNU tar reads backslashes in the names it is given as escapes: such a file goes by `cat`.
# GNU tar can be told to send a file that has two names twice; others send a link, which is not taken.
# -h follows the one link that was named; inside folders no link is followed.
_SEND = """\
export LC_ALL=C
say() { echo "$1" >&2; exit 3; }
has_tar() { command -v tar >/dev/null 2>&1; }
if [ -d "$1" ]; then
  has_tar || say 'the worker has no tar, and without it only single files are copied'
  echo 'folder tar'
  if tar --hard-dereference --version >/dev/null 2>&1; then exec tar --hard-dereference -cf - -C "$1" .; fi
  exec tar -cf - -C "$1" .
fi
[ -e "$1" ] || say 'no such file or folder'
[ -f "$1" ] || say 'it is neither a file nor a folder'
[ -r "$1" ] || say 'permission denied'
name=${1##*/}
case $name in *\\\\*) ;; *)
  if has_tar; then
    echo 'file tar'
    exec tar -chf - -C "${1%/*}/" "./$name"
  fi
esac
size=$(wc -c <"$1") || say 'the worker has neither tar nor wc'
echo file cat $size
exec cat "$1"
"""

# The archive holds `data`, and `end` behind it: with `end` the stream was whole. The temporary folder lies beside the
# target, on the same disk, so that the last step is a rename; mkdir refuses whatever was planted under its name.
# Workers that share the target's disk do this at once: a folder that another has made meanwhile is merged into
# (`mv -T` fails there, where plain `mv` would move into it).
# The bytes are taken in the background: a shell that is just forking drops a signal which it traps, and the child with
# it (1 in 50 where SIGTERM comes in that moment), and no trap runs before a child in the foreground has ended. A child
# in the background has no stdin but one that is given to it under another number.
_TAKE = """\
export LC_ALL=C
say() { echo "$1" >&2; exit 3; }
way() { echo "${1##*/}: $2 is in its place" >&2; bad=1; }
move() {
  if [ -L "$2" ]; then way "$2" 'a link'
  elif [ -d "$1" ] && [ -d "$2" ]; then merge "$1" "$2"
  elif [ -d "$2" ]; then way "$2" 'a folder'
  elif [ -e "$2" ] && [ -d "$1" ]; then way "$2" 'a file'
  elif [ -e "$2" ] && [ ! -f "$2" ]; then way "$2" 'a special file'
  elif [ -d "$1" ]; then mv $whole -f "$1" "$2" 2>/dev/null || again "$1" "$2"
  else mv $whole -f "$1" "$2" || bad=1; fi
}
again() { if [ -d "$2" ]; then merge "$1" "$2"; else mv $whole -f "$1" "$2" || bad=1; fi; }
merge() {
  for item in "$1"/* "$1"/.[!.]* "$1"/..?*; do
    [ ! -e "$item" ] || move "$item" "$2/${item##*/}"
  done
}
to=$1 name=$2 kind=$3 slash=$4 tag=$5 size=$6 mode=$7 bad= whole= taking= refused=
if [ -d "$to" ]; then
  [ -z "$name" ] || to=${to%/}/$name
elif [ "$kind$slash" = file1 ]; then say 'no such folder'
fi
beside=${to%/*}/
[ ! -d "$to" ] || [ "$kind" = file ] || beside=$to/
[ -d "$beside" ] || say 'the folder to put it in does not exist'
if command -v tar >/dev/null 2>&1; then way_in=tar
elif [ "$kind" = file ]; then way_in=cat
else say 'the worker has no tar, and without it only single files are copied'
fi
tmp=$beside.atlctl-cp.$tag
trap '[ "$refused" ] || rm -rf "$tmp"' EXIT
trap 'kill -9 ${taking:+$!} 2>/dev/null; wait; exit 143' HUP INT TERM
mkdir -m 700 "$tmp" || { refused=1; exit 3; }
mkdir "$tmp/try" && mv -T "$tmp/try" "$tmp/tried" 2>/dev/null && whole=-T
echo "$kind $way_in"
exec 3<&0
taking=1
if [ $way_in = tar ]; then tar -xof - -C "$tmp" <&3 & else cat >"$tmp/data" <&3 & fi
wait $! || exit 3
taking=
if [ $way_in = tar ]; then
  [ -e "$tmp/end" ] || say 'the stream was cut'
else
  [ "$(wc -c <"$tmp/data")" -eq "$size" ] || say 'the stream was cut'
  chmod "$mode" "$tmp/data"
fi
if [ -d "$to" ] && [ "$kind" = folder ] && [ -z "$name" ]; then merge "$tmp/data" "$to"; else move "$tmp/data" "$to"; fi
[ -z "$bad" ] || exit 3
"""


def send_request(path: str) -> ExecRequest:
    """Have the worker send what is at `path`, which begins with `/` or `./`."""
    return ExecRequest(_argv(_SEND, path))


def take_request(path: str, name: str, kind: str, slash: bool, tag: str, size: int, mode: int) -> ExecRequest:
    """Have the worker put what comes on stdin at `path`, or as `name` into it where it is a folder there.

    `kind`: file or folder. `slash`: a file is to lie in a folder that exists. `tag`: makes the temporary name one of
    its own. `size` and `mode` are those of a file.
    """
    words = (path, name, kind, str(int(slash)), tag, str(size), f"{mode & 0o777:o}")
    return ExecRequest(_argv(_TAKE, *words), stdin=True)


def _argv(text: str, *words: str) -> Argv:
    return Argv((*as_argv(Script(text)).words, "atlctl-cp", *words))
