"""中文文本。"""

TEXTS = {
    "label.usage": "用法：",
    "label.examples": "示例：",
    "label.commands": "命令：",
    "label.arguments": "参数：",
    "label.options": "选项：",
    "label.shared": "所有命令通用的选项：",
    "label.default": "（默认：{value}）",
    "atlctl.summary": "查看、执行、诊断和停止 PyTorch 分布式训练作业。",
    "atlctl.text": "用“atlctl COMMAND -h”查看某个命令的说明。下列选项写在命令名之前或之后都可以。",
    "atlctl.examples": """\
atlctl jobs                        # 有哪些作业
atlctl errors train-7              # 作业为什么失败，哪个 worker 最先出错
atlctl exec --all nvidia-smi       # 在当前作业的每个 worker 上执行同一条命令
atlctl demo                        # 在本机用一个真实作业演示以上全部功能""",
    "jobs.summary": "列出作业：类型、名称、状态、就绪与应有的 worker 数、GPU 数、已存在时间。",
    "jobs.examples": """\
atlctl jobs
atlctl jobs -o name                # 只输出名称，便于脚本使用
atlctl jobs -o json""",
    "ps.summary": "列出一个作业的 worker：序号、节点 rank、状态及原因、主机、已存在时间；缺失的按序号列出。",
    "ps.text": "也可以写作“atlctl workers”。",
    "ps.examples": """\
atlctl ps train-7
atlctl ps train-7 --failed -o wide
atlctl ps train-7 --watch""",
    "exec.summary": "在选中的 worker 上同时执行一条命令。",
    "exec.text": (
        "选项到 CMD 的第一个词为止，其后的选项原样交给 CMD。退出码：只选中一个 worker 时就是该命令的退出码；"
        "选中多个时，有失联的为 255，否则有超时的为 124，否则取最大的退出码。"
    ),
    "exec.examples": """\
atlctl exec --all nvidia-smi -L
atlctl exec -j train-7 -w 0,2-5 -- ps -ef
atlctl exec --failed --gather dmesg            # 相同的输出合并显示
atlctl exec --all -- sh -c 'df -h /data | tail -1'
atlctl exec -w 3 -i -- python3 - < probe.py    # 传入标准输入""",
    "shell.summary": "在一个 worker 里打开交互式 shell。",
    "shell.examples": """\
atlctl shell worker-3
atlctl shell -j train-7 0""",
    "logs.summary": "按时间合并显示多个 worker 的日志，每行带 worker 名前缀。",
    "logs.examples": """\
atlctl logs train-7 -f
atlctl logs train-7 -w 0-3 --tail 100
atlctl logs train-7 --since 10m --grep 'loss|nan'""",
    "events.summary": "显示作业及其 pod 和节点的事件，最早的在前。",
    "events.examples": """\
atlctl events train-7
atlctl events train-7 -o json""",
    "errors.summary": "指出故障的根因：哪个 worker 和 rank 最先出错、为什么，并给出证据。",
    "errors.examples": """\
atlctl errors train-7
atlctl errors train-7 --exit-code || notify          # 发现故障时退出码为 1
atlctl errors train-7 --log-path '/logs/*.log'       # 同时读取 worker 内的文件
atlctl errors --from saved/                          # 保存下来的日志：WORKER.log、错误文件
kubectl logs -l app=train --prefix --tail=-1 | atlctl errors --from -""",
    "record.summary": "把作业的日志、状态和事件持续保存到磁盘，结束时指出根因。",
    "record.text": (
        "与作业同时启动，能保住平台在故障后几秒内就会删除的内容。再次启动时从上次结束处继续；"
        "“atlctl errors JOB”能找到它保存的内容。作业尚不存在时会等待它出现。"
    ),
    "record.examples": """\
atlctl record train-7
atlctl record train-7 --out /shared/train-7 --keep-mib 256
atlctl record train-7 --on-failure 'notify "$ATLCTL_FAILED_WORKERS failed: $ATLCTL_RECORDING"'""",
    "report.summary": "把说明作业为何失败的全部内容收集到一个目录或归档中，并附一张可读的页面。",
    "report.text": (
        "收集作业（或已保存日志）的证据并隐去机密，附上结论和一个可独立打开的 index.html。"
        "'atlctl errors --from' 可再次读取该目录。不覆盖任何文件，也不运行任何测试。"
    ),
    "report.examples": """\
atlctl report train-7
atlctl report train-7 --out train-7.tar.gz --smoke smoke.json
atlctl report --from saved/""",
    "stacks.summary": "显示每个 rank 此刻在做什么：相同的堆栈合并，异常的排在最前。",
    "stacks.text": (
        "在 worker 中读取 /proc（历时两秒），并在 torch 的 worker server 或 py-spy 可用时读取 Python 堆栈。"
        "不会暂停任何进程。指出其他 rank 在等待哪一个，以及把握有多大。"
    ),
    "stacks.examples": """\
atlctl stacks train-7
atlctl stacks train-7 --with-pyspy                   # 带上 py-spy，用后不留痕迹
atlctl stacks train-7 --repeat -o json
atlctl stacks train-7 -w 3 -v                        # 每个 Python 线程""",
    "smoke.summary": "几秒内测试所有 worker 及其网络、存储和 GPU：哪个节点、链路、挂载点、GPU 或 rank 有问题。",
    "smoke.text": (
        "不在 worker 上安装任何东西：把一个程序送给那里已有的 Python，用后不留痕迹。"
        "有 torch 时还测试 GPU、集合通信和 DDP。训练正在运行时，只查看环境信息、网络和存储。"
    ),
    "smoke.examples": """\
atlctl smoke train-7
atlctl smoke train-7 --net-only                      # 只查环境信息和网络，训练运行时也可用
atlctl smoke train-7 --tier standard --mount /data
atlctl smoke train-7 --gpus worker-1:0,2 -o json
atlctl smoke train-7 --print-torchrun                # worker 的环境所要求的 torchrun 命令""",
    "cp.summary": "在本机与 worker 之间复制文件和目录。",
    "cp.text": (
        "有一侧写作 WORKER:PATH，或写作 :PATH 表示选中的 worker；从多个 worker 复制时，每个在 DST 中各有一个目录。"
        "与 cp 一样，DST 是已有的目录时放入其中。不复制链接。"
    ),
    "cp.examples": """\
atlctl cp worker-0:/tmp/core.1 .
atlctl cp ./fix.py worker-3:/tmp/
atlctl cp -j train-7 --all ./conf :/etc/conf   # 复制到每个 worker
atlctl cp --all :/logs ./logs                  # 各自放入 ./logs/NAME/""",
    "stop.summary": "停止作业：先显示计划，经确认后保存日志，再结束其 worker。",
    "stop.text": (
        "集群作业的类型支持挂起时只挂起，可用“atlctl resume”恢复；挂起前先保存日志。"
        "没有终端时不会询问，必须加 --yes。已经结束的作业不作任何改动。"
    ),
    "stop.examples": """\
atlctl stop train-7
atlctl stop train-7 --dry-run
atlctl stop train-7 --yes --out /shared/train-7
atlctl stop train-7 --keep-pods                # 结束训练，保留 pod 和 GPU
atlctl stop train-7 --delete --no-save""",
    "resume.summary": "恢复被挂起的作业：先显示计划，经确认后撤销停止。",
    "resume.examples": """\
atlctl resume train-7
atlctl resume train-7 --dry-run""",
    "local.summary": "本机作业：真实的进程组，环境变量与平台一致。",
    "local.examples": """\
atlctl local run --workers 4 -- python3 "$PWD/train.py"
atlctl local rm train-7""",
    "local.run.summary": "在本机启动一个作业。",
    "local.run.text": (
        "每个 worker 是一个进程组，并设有 MASTER_ADDR、MASTER_PORT、WORLD_SIZE（worker 总数）和 RANK"
        "（该 worker 的序号）；每个 worker 在自己的目录中运行。已结束的同名作业会被新作业取代。"
    ),
    "local.run.examples": """\
atlctl local run --workers 2 -- python3 "$PWD/train.py"
atlctl local run --name try-1 --workers 4 --detach -- sh -c 'sleep 600'""",
    "local.rm.summary": "删除本机已结束的作业及其日志。",
    "local.rm.examples": """\
atlctl local rm try-1
atlctl local rm try-1 try-2 --yes""",
    "ssh.summary": "通过 SSH 访问的主机上的作业。",
    "ssh.examples": """\
atlctl ssh run --hostfile hosts -- torchrun --nnodes 2 train.py
atlctl ssh rm train-7""",
    "ssh.run.summary": "通过 SSH 在列表中的主机上启动一个作业。",
    "ssh.run.text": (
        "每台主机运行一个 worker，并设置 MASTER_ADDR、MASTER_PORT、WORLD_SIZE（主机数）和 RANK（在列表中的位置）。"
        "本命令退出后作业继续运行：ps、logs、errors、stacks、record 和 stop 都可以用作业名找到它。"
        "主机需要 Python 3.8 或更新版本。要么在所有主机上启动，要么一台也不启动。"
    ),
    "ssh.run.examples": """\
atlctl ssh run --hostfile hosts -- bash /shared/train.sh
atlctl ssh run --hostfile hosts --include 'gpu1@gpu2:0,2' --name try-1 --detach -- bash /shared/train.sh
atlctl ssh run -j cluster --chdir /shared/project -- bash train.sh""",
    "ssh.rm.summary": "删除主机上已结束的作业及其日志。",
    "ssh.rm.examples": """\
atlctl ssh rm try-1
atlctl ssh rm try-1 try-2 --yes""",
    "demo.summary": "在本机启动一个会失败的真实 torchrun 作业，并在其上演示每个主要命令。",
    "demo.examples": """\
atlctl demo""",
    "doctor.summary": "检查所用后端、身份、权限以及缺少什么，并给出解决办法。",
    "doctor.text": (
        "不作任何改动，也不记录主机密钥。会登录主机，并询问当前作业的每个 worker 的 Python 和 torch。"
        "缺少的权限以 Role 的形式输出，可直接交给管理员。"
        "退出码：能查看作业为 0，有检查失败为 1，集群不认识你为 4。"
    ),
    "doctor.opt.connect-timeout": "到时仍未连上主机或 worker 就放弃",
    "doctor.opt.job": "要询问其 worker 的 torch 的作业；省略时为当前作业",
    "doctor.examples": """\
atlctl doctor
atlctl doctor -n ml-team --context gpu-cluster
atlctl doctor --hostfile hosts
atlctl doctor -j train-7
atlctl doctor -o json""",
    "top.summary": "实时显示所有 worker 的 GPU、CPU 和内存；空闲、偏慢或有故障的会标出并排在最前。",
    "top.text": (
        "在终端上实时刷新，按 q 或 Ctrl-C 退出；输出到管道、加 --once 或 -o json 时只显示一次。"
        "以“?”结尾的标记是与其他 GPU 比较得出的提示。无法给出结果的 worker 连同原因一并列出。"
    ),
    "top.examples": """\
atlctl top train-7
atlctl top train-7 -w 0-3 --interval 10
atlctl top train-7 --sort util                 # 最不忙的 GPU 排在最前
atlctl top train-7 --once                      # 只显示一张表
atlctl top train-7 -o json""",
    "completion.summary": "输出某种 shell 的补全脚本。",
    "completion.examples": """\
atlctl completion bash > ~/.local/share/bash-completion/completions/atlctl
atlctl completion zsh > "${fpath[1]}/_atlctl"
atlctl completion fish > ~/.config/fish/completions/atlctl.fish""",
    "arg.JOB": "作业名；省略时为当前作业",
    "arg.WORKER": "worker 的名称、序号、pod 或主机",
    "arg.CMD": "命令及其参数，逐词原样传递，不经过 shell",
    "arg.SRC": "要复制的内容：本机路径、WORKER:PATH 或 :PATH",
    "arg.DST": "复制到哪里：本机路径、WORKER:PATH 或 :PATH",
    "stop.arg.JOB": "要停止的作业；不会自行猜测",
    "resume.arg.JOB": "要恢复的作业；不会自行猜测",
    "local.rm.arg.JOB": "要删除的作业",
    "ssh.rm.arg.JOB": "要删除的作业",
    "completion.arg.SHELL": "bash、zsh 或 fish",
    "opt.help": "显示本帮助并退出",
    "opt.version": "显示版本并退出",
    "opt.backend": "作业所在的后端",
    "opt.namespace": "Kubernetes 命名空间；省略时为 context 的命名空间，或所在 pod 的命名空间",
    "opt.context": "kubeconfig 中的 context",
    "opt.selector": "把匹配该标签选择器的 pod 当作一个没有对象的作业",
    "opt.container": "每个 worker 的容器；省略时为训练容器",
    "opt.hostfile": "通过 SSH 访问的主机列表：每行一台，如 gpu[01-16]、user@gpu1:2222、gpu1 slots=8",
    "opt.all-namespaces": "所有命名空间的作业",
    "opt.kubeconfig": "kubeconfig 文件（依次为 KUBECONFIG、~/.kube/config、pod 的服务账号）",
    "opt.quiet": "不在标准错误上输出提示和汇总",
    "opt.verbose": "在标准错误上输出更多信息；写两次则更多",
    "opt.debug": "出错时输出全部已知信息，包括堆栈",
    "opt.color": "是否使用颜色（未指定时依次看 NO_COLOR、FORCE_COLOR，再看是否为终端）",
    "opt.job": "作业名",
    "opt.output": "输出格式",
    "opt.all": "所有 worker",
    "opt.workers": "指定 worker：序号、区间、名称、通配符（如 0,2-5 或 worker-[0-3]）；多次使用取并集",
    "opt.rank": "持有这些全局 rank 的 worker，如 8-15",
    "opt.role": "具有该角色的 worker；多次使用取并集",
    "opt.failed": "处于 Failed 或 Held 状态的 worker",
    "opt.exclude": "排除这些 worker，写法同 -w",
    "opt.yes": "不询问，直接执行",
    "opt.dry-run": "只显示将要做什么，不做任何改动",
    "opt.timeout": "命令在单个 worker 上的最长时间，超过即结束（10、1.5s、2m、1h）",
    "opt.connect-timeout": "连接 worker 的最长等待时间",
    "opt.watch": "每次有变化时重新显示",
    "opt.stdin": "把标准输入发给每个选中的 worker",
    "opt.parallel": "同时建立连接的 worker 数",
    "cp.opt.parallel": "同时进行的复制数",
    "cp.opt.timeout": "单个复制的最长时间，超过即放弃（10、1.5s、2m、1h）",
    "opt.batch": "同时运行的命令数；省略时全部同时运行",
    "opt.gather": "结束后把相同的输出合并，只显示一次，并标明来自哪些 worker",
    "opt.output-dir": "把每个 worker 的输出写入该目录的文件（NAME.out、NAME.err），不再显示",
    "opt.no-prefix": "行首不加 worker 名",
    "opt.raw": "在终端上原样显示输出中的控制字符",
    "opt.follow": "持续显示新的日志行，直到作业结束",
    "opt.tail": "每个 worker 只显示最后若干行",
    "opt.since": "只显示最近这段时间内的日志行（10m、2h）",
    "opt.previous": "上一次重启之前那个实例的日志",
    "opt.grep": "只显示匹配该正则表达式的行",
    "opt.exit-code": "发现故障时退出码为 1",
    "opt.from": ("不看作业，而看这些保存下来的日志：目录（WORKER.log、错误文件）、文件，或 -（标准输入）；可重复"),
    "opt.log-path": "同时读取 worker 内与此模式匹配的文件（请加引号），每个只读最后 64 MiB",
    "opt.no-files": "与 --from 合用：只读日志，不读错误文件",
    "opt.grace": "从 SIGTERM 到 SIGKILL 的等待时间（用于本机作业和 --keep-pods）",
    "stop.opt.timeout": "最多等待多久让 worker 消失（如 10、1.5s、2m、1h）",
    "resume.opt.timeout": "最多等待多久让恢复生效（如 10、1.5s、2m、1h）",
    "opt.delete": "彻底删除作业及其 pod",
    "opt.keep-pods": "只结束 worker 中的训练，保留 pod",
    "record.opt.out": "保存到该目录（新目录，或之前 record 用过的目录）；省略时使用 atlctl 状态目录中的一个",
    "report.opt.out": "新的目录，或以 .tar.gz 结尾的新文件；省略时在当前目录中新建一个",
    "opt.smoke": "包含 'atlctl smoke -o json' 的输出文档",
    "opt.keep-mib": "每个 worker 的日志保留最后多少 MiB",
    "opt.on-failure": "有 worker 失败时用 sh 运行此命令（ATLCTL_JOB、ATLCTL_RECORDING、ATLCTL_FAILED_WORKERS）",
    "opt.out": "把日志、状态和事件保存到该目录（会新建）",
    "opt.no-save": "停止前不保存任何内容",
    "opt.name": "作业名；省略时自动生成",
    "local.run.opt.workers": "worker 数量",
    "ssh.run.opt.job": "配置文件中该名称的主机列表，代替 --hostfile",
    "ssh.run.opt.include": "只用列表中的这些主机，或它们的部分 slot（gpu1@gpu2:0,2）",
    "ssh.run.opt.exclude": "排除这些主机，或它们的部分 slot（gpu1@gpu2:0,2）",
    "ssh.run.opt.chdir": "主机上的工作目录；省略时为登录用户的主目录",
    "ssh.run.opt.master-addr": "worker 的 MASTER_ADDR；省略时为第一台主机的地址",
    "opt.env": "在每个 worker 中设置该环境变量；可重复给出",
    "opt.master-port": "worker 的 MASTER_PORT（默认 29500，被占用时另选）",
    "opt.detach": "打印作业名后返回，作业继续运行",
    "opt.keep": "保留作业，供继续试用",
    "opt.retry-failed": "在上一条命令结果不为 0 的 worker 上重新执行该命令",
    "opt.once": "只显示一次，然后退出",
    "opt.interval": "两次查看之间的时间，至少 1s",
    "opt.sort": "什么排在最前：odd 为异常的，util 或 power 从低到高，memory、temp 或 cpu 从高到低，worker 按序号",
    "top.opt.timeout": "在单个 worker 上最多等待这么久；实时显示时指连接的时间（10、1.5s、2m、1h）",
    "stacks.opt.timeout": "在单个 worker 上最多等待这么久（10、1.5s、2m、1h）",
    "opt.tier": "测试的深度：quick 几秒，standard 约一分钟，deep 数分钟",
    "smoke.opt.timeout": "整个测试的时限（按档位为 2m、5m、20m）；到时仍未进行的不作判定",
    "opt.net-only": "只查环境信息和网络，不需要 torch",
    "opt.no-gpu": "不碰 GPU，也不启动 rank：只查环境信息、网络和存储",
    "opt.allow-busy": "GPU 正忙或训练正在运行时也测试",
    "opt.gpus": "只测试这些 GPU（worker-1:0,2）；多次使用取并集",
    "opt.mount": "另外在所有 worker 上测试这个目录；多次使用取并集",
    "opt.strict": "有警告或有未判定的内容时，退出码也为 1",
    "opt.print-torchrun": "不作测试；打印每个 worker 的环境所要求的 torchrun 命令",
    "opt.with-pyspy": "把本机的 py-spy 送到 worker 中供这次查看使用，用后删除",
    "opt.repeat": "间隔几秒查看两次，并说明哪些动了",
    "stacks.say.many_ranks": "rank {numbers}",
    "stacks.say.unknown_rank": "编号未知的 rank",
    "stacks.say.where": "{workers} 上的 {ranks}",
    "stacks.say.how_many": "（{count} 个 rank）",
    "stacks.say.who_what": "{who}：{what}",
    "stacks.say.comma": "、",
    "stacks.say.sure": "，{sure}",
    "stacks.say.certain": "确定",
    "stacks.say.likely": "很可能",
    "stacks.say.guess": "推测",
    "stacks.say.collective": "在第 {seq} 个集合通信中等待（{operation}，{group}）",
    "stacks.say.main_thread": "主线程：{state}；{seconds} s 内 {ticks} 个 CPU tick，所有线程 {all_ticks} 个",
    "stacks.say.other_commands": "（另有 {count} 种命令行）",
    "stacks.say.children": "它的子进程：{count} 个：{states}",
    "stacks.say.stack": "主线程堆栈，最内层在前（来自 {source}）：",
    "stacks.say.torch_server": "torch 的 worker server",
    "stacks.say.thread": "线程 {name}：",
    "stacks.say.more_frames": "（另有 {count} 层）",
    "stacks.say.between": "两次查看之间",
    "stacks.say.still": "静止不动：{ranks}",
    "stacks.say.same": "在运行，但两次都在代码的同一位置：{ranks}",
    "stacks.say.moved": "有进展：{ranks}",
    "stacks.say.ran": "在运行，或无法看到其内部：{ranks}",
    "stacks.say.new": "已不是之前的进程：{ranks}",
    "stacks.say.gone": "已不在：{ranks}",
    "demo.say.intro": (
        "在本机启动一个真实作业：{workers} 个 worker × {processes} 个进程，"
        "用 torchrun 训练一个小的 DDP 模型（CPU，gloo）。"
    ),
    "demo.say.waiting": "启动需要几秒钟：每个进程都要导入 torch。",
    "demo.say.training": "所有 rank 都在训练。有哪些 worker？它们如何应答？在打印什么？",
    "demo.say.fault": (
        "现在损坏一个 rank 的数据分片（rank {rank}，位于 {worker}）；其他 rank 会停在 all-reduce 中等待。"
    ),
    "demo.say.held": "训练已经失败，但 worker 还活着：启动脚本以“sleep; exit 0”结尾。这种状态叫做 Held。",
    "demo.say.failed": "出现了意外的失败。原因是什么？",
    "demo.say.errors": "每个 torchrun 都只怪罪自己节点上的 rank。到底谁最先失败？",
    "demo.say.kept": "作业保持原样，可以继续试用；用完后执行：atlctl stop {name} && atlctl local rm {name}",
    "demo.say.stop": "停止作业，不留任何东西。",
    "demo.say.right": "正确：损坏的是 {worker} 上的 rank {rank}，找到的也是 {worker} 上的 rank {rank}。",
    "smoke.say.verdict_fail": "故障",
    "smoke.say.verdict_warn": "警告",
    "smoke.say.verdict_not_judged": "未判定",
    "smoke.say.verdict_pass": "通过",
    "smoke.say.whole_fail": "故障：发现了问题",
    "smoke.say.whole_warn": "警告：没有损坏，但有异常",
    "smoke.say.whole_not_judged": "未判定：没有可以判定的内容",
    "smoke.say.whole_pass": "通过：没有发现问题",
    "smoke.say.count_fail": "故障 {count}",
    "smoke.say.count_warn": "警告 {count}",
    "smoke.say.count_not_judged": "未判定的检查 {count}",
    "smoke.say.counts": "（{counts}）",
    "smoke.say.comma": "、",
    "smoke.say.column_verdict": "结论",
    "smoke.say.column_check": "检查",
    "smoke.say.column_seconds": "秒",
    "smoke.say.column_note": "说明",
    "smoke.say.check_roll_call": "点名",
    "smoke.say.check_facts": "环境是否一致",
    "smoke.say.check_mesh": "两两连接",
    "smoke.say.check_throughput": "链路速度与丢包",
    "smoke.say.check_storage": "共享存储读写",
    "smoke.say.check_gpus": "驱动报告的 GPU 状态",
    "smoke.say.check_device": "显存与计算",
    "smoke.say.check_collectives": "集合通信逐位核对",
    "smoke.say.check_ddp": "DDP 梯度核对",
    "smoke.say.check_fsdp": "FSDP 单步",
    "smoke.say.check_allreduce": "all-reduce 带宽",
    "smoke.say.check_stragglers": "拖慢整体的 rank",
    "smoke.say.check_pairs": "两两配对",
    "smoke.say.confirmed": "复查时再次出现",
    "smoke.say.next": "下一步：{advice}",
    "smoke.say.nobody": "无法指明",
    "smoke.say.culprit_gpu": "{names} 的 GPU {gpu}",
    "smoke.say.culprit_rank": "{names} 上的 rank {rank}",
    "smoke.say.culprit_mount": "{names} 上的 {path}",
    "smoke.say.more_findings": "另有 {count} 项，全部内容见 -o json",
    "smoke.say.heat_throughput": "吞吐量，行发往列：中位数 {median}，最低为其 {least} %",
    "smoke.say.heat_rtt": "往返时间，行呼叫列：中位数 {median}，最差为该速度的 {least} %",
    "smoke.say.heat_digits": "每个数字表示中位数的十分之几（9 为全部），x 表示没有，列以编号表示",
    "smoke.say.heat_figures": "- 表示低于中位数的 {low} %，! 表示远低于，x 表示没有",
    "smoke.say.heat_abridged": "共 {count} 个 worker，只显示能说明偏低原因的 {shown} 个",
    "smoke.say.heat_even": "{count} 个 worker，没有低于中位数 {low} % 的链路",
    "smoke.say.so_far": "到目前为止的结果：",
    "smoke.say.may_still_run": "agent 可能仍在运行：{names}",
    "smoke.say.advice_roll_call": "先看这个 worker：atlctl ps、atlctl events；再看能否在其中执行命令：atlctl exec",
    "smoke.say.advice_facts": "让所有 worker 使用相同的镜像、设置和限制",
    "smoke.say.advice_mesh": "检查途经的网络接口、路由、MTU 和网络策略",
    "smoke.say.advice_throughput": "检查链路速率、错误与丢包（ethtool），以及还有谁在使用这条路径",
    "smoke.say.advice_storage": "检查该 worker 上的挂载、剩余空间和权限",
    "smoke.say.advice_gpus": "在该 worker 上查看 nvidia-smi 和内核日志；请人检查这块 GPU",
    "smoke.say.advice_device": "不要使用这块 GPU，并请人检查",
    "smoke.say.advice_collectives": "排除这个 worker 或 GPU 后再测一次",
    "smoke.say.advice_ddp": "排除这个 worker 或 GPU 后再测一次",
    "smoke.say.advice_fsdp": "排除这个 worker 或 GPU 后再测一次",
    "smoke.say.advice_allreduce": "把 NCCL 实际选用的传输方式与其他 worker 对比",
    "smoke.say.advice_stragglers": "检查该 worker 的频率、温度和其他进程",
    "smoke.say.advice_pairs": "检查这两者之间的链路",
}
