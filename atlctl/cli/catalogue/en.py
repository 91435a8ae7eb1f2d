"""English texts."""

TEXTS = {
    "label.usage": "Usage: ",
    "label.examples": "Examples:",
    "label.commands": "Commands:",
    "label.arguments": "Arguments:",
    "label.options": "Options:",
    "label.shared": "Options of every command:",
    "label.default": " (default: {value})",
    "atlctl.summary": "See, run, diagnose and stop distributed PyTorch training jobs.",
    "atlctl.text": "'atlctl COMMAND -h' explains a command. The options below are accepted before and after its name.",
    "atlctl.examples": """\
atlctl jobs                        # which jobs there are
atlctl errors train-7              # why the job failed, and which worker failed first
atlctl exec --all nvidia-smi       # one command on every worker of the current job
atlctl demo                        # all of it on a real job on this machine""",
    "jobs.summary": "List jobs: kind, name, state, workers ready and expected, GPUs, age.",
    "jobs.examples": """\
atlctl jobs
atlctl jobs -o name                # names only, for scripts
atlctl jobs -o json""",
    "ps.summary": "List the workers of a job: index, node rank, state and reason, host, age. Missing ones by number.",
    "ps.text": "Also spelled 'atlctl workers'.",
    "ps.examples": """\
atlctl ps train-7
atlctl ps train-7 --failed -o wide
atlctl ps train-7 --watch""",
    "exec.summary": "Run a command on the selected workers at once.",
    "exec.text": (
        "Options end at the first word of CMD, which gets its own options untouched. Exit code: the command's where "
        "one worker is selected; of several 255 if any was lost, else 124 if any timed out, else the highest."
    ),
    "exec.examples": """\
atlctl exec --all nvidia-smi -L
atlctl exec -j train-7 -w 0,2-5 -- ps -ef
atlctl exec --failed --gather dmesg            # equal outputs folded into one
atlctl exec --all -- sh -c 'df -h /data | tail -1'
atlctl exec -w 3 -i -- python3 - < probe.py    # with standard input""",
    "shell.summary": "Open an interactive shell in one worker.",
    "shell.examples": """\
atlctl shell worker-3
atlctl shell -j train-7 0""",
    "logs.summary": "Show the logs of many workers, merged by time, with a prefix for each.",
    "logs.examples": """\
atlctl logs train-7 -f
atlctl logs train-7 -w 0-3 --tail 100
atlctl logs train-7 --since 10m --grep 'loss|nan'""",
    "events.summary": "Show the events of a job, its pods and their nodes, oldest first.",
    "events.examples": """\
atlctl events train-7
atlctl events train-7 -o json""",
    "errors.summary": "Tell the root cause of a failure: which worker and rank failed first, why, with the evidence.",
    "errors.examples": """\
atlctl errors train-7
atlctl errors train-7 --exit-code || notify          # exit code 1 where a failure was found
atlctl errors train-7 --log-path '/logs/*.log'       # files inside the workers, too
atlctl errors --from saved/                          # logs that were saved: WORKER.log, error files
kubectl logs -l app=train --prefix --tail=-1 | atlctl errors --from -""",
    "record.summary": "Follow a job's logs, states and events to disk; tell the root cause at its end.",
    "record.text": (
        "Started with the job, it keeps what a platform deletes within seconds of a failure. Started again, it goes on "
        "where it ended; 'atlctl errors JOB' finds what it has kept. A job that does not exist yet is waited for."
    ),
    "record.examples": """\
atlctl record train-7
atlctl record train-7 --out /shared/train-7 --keep-mib 256
atlctl record train-7 --on-failure 'notify "$ATLCTL_FAILED_WORKERS failed: $ATLCTL_RECORDING"'""",
    "report.summary": "Collect everything that tells why a job failed, in one folder or archive with a page to read.",
    "report.text": (
        "The evidence of a job, or of saved logs, with secrets hidden, the verdict, and an index.html that stands "
        "alone. 'atlctl errors --from' reads the folder again. Nothing is overwritten, and nothing is tested."
    ),
    "report.examples": """\
atlctl report train-7
atlctl report train-7 --out train-7.tar.gz --smoke smoke.json
atlctl report --from saved/""",
    "stacks.summary": "Show what every rank is doing right now: equal stacks folded, the odd one first.",
    "stacks.text": (
        "Reads /proc in the workers over two seconds, and Python stacks where torch's worker server or py-spy gives "
        "them. No process is stopped. Names the rank that the others wait for, and how sure that is."
    ),
    "stacks.examples": """\
atlctl stacks train-7
atlctl stacks train-7 --with-pyspy                   # brings py-spy along, leaves nothing behind
atlctl stacks train-7 --repeat -o json
atlctl stacks train-7 -w 3 -v                        # every Python thread""",
    "smoke.summary": "Test workers, network, storage and GPUs in seconds: which node, link, mount, GPU or rank is bad.",
    "smoke.text": (
        "Nothing is installed on the workers: a program is sent to a Python that is there, and leaves no trace. With "
        "torch it also tests GPUs, collectives and DDP. While a training runs it keeps to facts, network and storage."
    ),
    "smoke.examples": """\
atlctl smoke train-7
atlctl smoke train-7 --net-only                      # facts and network alone, beside a training too
atlctl smoke train-7 --tier standard --mount /data
atlctl smoke train-7 --gpus worker-1:0,2 -o json
atlctl smoke train-7 --print-torchrun                # the torchrun command that the workers' environment asks for""",
    "cp.summary": "Copy files and folders to or from workers.",
    "cp.text": (
        "One side is WORKER:PATH, or :PATH for the selected workers; from several each gets a folder of its own in "
        "DST. As with cp, an existing folder as DST takes the source into it. Links are not copied."
    ),
    "cp.examples": """\
atlctl cp worker-0:/tmp/core.1 .
atlctl cp ./fix.py worker-3:/tmp/
atlctl cp -j train-7 --all ./conf :/etc/conf   # to every worker
atlctl cp --all :/logs ./logs                  # from each into ./logs/NAME/""",
    "stop.summary": "Stop a job: show the plan, ask, save its logs, end its workers.",
    "stop.text": (
        "Jobs of a cluster are suspended where their kind can be, and 'atlctl resume' takes it back; their logs are "
        "saved first. Without a terminal nothing is asked, --yes is needed. A job that has ended is left as it is."
    ),
    "stop.examples": """\
atlctl stop train-7
atlctl stop train-7 --dry-run
atlctl stop train-7 --yes --out /shared/train-7
atlctl stop train-7 --keep-pods                # end the training, keep pods and GPUs
atlctl stop train-7 --delete --no-save""",
    "resume.summary": "Start a suspended job again: show the plan, ask, take the stop back.",
    "resume.examples": """\
atlctl resume train-7
atlctl resume train-7 --dry-run""",
    "local.summary": "Jobs on this machine: real process groups with the platform's environment.",
    "local.examples": """\
atlctl local run --workers 4 -- python3 "$PWD/train.py"
atlctl local rm train-7""",
    "local.run.summary": "Start a job on this machine.",
    "local.run.text": (
        "Every worker is a process group with MASTER_ADDR, MASTER_PORT, WORLD_SIZE (number of workers) and RANK (this "
        "worker's index) set, in a folder of its own. A job that ended gives way to a new one of its name."
    ),
    "local.run.examples": """\
atlctl local run --workers 2 -- python3 "$PWD/train.py"
atlctl local run --name try-1 --workers 4 --detach -- sh -c 'sleep 600'""",
    "local.rm.summary": "Remove ended jobs of this machine, with their logs.",
    "local.rm.examples": """\
atlctl local rm try-1
atlctl local rm try-1 try-2 --yes""",
    "ssh.summary": "Jobs on hosts that are reached over SSH.",
    "ssh.examples": """\
atlctl ssh run --hostfile hosts -- torchrun --nnodes 2 train.py
atlctl ssh rm train-7""",
    "ssh.run.summary": "Start a job on the hosts of a list, over SSH.",
    "ssh.run.text": (
        "Every host runs one worker with MASTER_ADDR, MASTER_PORT, WORLD_SIZE (number of hosts) and RANK (its place in "
        "the list) set. The job runs on when this command goes: ps, logs, errors, stacks, record and stop know it by "
        "its name. Hosts need Python 3.8 or newer. It starts on all of them or on none."
    ),
    "ssh.run.examples": """\
atlctl ssh run --hostfile hosts -- bash /shared/train.sh
atlctl ssh run --hostfile hosts --include 'gpu1@gpu2:0,2' --name try-1 --detach -- bash /shared/train.sh
atlctl ssh run -j cluster --chdir /shared/project -- bash train.sh""",
    "ssh.rm.summary": "Remove ended jobs of hosts, with their logs there.",
    "ssh.rm.examples": """\
atlctl ssh rm try-1
atlctl ssh rm try-1 try-2 --yes""",
    "demo.summary": "Start a real failing torchrun job on this machine and show every main command on it.",
    "demo.examples": """\
atlctl demo""",
    "doctor.summary": "Check which backend is used and as whom, what is allowed, what is missing; with the fix.",
    "doctor.text": (
        "Changes nothing, and notes no host key. Hosts are logged in to, and each worker of the current job is asked "
        "for its Python and torch. Rights that are missing are printed as a Role for an administrator. Exit code: 0 "
        "where jobs can be looked at, 1 where something failed, 4 where the cluster does not know you."
    ),
    "doctor.opt.connect-timeout": "give up on a host or a worker that was not reached by then",
    "doctor.opt.job": "the job whose workers are asked for their torch; left out: the current job",
    "doctor.examples": """\
atlctl doctor
atlctl doctor -n ml-team --context gpu-cluster
atlctl doctor --hostfile hosts
atlctl doctor -j train-7
atlctl doctor -o json""",
    "top.summary": "Show GPUs, CPU and memory of all workers live; what is idle, slow or broken is marked, and on top.",
    "top.text": (
        "Live on a terminal until q or Ctrl-C; on a pipe, with --once and with -o json it is shown once. Marks that "
        "end in '?' are hints from comparing GPUs. Workers that could not tell are named, with the reason."
    ),
    "top.examples": """\
atlctl top train-7
atlctl top train-7 -w 0-3 --interval 10
atlctl top train-7 --sort util                 # the least busy GPUs on top
atlctl top train-7 --once                      # one table
atlctl top train-7 -o json""",
    "completion.summary": "Print the completion script for a shell.",
    "completion.examples": """\
atlctl completion bash > ~/.local/share/bash-completion/completions/atlctl
atlctl completion zsh > "${fpath[1]}/_atlctl"
atlctl completion fish > ~/.config/fish/completions/atlctl.fish""",
    "arg.JOB": "the job; left out: the current job",
    "arg.WORKER": "name, index, pod or host of the worker",
    "arg.CMD": "the command and its arguments, handed over word by word, without a shell",
    "arg.SRC": "what to copy: a local path, WORKER:PATH or :PATH",
    "arg.DST": "where to: a local path, WORKER:PATH or :PATH",
    "stop.arg.JOB": "the job to stop; never guessed",
    "resume.arg.JOB": "the job to resume; never guessed",
    "local.rm.arg.JOB": "the jobs to remove",
    "ssh.rm.arg.JOB": "the jobs to remove",
    "completion.arg.SHELL": "bash, zsh or fish",
    "opt.help": "show this help and exit",
    "opt.version": "show the version and exit",
    "opt.backend": "where jobs live",
    "opt.namespace": "the Kubernetes namespace; left out: the context's, or the pod's own",
    "opt.context": "the context of the kubeconfig",
    "opt.selector": "the pods that match this label selector, as one job without an object",
    "opt.container": "the container of each worker; left out: the one that trains",
    "opt.hostfile": "a list of hosts to reach over SSH: one a line, gpu[01-16], user@gpu1:2222, gpu1 slots=8",
    "opt.all-namespaces": "jobs of all namespaces",
    "opt.kubeconfig": "the kubeconfig file (KUBECONFIG, else ~/.kube/config, else the pod's service account)",
    "opt.quiet": "no notes and summaries on stderr",
    "opt.verbose": "say more on stderr; twice for even more",
    "opt.debug": "everything that is known about a failure, with traceback",
    "opt.color": "colours (without it: NO_COLOR, FORCE_COLOR, else on a terminal)",
    "opt.job": "the job",
    "opt.output": "form of the output",
    "opt.all": "all workers",
    "opt.workers": "these workers: indexes, ranges, names, globs (0,2-5 or worker-[0-3]); repeats unite",
    "opt.rank": "the workers that hold these global ranks, as 8-15",
    "opt.role": "workers of this role; repeats unite",
    "opt.failed": "workers in state Failed or Held",
    "opt.exclude": "without these workers, written as for -w",
    "opt.yes": "do not ask",
    "opt.dry-run": "show what would be done, do nothing",
    "opt.timeout": "end the command on a worker after this time (10, 1.5s, 2m, 1h)",
    "opt.connect-timeout": "give up on a worker that was not reached by then",
    "opt.watch": "show it again whenever something changes",
    "opt.stdin": "send standard input to every selected worker",
    "opt.parallel": "how many workers are being connected to at once",
    "cp.opt.parallel": "how many copies run at once",
    "cp.opt.timeout": "give up a copy after this time (10, 1.5s, 2m, 1h)",
    "opt.batch": "how many commands run at once; without it all do",
    "opt.gather": "show equal outputs once, at the end, under the workers they came from",
    "opt.output-dir": "write each worker's output to files in this folder (NAME.out, NAME.err) instead of showing it",
    "opt.no-prefix": "do not begin lines with the worker's name",
    "opt.raw": "show control characters of the output unchanged on a terminal",
    "opt.follow": "go on with new lines until the job ends",
    "opt.tail": "only the last lines of each worker",
    "opt.since": "only lines of this last stretch of time (10m, 2h)",
    "opt.previous": "the log of the instance before the last restart",
    "opt.grep": "only lines that match this regular expression",
    "opt.exit-code": "exit with 1 where a failure was found",
    "opt.from": (
        "saved logs instead of a job: a folder (WORKER.log and error files), a file, or - for standard input; "
        "repeats unite"
    ),
    "opt.log-path": "also read files inside the workers that match this pattern (quote it); their last 64 MiB",
    "opt.no-files": "with --from: read logs only, no error files",
    "opt.grace": "time between SIGTERM and SIGKILL (local jobs, --keep-pods)",
    "stop.opt.timeout": "how long to wait until the workers are gone (10, 1.5s, 2m, 1h)",
    "resume.opt.timeout": "how long to wait until it is taken up (10, 1.5s, 2m, 1h)",
    "opt.delete": "delete the job for good, with its pods",
    "opt.keep-pods": "end the training in the workers, and keep their pods",
    "record.opt.out": "record into this folder, new or of an earlier record; left out: one in atlctl's state folder",
    "report.opt.out": "a new folder, or a new file that ends in .tar.gz; left out: a folder in this one",
    "opt.smoke": "include this document of 'atlctl smoke -o json'",
    "opt.keep-mib": "MiB that are kept of each worker's log, the last ones",
    "opt.on-failure": "run this with sh when a worker fails (ATLCTL_JOB, ATLCTL_RECORDING, ATLCTL_FAILED_WORKERS)",
    "opt.out": "save logs, states and events in this folder, which is made",
    "opt.no-save": "save nothing before it",
    "opt.name": "the job's name; left out: one is made up",
    "local.run.opt.workers": "how many workers",
    "ssh.run.opt.job": "the list of hosts of this name in the configuration, in place of --hostfile",
    "ssh.run.opt.include": "these hosts of the list alone, or some of their slots (gpu1@gpu2:0,2)",
    "ssh.run.opt.exclude": "all but these hosts, or without some of their slots (gpu1@gpu2:0,2)",
    "ssh.run.opt.chdir": "the working folder on the hosts; left out: the home of the login",
    "ssh.run.opt.master-addr": "MASTER_ADDR of the workers; left out: the address of the first host",
    "opt.env": "set this variable in every worker; repeats add up",
    "opt.master-port": "MASTER_PORT of the workers (29500 if it is free, else another)",
    "opt.detach": "print the job's name and leave it running",
    "opt.keep": "leave the job to play with",
    "opt.retry-failed": "run the job's last command again where its outcome was not 0",
    "opt.once": "show the table once and exit",
    "opt.interval": "time from one look to the next, 1s at least",
    "opt.sort": "what comes first: odd ones, the lowest util or power, the highest memory, temp or cpu; or by worker",
    "top.opt.timeout": "give up on a worker after this time; live, on reaching it (10, 1.5s, 2m, 1h)",
    "stacks.opt.timeout": "give up on a worker after this time (10, 1.5s, 2m, 1h)",
    "opt.tier": "how much is tested: quick takes seconds, standard a minute, deep some minutes",
    "smoke.opt.timeout": "for the whole test (2m, 5m and 20m by tier); what was not reached by then is not judged",
    "opt.net-only": "facts and network alone, without torch",
    "opt.no-gpu": "touch no GPU and start no ranks: facts, network and storage",
    "opt.allow-busy": "test GPUs that are busy, too, and beside a training",
    "opt.gpus": "test these GPUs alone (worker-1:0,2); repeats unite",
    "opt.mount": "test this folder on all workers, too; repeats unite",
    "opt.strict": "exit with 1 also for a warning, or where something was not judged",
    "opt.print-torchrun": "test nothing; print the torchrun command that each worker's environment asks for",
    "opt.with-pyspy": "send this machine's py-spy to the workers for the look, and remove it again",
    "opt.repeat": "look twice, some seconds apart, and tell what moved",
    "stacks.say.many_ranks": "ranks {numbers}",
    "stacks.say.unknown_rank": "a rank of unknown number",
    "stacks.say.where": "{ranks} on {workers}",
    "stacks.say.how_many": " ({count} ranks)",
    "stacks.say.who_what": "{who}: {what}",
    "stacks.say.comma": ", ",
    "stacks.say.sure": ", {sure}",
    "stacks.say.certain": "certain",
    "stacks.say.likely": "likely",
    "stacks.say.guess": "guess",
    "stacks.say.collective": "waiting in collective {seq} ({operation}, {group})",
    "stacks.say.main_thread": "main thread: {state}; {ticks} CPU ticks in {seconds} s, all threads {all_ticks}",
    "stacks.say.other_commands": " (and {count} other command lines)",
    "stacks.say.children": "processes below it: {count}: {states}",
    "stacks.say.stack": "main thread's stack, innermost first (from {source}):",
    "stacks.say.torch_server": "torch's worker server",
    "stacks.say.thread": "thread {name}:",
    "stacks.say.more_frames": "({count} more)",
    "stacks.say.between": "between the two looks",
    "stacks.say.still": "stood still: {ranks}",
    "stacks.say.same": "ran, and were at the same place of the code both times: {ranks}",
    "stacks.say.moved": "moved: {ranks}",
    "stacks.say.ran": "ran, or cannot be seen into: {ranks}",
    "stacks.say.new": "are other processes than before: {ranks}",
    "stacks.say.gone": "are gone: {ranks}",
    "demo.say.intro": (
        "A real job on this machine: {workers} workers x {processes} processes train a small DDP model "
        "with torchrun (CPU, gloo)."
    ),
    "demo.say.waiting": "Starting takes some seconds: every process imports torch.",
    "demo.say.training": "All ranks train. Who is there, what do they answer, what do they print?",
    "demo.say.fault": (
        "Now a data shard of one rank is damaged (rank {rank}, on {worker}); the others are left waiting "
        "in the all-reduce."
    ),
    "demo.say.held": (
        "The training has failed, yet the workers live on: their launch script ends in 'sleep; exit 0'. "
        "That state is called Held."
    ),
    "demo.say.failed": "That went wrong. Why?",
    "demo.say.errors": "Every torchrun blames a rank of its own node. Which one was first?",
    "demo.say.kept": "The job stays as it is. Play with it, then: atlctl stop {name} && atlctl local rm {name}",
    "demo.say.stop": "Stop it, and leave nothing behind.",
    "demo.say.right": "Right: rank {rank} on {worker} was damaged, and rank {rank} on {worker} was found.",
    "smoke.say.verdict_fail": "FAIL",
    "smoke.say.verdict_warn": "WARN",
    "smoke.say.verdict_not_judged": "NOT JUDGED",
    "smoke.say.verdict_pass": "PASS",
    "smoke.say.whole_fail": "FAIL: a fault was found",
    "smoke.say.whole_warn": "WARN: nothing is broken, something is odd",
    "smoke.say.whole_not_judged": "NOT JUDGED: nothing could be judged",
    "smoke.say.whole_pass": "PASS: no fault was found",
    "smoke.say.count_fail": "faults: {count}",
    "smoke.say.count_warn": "warnings: {count}",
    "smoke.say.count_not_judged": "checks not judged: {count}",
    "smoke.say.counts": " ({counts})",
    "smoke.say.comma": ", ",
    "smoke.say.column_verdict": "VERDICT",
    "smoke.say.column_check": "CHECK",
    "smoke.say.column_seconds": "SECONDS",
    "smoke.say.column_note": "NOTE",
    "smoke.say.check_roll_call": "who answers",
    "smoke.say.check_facts": "what differs between workers",
    "smoke.say.check_mesh": "every worker calls every other",
    "smoke.say.check_throughput": "speed and loss of every link",
    "smoke.say.check_storage": "mounts are written and read by all",
    "smoke.say.check_gpus": "what the driver tells of the GPUs",
    "smoke.say.check_device": "memory and arithmetic",
    "smoke.say.check_collectives": "collectives, bit by bit",
    "smoke.say.check_ddp": "gradients of a DDP step",
    "smoke.say.check_fsdp": "a step of FSDP",
    "smoke.say.check_allreduce": "bandwidth of all-reduce",
    "smoke.say.check_stragglers": "who is slower than the others",
    "smoke.say.check_pairs": "each two workers by themselves",
    "smoke.say.confirmed": "seen again at a second look",
    "smoke.say.next": "next: {advice}",
    "smoke.say.nobody": "nobody in particular",
    "smoke.say.culprit_gpu": "GPU {gpu} of {names}",
    "smoke.say.culprit_rank": "rank {rank} on {names}",
    "smoke.say.culprit_mount": "{path} on {names}",
    "smoke.say.more_findings": "and {count} more, all of them in -o json",
    "smoke.say.heat_throughput": "throughput, row sends to column: median {median}, least {least} % of it",
    "smoke.say.heat_rtt": "round trips, row calls column: median {median}, worst at {least} % of that speed",
    "smoke.say.heat_digits": "each digit is tenths of the median (9: all of it), x: none, columns by their number",
    "smoke.say.heat_figures": "- marks less than {low} % of the median, ! much less, x none",
    "smoke.say.heat_abridged": "{shown} of {count} workers are shown, those that explain what is low",
    "smoke.say.heat_even": "{count} workers, no link below {low} % of the median",
    "smoke.say.so_far": "what was found so far:",
    "smoke.say.may_still_run": "agents may still run on {names}",
    "smoke.say.advice_roll_call": "look at the worker: atlctl ps, atlctl events; then try a command there: atlctl exec",
    "smoke.say.advice_facts": "give all workers the same image, settings and limits",
    "smoke.say.advice_mesh": "look at the interfaces, routes, MTU and network policies on the way",
    "smoke.say.advice_throughput": "look at the link's speed, errors and drops (ethtool), and who else uses this path",
    "smoke.say.advice_storage": "look at the mount on this worker, its free space and rights",
    "smoke.say.advice_gpus": "look at nvidia-smi on this worker and at the kernel's log; have the GPU checked",
    "smoke.say.advice_device": "leave this GPU out, and have it checked",
    "smoke.say.advice_collectives": "leave this worker or GPU out, and run the test again",
    "smoke.say.advice_ddp": "leave this worker or GPU out, and run the test again",
    "smoke.say.advice_fsdp": "leave this worker or GPU out, and test once more",
    "smoke.say.advice_allreduce": "compare the transport that NCCL chose with that of the others",
    "smoke.say.advice_stragglers": "look at clocks, temperature and other processes on this worker",
    "smoke.say.advice_pairs": "look at the link between these two",
}
