"""Ends the training in pods that stay: a POSIX `sh` script that runs in each worker.

It finds the training by `/proc`: launchers (torchrun and its like) by their words, processes of torchelastic by its
variables, and what descends from them. Only where there is neither, every Python is the training, but for those that
serve people (Jupyter, debuggers, atlctl itself). SIGTERM goes to the topmost of each tree, since launchers pass it on,
and to what is left topmost when those are gone; after the grace period SIGKILL goes to all that is left.

Never signalled: PID 1, commands of `atlctl exec`, processes of another control group (another container). Where the
training is PID 1, or the child that an init of containers waits for, its end would be the container's: nothing is
done then. Processes of another user show their words, but not their variables, and cannot be signalled.

If no training is found, what PID 1 does decides: an init, a server or a script that only holds the container (`sleep
10000`) has nothing left to end; a shell or a program that goes on with something else may be the training itself, and
is reported as not stopped. So is training that a loop in PID 1 starts again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from atlctl.backends.base import (
    Argv,
    ExecRequest,
    Executor,
    Exited,
    FailedToStart,
    Lost,
    Output,
    StopResult,
)
from atlctl.jobs.model import Worker

#: Workers in which the script runs at once.
AT_ONCE = 64
#: Seconds beyond the grace period that a worker has: for the start, and for SIGKILL to take effect.
SLACK = 20.0
_SAID = 4096

# R reads a process: p its parent. I: whether it is of this container. W: its words, a blank around each, and b its
# program. Q: whether it is part of the training (k: why). G: t is what descends from r.
# H looks at the first process and what is below it where there is no training: h is set if something only holds the
# container, O are the programs that may be at work. PID 1 is another container's where pods share their processes: then
# all that came from outside is looked at. X: a process of a command of exec. f is the program of PID 1. L is what was
# there one look before.
# V looks at all processes: x is all of them with their parents, r roots, u the topmost of t. What descends from a known
# root is not asked again: asking costs two forks of `tr`, and a worker may have a thousand processes.
SCRIPT = r"""g=$1 m= r= n=0 T= K=
command -v tr >/dev/null||{ echo "atlctl: failed the image has no tr";exit 3;}
exec 2>/dev/null
read -r me </proc/self/cgroup
R(){ read -r l </proc/$1/stat||return 1;set -- ${l##*) };p=$2;[ $1 != Z ]&&[ $1 != X ];}
I(){ l=;read -r l </proc/$1/cgroup;case $l in *"/.."*)return 1;;"$me"*)return 0;;esac;return 1;}
W(){ w=" `tr '\0\n\t' '   ' </proc/$1/cmdline` ";b=${w# };b=${b%% *};b=${b##*/};}
Q(){ W $1;e=" `tr '\0\n\t' '   ' </proc/$1/environ` "
case $w in *"atlctl: "*|*" -m atlctl "*|*"/atlctl "*)return 1;;esac
case $e in *" ATLCTL_EXEC="*)return 1;;*" TORCHELASTIC_RUN_ID="*)k=a;return 0;;esac
case $b in torchrun|accelerate|deepspeed)k=a;return 0;;python*|pypy*);;*)return 1;;esac
case $w in *"/torchrun "*|*" torch.distributed."[lr]*|*"/torch/distributed/"[lr]*)k=a;return 0;;
*"/accelerate "*|*" accelerate."*|*"/deepspeed "*|*" deepspeed."*)k=a;return 0;;
*jupyter*|*ipykernel*|*debugpy*|*code-server*|*tensorboard*)return 1;;esac
k=c;}
G(){ t=$r o=-
while [ "$o" != "$t" ];do o=$t
for i in $x;do q=${i%:*}
case "$t " in *" $q "*);;*" ${i#*:} "*)t="$t $q";;esac
done;done;}
V(){ x= y=$r r= a= c=
for d in /proc/[0-9]*;do q=${d#/proc/}
[ $q != $$ ]&&R $q&&I $q||continue
x="$x $q:$p"
case "$y " in *" $q "*)r="$r $q";;esac
done
G
for i in $x;do q=${i%:*}
case "$t " in *" $q "*);;*)! Q $q||case $k in a)a="$a $q";;c)c="$c $q";;esac;;esac
done
[ "$m" ]||{ m=c;[ ! "$a" ]||m=a;}
r="$r$a";[ $m = a ]||r="$r$c"
G;u=
for i in $x;do q=${i%:*}
case "$t " in *" $q "*)case "$t " in *" ${i#*:} "*);;*)u="$u $q";;esac;;esac
done;}
X(){ case " `tr '\0\n\t' '   ' </proc/$1/environ`" in *" ATLCTL_EXEC="*)return 0;;esac;return 1;}
H(){ r=" 1"
I 1||{ r=
for i in $x;do q=${i%:*};[ ${i#*:} != 0 ]||X $q||r="$r $q";done;}
G;h= O=
for q in $t;do W $q;k=
case " $r " in *" $q "*)k=1;;esac
case $b in sh|bash|dash|ash|zsh|ksh|busybox)continue;;
tini*|dumb-init|docker-init|catatonit|sshd|python*|pypy*)h=$h$k;continue;;
sleep|tail|pause)case $k$w in 1*|*" infinity "*|*" -f "*|*" "[1-9][0-9][0-9]*|*[0-9][hd]" "*)h=1;continue;;esac;;esac
[ "$k" ]||X $q||O="$O $b"
done;}
V
W 1;f=$b
case "$t " in *" 1 "*)echo "atlctl: first";exit;;esac
[ "$t" ]||{ H;[ "$h" ]&&[ ! "$O" ]&&k=idle||k="none $f$O";echo "atlctl: $k";exit;}
b=$f
case $b in tini|tini-static|dumb-init|docker-init|catatonit)
for q in $u;do R $q;[ $p != 1 ]||{ echo "atlctl: first";exit;};done;;esac
z=0;for q in $t;do z=$((z+1));done
while [ "$t" ];do
if [ $n -lt $g ];then
for q in $u;do case "$T " in *" $q "*);;*)kill -TERM $q;kill -CONT $q;T="$T $q";;esac;done
elif [ $n -lt $((g+50)) ];then K=killed;kill -KILL $t
else for q in $t;do case "$L " in *" $q "*);;*)echo "atlctl: again";exit;;esac;done
echo "atlctl: left$t";exit;fi
sleep .1||{ sleep 1;n=$((n+9));}
n=$((n+1));L=$t;V
done
case $f in sh|bash|dash|ash|zsh|ksh|busybox)sleep 1;V;[ ! "$t" ]||{ echo "atlctl: again";exit;};;esac
echo "atlctl: ended $z $K"
"""


def request(grace: float) -> ExecRequest:
    """What runs in a worker; `grace` in seconds."""
    return ExecRequest(Argv(("sh", "-c", SCRIPT, "sh", str(max(0, round(grace * 10))))))


def read(worker: str, said: bytes) -> StopResult | None:
    """The script's last word, None where there is none."""
    for line in reversed(said.decode("utf-8", "replace").splitlines()):
        word, _, rest = line.removeprefix("atlctl: ").partition(" ")
        if not line.startswith("atlctl: "):
            continue
        match word:
            case "first":
                why = "its training is the container's first process: its end would be the container's"
                return StopResult(worker, "not-stopped", reason=why)
            case "again":
                why = "its first process, or a script below it, starts the training again as soon as it is ended"
                return StopResult(worker, "not-stopped", reason=why)
            case "idle":
                return StopResult(worker, "already-ended")
            case "none":
                return StopResult(worker, "not-stopped", reason=_unknown(rest.split()))
            case "ended":
                count, _, killed = rest.partition(" ")
                number = int(count) if count.isascii() and count.isdigit() and len(count) < 8 else 0
                return StopResult(worker, "killed" if killed.strip() else "terminated", number)
            case "left":
                left = rest.split()
                why = f"{len(left)} processes outlive SIGKILL or belong to another user: {' '.join(left[:8])}"
                return StopResult(worker, "not-stopped", len(left), why)
            case "failed":
                return StopResult(worker, "not-stopped", reason=rest)
    return None


def _unknown(programs: Sequence[str]) -> str:
    """Why nothing was ended. `programs`: the first process, then those below it that may be at work."""
    first, below = "".join(programs[:1]), list(dict.fromkeys(programs[1:]))[:8]
    why = f"no launcher and no Python was found, and the end of the first process ({first}) would be the container's"
    return f"{why}; running below it: {', '.join(below)}" if below else why


async def end(executor: Executor, workers: Sequence[Worker], grace: float) -> list[StopResult]:
    """Run the script in all `workers`, some at a time; one result for each, in their order."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(worker: Worker) -> StopResult:
        async with gate:
            try:
                async with asyncio.timeout(grace + SLACK):
                    return await _in(executor, worker, grace)
            except TimeoutError:
                return StopResult(worker.name, "not-stopped", reason="no answer in time")

    return list(await asyncio.gather(*map(one, workers)))


async def _in(executor: Executor, worker: Worker, grace: float) -> StopResult:
    execution = executor.run(worker, request(grace))
    said = bytearray()
    reason = "the script said nothing"
    try:
        async for event in execution:
            if isinstance(event, Output):
                said = (said + event.data)[-_SAID:]
            elif isinstance(event, Lost | FailedToStart):
                reason = event.reason
            elif isinstance(event, Exited) and event.exit_code:
                reason = f"the script ended with exit code {event.exit_code}"
            elif isinstance(event, Exited) and event.signal:
                reason = f"the script was ended by signal {event.signal}"
    finally:
        await execution.aclose()
    return read(worker.name, bytes(said)) or StopResult(worker.name, "not-stopped", reason=reason)
