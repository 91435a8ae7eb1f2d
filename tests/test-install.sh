#!/usr/bin/env bash
# Installs the package as the README says: as the one executable file, and with pip into empty environments, alone and
# with the extra `smoke`. It runs there what the README promises, far from the checkout. (`make test` is the test of the
# extra `dev`, and runs from it.) pip is asked as the user has set it up. Three minutes if its cache has all wheels.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

scratch=$(mktemp -d)
venv=
trap 'tidy; rm -rf "$scratch"' EXIT
mkdir "$scratch/source" "$scratch/user"
echo 'ValueError: bad magic' >"$scratch/user/train.log"
# A build beside the sources would leave a folder there, which the next build takes along.
cp -R pyproject.toml README.md LICENSE atlctl completions docs "$scratch/source"
# The release of PyTorch that the tests use, and no newer one.
sed -n 's/^ *"\(torch==[^"]*\)",$/\1/p' pyproject.toml >"$scratch/torch.txt"
grep -q torch== "$scratch/torch.txt"

fail() {
  echo "error: $*" >&2
  [[ ! -e $scratch/said ]] || cat "$scratch/said" >&2
  exit 1
}

# run COMMAND...: far from the checkout, without anything of the user's.
run() {
  (cd -- "$scratch/user" && exec env -i HOME="$PWD" PATH="$venv/bin:/usr/bin:/bin" LANG=C.UTF-8 "$@")
}

# tidy: ends what a failed check has left running.
tidy() {
  local job
  for job in $(run atlctl jobs -o name 2>/dev/null); do
    run atlctl stop --yes "$job" >/dev/null 2>&1 || true
  done
}

# gives CODE TEXT COMMAND...: the command ends with CODE, and TEXT is in what it prints.
gives() {
  local code=0 wanted=$1 text=$2
  shift 2
  run "$@" >"$scratch/said" 2>&1 </dev/null || code=$?
  ((code == wanted)) || fail "[$venv] '$*' ended with $code, not with $wanted:"
  grep -qF -- "$text" "$scratch/said" || fail "[$venv] '$*' does not print '$text':"
}

# fresh NAME REQUIREMENT: what is installed in an environment of its own.
fresh() {
  "${PYTHON:-python3}" -m venv "$scratch/$1"
  "$scratch/$1/bin/python" -m pip install -qq --constraint "$scratch/torch.txt" "$2"
  promised "$1"
}

# promised NAME: what the README promises of every way to install, of the one in the folder NAME.
promised() {
  venv=$scratch/$1
  gives 0 "atlctl " atlctl --version
  gives 0 "Usage: atlctl " atlctl --help
  gives 0 "ok    packages" atlctl doctor
  gives 0 "try" atlctl local run --name try --workers 2 --detach -- sh -c 'echo "worker $RANK"; sleep 600'
  gives 0 "worker-1  Running" atlctl ps try
  gives 0 "worker-1: 1" atlctl exec -j try --all -- sh -c 'echo $RANK'
  gives 0 "worker-1: worker 1" atlctl logs try
  gives 0 "roll-call" atlctl smoke try --net-only
  gives 0 "ended after SIGTERM: worker-[0-1]" atlctl stop try --yes
  gives 0 "try" atlctl local rm try --yes
  gives 0 "ValueError: bad magic" atlctl errors --from train.log
}

begun=$SECONDS
if command -v "${CC:-cc}" >/dev/null; then
  .venv/bin/python -m atlctl.packaging executable "$scratch/dist" >/dev/null
  mkdir -p "$scratch/executable/bin"
  mv "$scratch"/dist/atlctl-*-linux-"$(uname -m)" "$scratch/executable/bin/atlctl"
  promised executable
else
  echo "test-install: no C compiler: the executable file is left out"
fi
fresh base "$scratch/source"
gives 1 "error: the demo trains with PyTorch, which is not installed" atlctl demo
hint=$(sed -n 's/^hint: //p' "$scratch/said")
eval "$hint -qq --dry-run --constraint $scratch/torch.txt" || fail "what the hint says to do fails: $hint"
fresh smoke "$scratch/source[smoke]"
gives 0 "Right: rank" atlctl demo
grep -q 'where .*/train.py:[0-9]* in load_batch' "$scratch/said" || fail "the demo does not show where it failed:"
echo "test-install: all as promised, in $((SECONDS - begun)) s"
