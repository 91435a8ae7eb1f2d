#!/usr/bin/env bash
# Installs the Debian packages of tests/deps.txt. No daemon is started: the tests start what they need themselves.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")"
PATH=$PATH:/usr/sbin:/sbin

packages=()
while read -r package program; do
  [[ -z $package || $package == '#'* ]] && continue
  command -v "$program" >/dev/null || packages+=("$package")
done <deps.txt

if ((${#packages[@]} == 0)); then
  echo "test-deps: all there"
  exit 0
fi
if ((EUID != 0)); then
  echo "error: missing ${packages[*]}, and only root can install packages" >&2
  echo "hint: sudo make test-deps" >&2
  exit 1
fi

policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then
  trap 'rm -f "$policy"' EXIT
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod 755 "$policy"
fi

export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=300 "${packages[@]}"
