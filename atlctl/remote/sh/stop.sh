#!/bin/sh
# Ends training and keeps the container, see backends/kubernetes/stopping.py. Arguments: tenths of a second from SIGTERM
# to SIGKILL; the folder for the note about the command that it ends. The last line, after "atlctl: ", is the result.
g=$1 N=$2 m= r= n=0 T= K=
command -v tr >/dev/null || {
  echo "atlctl: failed the image has no tr"
  exit 3
}
exec 2>/dev/null
read -r me </proc/self/cgroup

# Reads a process: p is its parent.
R() {
  read -r l </proc/$1/stat || return 1
  set -- ${l##*) }
  p=$2
  [ $1 != Z ] && [ $1 != X ]
}

# Whether it belongs to this container.
I() {
  l=
  read -r l </proc/$1/cgroup
  case $l in
    *"/.."*) return 1 ;;
    "$me"*) return 0 ;;
  esac
  return 1
}

# w: its arguments, each between blanks; b: its program.
W() {
  w=" `tr '\0\n\t' '   ' </proc/$1/cmdline` "
  b=${w# }
  b=${b%% *}
  b=${b##*/}
}

# Whether it is part of the training (k: reason).
Q() {
  W $1
  e=" `tr '\0\n\t' '   ' </proc/$1/environ` "
  case $w in *"atlctl: "* | *" -m atlctl "* | *"/atlctl "* | *" atlctl.remote."*) return 1 ;; esac
  case $e in
    *" ATLCTL_EXEC="*) return 1 ;;
    *" TORCHELASTIC_RUN_ID="*)
      k=a
      return 0
      ;;
  esac
  case $b in
    torchrun | accelerate | deepspeed)
      k=a
      return 0
      ;;
    python* | pypy*) ;;
    *) return 1 ;;
  esac
  case $w in
    *"/torchrun "* | *" torch.distributed."[lr]* | *"/torch/distributed/"[lr]*)
      k=a
      return 0
      ;;
    *"/accelerate "* | *" accelerate."* | *"/deepspeed "* | *" deepspeed."*)
      k=a
      return 0
      ;;
    *jupyter* | *ipykernel* | *debugpy* | *code-server* | *tensorboard*) return 1 ;;
  esac
  k=c
}

# t: descendants of r.
G() {
  t=$r o=-
  while [ "$o" != "$t" ]; do
    o=$t
    for i in $x; do
      q=${i%:*}
      case "$t " in
        *" $q "*) ;;
        *" ${i#*:} "*) t="$t $q" ;;
      esac
    done
  done
}

# Scans all processes: x is all of them with their parents, r the roots, u the tops of t. Descendants of a known root
# are not checked again: a check forks `tr` twice, and a worker may have a thousand processes.
V() {
  x= y=$r r= a= c=
  for d in /proc/[0-9]*; do
    q=${d#/proc/}
    [ $q != $$ ] && R $q && I $q || continue
    x="$x $q:$p"
    case "$y " in *" $q "*) r="$r $q" ;; esac
  done
  G
  for i in $x; do
    q=${i%:*}
    case "$t " in
      *" $q "*) ;;
      *) ! Q $q || case $k in a) a="$a $q" ;; c) c="$c $q" ;; esac ;;
    esac
  done
  [ "$m" ] || {
    m=c
    [ ! "$a" ] || m=a
  }
  r="$r$a"
  [ $m = a ] || r="$r$c"
  G
  u=
  for i in $x; do
    q=${i%:*}
    case "$t " in
      *" $q "*)
        case "$t " in
          *" ${i#*:} "*) ;;
          *) u="$u $q" ;;
        esac
        ;;
    esac
  done
}

# Whether it belongs to a command of exec.
X() {
  case " `tr '\0\n\t' '   ' </proc/$1/environ`" in *" ATLCTL_EXEC="*) return 0 ;; esac
  return 1
}

# Checks the first process and its descendants if there is no training: h is set if something only keeps the container,
# O are the programs that may be at work. If pods share their processes, PID 1 belongs to another container: then all
# processes started from outside are checked.
H() {
  r=" 1"
  I 1 || {
    r=
    for i in $x; do
      q=${i%:*}
      [ ${i#*:} != 0 ] || X $q || r="$r $q"
    done
  }
  G
  h= O=
  for q in $t; do
    W $q
    k=
    case " $r " in *" $q "*) k=1 ;; esac
    case $b in
      sh | bash | dash | ash | zsh | ksh | busybox) continue ;;
      tini* | dumb-init | docker-init | catatonit | sshd | python* | pypy*)
        h=$h$k
        continue
        ;;
      sleep | tail | pause)
        case $k$w in
          1* | *" infinity "* | *" -f "* | *" "[1-9][0-9][0-9]* | *[0-9][hd]" "*)
            h=1
            continue
            ;;
        esac
        ;;
    esac
    [ "$k" ] || X $q || O="$O $b"
  done
}

# f: program of PID 1; L: processes of the previous scan.
V
W 1
f=$b
case "$t " in
  *" 1 "*)
    echo "atlctl: first"
    exit
    ;;
esac
[ "$t" ] || {
  H
  [ "$h" ] && [ ! "$O" ] && k=idle || k="none $f$O"
  echo "atlctl: $k"
  exit
}
b=$f
case $b in
  tini | tini-static | dumb-init | docker-init | catatonit)
    for q in $u; do
      R $q
      [ $p != 1 ] || {
        echo "atlctl: first"
        exit
      }
    done
    ;;
esac

# Notes the command for `rerun` (supervisor/inplace.py), if it is a single one.
S=${ATLCTL_STATE_DIR:-${XDG_STATE_HOME:-$HOME/.local/state}/atlctl}/stopped/$N
[ ! "$N" ] || (
  umask 077
  rm -rf "$S"
  [ "$u" = " ${u##* }" ] && mkdir -p "$S" && q=${u# } && cd "$S" || exit
  cat /proc/$q/cmdline >cmdline
  cat /proc/$q/environ >environ
  (cd -P /proc/$q/cwd && pwd -P) >cwd
)
z=0
for q in $t; do z=$((z+1)); done
while [ "$t" ]; do
  if [ $n -lt $g ]; then
    for q in $u; do
      case "$T " in
        *" $q "*) ;;
        *)
          kill -TERM $q
          kill -CONT $q
          T="$T $q"
          ;;
      esac
    done
  elif [ $n -lt $((g+50)) ]; then
    K=killed
    kill -KILL $t
  else
    for q in $t; do
      case "$L " in
        *" $q "*) ;;
        *)
          echo "atlctl: again"
          exit
          ;;
      esac
    done
    echo "atlctl: left$t"
    exit
  fi
  sleep .1 || {
    sleep 1
    n=$((n+9))
  }
  n=$((n+1))
  L=$t
  V
done
case $f in
  sh | bash | dash | ash | zsh | ksh | busybox)
    sleep 1
    V
    [ ! "$t" ] || {
      echo "atlctl: again"
      exit
    }
    ;;
esac
echo "atlctl: ended $z $K"
