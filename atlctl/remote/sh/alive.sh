#!/bin/sh
# The first word of the smoke test's agent is the shell's: a worker that has too much to do takes long to start a Python,
# and is not a silent one. It shows its load, processes that are ready to run and CPUs.
count() { cpus=$#; }
count /sys/devices/system/cpu/cpu[0-9]*
load=1 running=1/
read -r load _ _ running _ 2>/dev/null </proc/loadavg
printf '\036{"ev":"alive","load":%s,"running":%s,"cpus":%s}\n' "$load" "${running%%/*}" "$cpus"
