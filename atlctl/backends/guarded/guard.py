r"""The `sh` text that runs a command in a container, tells how it ended, and ends it when its client is gone.

Kubernetes kills nothing when an exec's client goes away. What does reach the container is the end of the exec's
stdin, however the client died, so a *watcher* reads it beside the command: at its end the command and all that it
started get SIGTERM and, a second later, SIGKILL. Only a network that parts without a word (no FIN, no RST) leaves the
end of stdin to the timeouts of API server and kubelet, which may be hours.

Three texts, for dash, busybox and bash as `sh`:

- `GUARD`: the command reads /dev/null, the watcher the exec's stdin. Four processes: the shell that is the exec, one
  that waits for the command, the watcher, the command.
- `INPUT`, `TERMINAL`: the exec's stdin is the command's. The watcher is a separate exec. With `INPUT` the command
  does not start before the first line of input, which the client sends when the watcher reads: a client that dies
  before that leaves nothing.
- `WATCH`: only the watcher. It also ends what a command left behind after its own end. `LOOK`: says if there is any.

Words for the client go to stderr behind a random mark (on a terminal: to its output), so that they cannot be taken for
the command's own output. S goes to stdout as well, since either stream may overtake the other on its way:

    S PID TIME       the command is about to be started; PID and start time (of /proc) of the exec's first process
    F CODE           it could not be: 126, 127
    X [TEXT] CODE    it ended; CODE as shells give it. TEXT is what the shell says of an end by signal. What the command
                     itself wrote to stderr came before
    E                on stdout: what the command itself wrote to it came before
    D                the shell that is the exec was killed, and how the command ends will not be known: it is ended
    R                the separate watcher reads
    G                nothing of the command is left
    L NUMBER         of a look: 1 if something of the command is left, 0 if not

and to the watcher on its stdin: a number (end it; tenths of a second until SIGKILL), `q` (go, and leave it alone), `?`
(D or no answer).

Who belongs to a command: every process with its mark in the environment (`ATLCTL_EXEC`, the one variable that is
added), every child of those, and every child of the shell that waits. Only processes that are younger than the exec are
looked at, so that a worker with a thousand processes is searched fast. A process that cleans its environment and loses
its parents is not found.

Shells turn a death by signal N into 128 + N. That it *was* a signal is proven by what they say besides: dash and
busybox name the signal of a foreground child (not SIGINT and SIGPIPE), bash in `jobs`. In the background of dash the
command would ignore SIGINT, and so it would in that of a bash with a trap on EXIT: there a file of no known format has
"ended with 126", not "never run". busybox itself lets its children ignore SIGQUIT.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

# f finds what is left. v: all of it, o: those outside of the exec's process group, a: the shells that wait for it, one
# of which may be about to start it.
# One `grep` reads the stat of all processes, one the environments of those that it may be about: byte by byte, as a
# shell reads, or with a process for each it takes long where they are many. Environments of processes that are older
# than the exec are left alone: to read that of a hung one may hang. Not `grep -F`: in some builds of busybox it sees
# nothing behind the first NUL. The mark reads the same as a pattern.
# W sets w to x once the shell that is the exec has gone.
# K ends it, $1 tenths of a second after SIGTERM by SIGKILL. Signals go to the whole group at once, since a child that
# is just being forked cannot escape that; each process outside gets its own, once, so that a handler may clean up
# with new processes. L reads what the client asks, and ends everything where nobody asks any more. The shell that is
# the exec goes by SIGKILL then: it may hang in a word to a client that does not read.
_WATCHER = r"""command -v grep>/dev/null||grep(){ g=$1$2;shift 2
for d;do case $g in -aH.)
while read -r l;do echo "$d:$l";done<$d;;*)case `tr '\0' ' '<$d` in *$m*)echo $d;;esac;;esac;done;}
W(){ read -r l </proc/$w/stat&&set -- ${l##*) }&&[ $1 != Z ]&&[ ${20} = $t ]||w=x;}
f(){ v= o= a= b= e=-
W
case $h$w in HUPx|[!H]*);;*)v=" $w" o=$w;;esac
while [ "$e" != "$a$v$b" ];do e=$a$v$b c=
s=`grep -aH . /proc/[0-9]*/stat`
set -f;IFS='
'
for l in $s;do unset IFS
d=${l%%/s*} q=${d#/proc/} l=${l#*) }
case "$a$v $w $y " in *" $q "*)continue;;esac
case $l in *\)*)l=${l##*) };;esac
set -- $l
[ $1 != Z ]&&[ ${20} -ge $t ]||continue
case "$a$v $b" in *" $2 "*|*$d/e*)v="$v $q";[ $3 = $w ]||o="$o $q";;*)
if [ $2 = $w ];then a="$a $q";else c="$c $d/environ";fi;;esac
done
set +f;unset IFS
b=$b`[ ! "$c" ]||grep -l $m $c`
done;[ "$v$a" ];}
K(){ g=$1 n=0 T= p=
while f;do
if [ $n -lt $g ];then
for s in TERM $h CONT;do [ ! "$v" ]||[ $p ]||kill -$s -$w
for q in $o;do case "$T " in *" $q "*);;*)kill -$s $q;esac;done;done
T="$T $o" p=$p${v:+1}
else
[ $n -lt $((g+50)) ]||return 1
kill -9 $v;fi
n=$((n+1));sleep .1||sleep 1
done;}
L(){ k=
while read -r g;do
[ "$g" != \? ]||{ W;[ $w != x ]||{ echo "$m D">&3;K 10;exit;};continue;}
trap '' USR1
[ ! $k ]||kill -9 $k
[ $g != q ]||exit 0
(K $g&&echo "$m G">&3)&k=$!
done
trap '' USR1
[ ! $k ]||kill -9 $k
K 10;[ $w = x ]||kill -9 $w;}
"""

_BEGIN = r"""m=$1;shift
case $1 in */*)c=126;[ ! -x "$1" ]||[ -d "$1" ]||c=0;[ -e "$1" ]||c=127;;*)c=127;command -v "$1">/dev/null&&c=0;esac
[ $c = 0 ]||{ echo "$m F $c">&2;exit $c;}
read -r l </proc/$$/stat
P(){ t=${20};}
P ${l##*) };w=$$
trap : TERM INT HUP
"""

# Descriptors: 3 the exec's stderr, 4 its stdin, 5 its stdout, 6 the command's stdin. What the shell itself says, of
# signals or of R's end, must not get to stderr.
_RUN = r"""C(){ trap - TERM HUP;[ $BASH_VERSION ]||trap 'echo F' 0
export ATLCTL_EXEC=$m;exec "$@" <&6 >&5 2>&3 3>&- 4<&- 5>&- 6<&-;}
x=$(exec 2>&1;trap '' TERM HUP;s="$m S $w $t";echo "$s">&5;echo "$s">&3
[ ! $i ]||read -r s<&6||exit
if [ $BASH_VERSION ];then trap 'LC_ALL=C jobs %%' CHLD
(C "$@")<&6&LC_ALL=C jobs %%;while kill -0 $! 2>&-;do wait $!;done;wait $!;else (C "$@");fi
echo $?)
set -f;echo "$m X" $x>&3;echo "$m E">&5
x=${x##*[!0-9]}
"""

#: Arguments: mark, words of the command.
GUARD = (
    _BEGIN
    + r"""exec 3>&2 4<&0 5>&1 6</dev/null 2>/dev/null
i=
"""
    + _WATCHER
    + r"""(trap '' TERM INT HUP;h=;read -r y l </proc/self/stat;L)<&4 >&- 5>&- &r=$!
"""
    + _RUN
    # Without a code the command may still run: the watcher ends it when the client has heard so and is gone.
    + r"""[ ! $x ]||kill -USR1 $r;wait $r;exit ${x:-125}"""
)

#: Arguments: mark, words of the command.
INPUT = (
    _BEGIN
    + r"""exec 3>&2 5>&1 6<&0 2>/dev/null
i=1
"""
    + _RUN
    + r"""exit ${x:-125}"""
)

#: Arguments: mark, value of TERM, rows, columns, words of the command, which takes the place of the shell. The size is
#: set here as well, since the client's first message of it may come after the command has asked.
TERMINAL = (
    r"""export TERM="$2" ATLCTL_EXEC="$1"
stty rows $3 cols $4 2>/dev/null
"""
    + _BEGIN.replace("m=$1;shift", "m=$1;shift 4").replace("trap : TERM INT HUP\n", "")
    + r"""echo "$m S $w $t"
exec "$@"
"""
)

#: Arguments: mark, PID and start time of the exec's first process, `HUP` where that is the command itself (terminal).
WATCH = (
    r"""m=$1 w=$2 t=$3 h=$4 y=$$ k=
exec 3>&2 2>/dev/null
trap '' TERM INT HUP
echo "$m R">&3
"""
    + _WATCHER
    + "L"
)

#: Arguments: mark, PID and start time of the exec's first process.
LOOK = (
    r"""m=$1 w=$2 t=$3 h= y=$$
exec 3>&2 2>/dev/null
"""
    + _WATCHER.partition("K(){")[0]
    + """f&&g=1||g=0;echo "$m L $g">&3"""
)

#: Puts the words of a command together again that come as `escaped`.
_DECODE = r"""n=$#
while [ $n != 0 ];do a=`printf %b. "$1"`;shift;set -- "$@" "${a%.}";n=$((n-1));done
"""


def escaped(words: Sequence[bytes], *, always: bool = False) -> list[str] | None:
    """Words of which one is no UTF-8, which runtimes refuse, in the form of `printf %b`; None where all are UTF-8."""
    try:
        for word in words:
            word.decode()
    except UnicodeDecodeError:
        always = True
    if always:
        return ["".join(chr(byte) if byte in _PLAIN else f"\\0{byte:03o}" for byte in word) for word in words]
    return None


def decoding(text: str) -> str:
    """One of the texts for a command, made to take words that are `escaped`."""
    begin, end, rest = text.partition("\ncase $1 in */*)")
    return begin + "\n" + _DECODE + end.lstrip() + rest


def carried(text: str, words: Sequence[bytes], *, always: bool = False) -> tuple[str, list[str]]:
    """One of the texts for a command, and its words, in a form that transports of UTF-8 alone carry as they are; with
    `always` in a form with single backslashes alone, which login shells of any kind leave alone between quotes."""
    plain = escaped(words, always=always)
    return (text, [word.decode() for word in words]) if plain is None else (decoding(text), plain)


_PLAIN = frozenset(range(0x20, 0x7F)) - frozenset(b"\\'%!")

#: The begin of every mark. Its first character is not in the rest, see `Words`.
_MARK = "@atlctl-"
#: Characters of a line of the wrapper; what is longer is none.
_LINE_LIMIT = 400
#: What the shells say of an end that was none by signal.
_BY_ITSELF = re.compile(r"\b(?:Done|Exit)\b|\([0-9]{1,3}\)")
#: What bash says of a child that has not ended, and where it was asked too late.
_RUNS = re.compile(r"\bRunning\b")
_TOO_LATE = re.compile(r"\S{1,100}: line [0-9]{1,9}: jobs: %%: no such job")
#: Where bash begins to speak of a child.
_CHILD = re.compile(r"(?=\[[0-9]{1,3}\][+-]? )")


def new_mark() -> str:
    """A mark that no output holds by chance."""
    return _MARK + secrets.token_hex(8)


@dataclass(frozen=True, slots=True)
class Ending:
    """How the command ended: its code as shells give it, the signal where one is proven; or that it never ran."""

    code: int
    signal: int | None
    never_ran: bool = False


def ending(text: str) -> Ending | None:
    """What follows X. None where the shell that waited was itself ended, and nothing is known."""
    said, _, last = text.rpartition(" ")
    if not (last.isascii() and last.isdigit() and len(last) < 4):
        return None
    code = int(last)
    if said == "F":
        return Ending(code, None, never_ran=True)
    ends = [part for part in _CHILD.split(_TOO_LATE.sub("", said)) if part.strip() and not _RUNS.search(part)]
    signalled = code > 128 and bool(ends) and not _BY_ITSELF.search(ends[-1])
    return Ending(code, code - 128 if signalled else None)


class Words:
    """Takes the wrapper's words out of a stream of the command's output."""

    def __init__(self, mark: str) -> None:
        self._mark = mark.encode() + b" "
        self._held = b""

    def feed(self, data: bytes) -> tuple[bytes, list[str]]:
        """The command's own bytes, and whole words. What may be the begin of a word is held back."""
        if self._held:
            data, self._held = self._held + data, b""
        mark = self._mark
        at = data.find(mark)
        words: list[str] = []
        own = b""
        while at >= 0:
            end = data.find(b"\n", at, at + _LINE_LIMIT)
            if end < 0:
                if len(data) - at < _LINE_LIMIT:
                    self._held = data[at:]
                    return own + data[:at], words
                break
            words.append(data[at + len(mark) : end].decode("ascii", "replace").strip())
            own += data[:at]
            data = data[end + 1 :]
            at = data.find(mark)
        keep = self._begun(data)
        if keep:
            self._held = data[-keep:]
            data = data[:-keep]
        return (own + data if own else data), words

    def rest(self) -> bytes:
        """What was held back, at the end of the stream. A word of the wrapper that was cut is not output."""
        held, self._held = self._held, b""
        return held if len(held) <= len(_MARK) else b""

    def _begun(self, data: bytes) -> int:
        """How many bytes at the end of `data` may be the begin of a mark."""
        at = data.rfind(self._mark[:1], max(0, len(data) - len(self._mark) + 1))
        return len(data) - at if at >= 0 and self._mark.startswith(data[at:]) else 0
