#!/bin/sh
# The first output of the smoke test's agent, from the shell: a busy worker is slow to start Python, but not dead.
# Prints load, runnable processes and CPUs.
count() { cpus=$#; }
count /sys/devices/system/cpu/cpu[0-9]*
load=1 running=1/
read -r load _ _ running _ 2>/dev/null </proc/loadavg
printf '\036{"ev":"alive","load":%s,"running":%s,"cpus":%s}\n' "$load" "${running%%/*}" "$cpus"
