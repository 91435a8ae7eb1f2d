"""Sentences on what a rank is doing, in Chinese: patterns and what stands for them."""

from __future__ import annotations

#: Behind a sentence, beside what the others do.
_BESIDE = (
    ("", ""),
    (", as others wait", "，其他 rank 也在等待"),
    (", like most ranks", "，与多数 rank 相同"),
    (", while others wait", "，而其他 rank 在等待"),
    (", unlike the others", "，与其他 rank 不同"),
)

_SENTENCES = (
    (r"its process ended during the look", "查看期间它的进程结束了"),
    (r"a signal has stopped it \(SIGSTOP\)", "它被信号暂停（SIGSTOP）"),
    (r"kill -CONT lets it go on", "kill -CONT 可使其继续"),
    (r"a debugger holds it", "调试器正控制着它"),
    (r"its control group is frozen", "它的 cgroup 被冻结"),
    (r"it is ready to run and hardly gets a CPU", "它可以运行，却几乎得不到 CPU"),
    (
        r"it waits for a device or a file system, and cannot be interrupted",
        "它在等待设备或文件系统，且无法被中断",
    ),
    (r"it sleeps", "它在睡眠"),
    (r"it waits for a file or a pipe", "它在等待文件或管道"),
    (r"it waits for a process that it has started", "它在等待自己启动的进程"),
    (
        r"it waits for a lock, and no collective of gloo is under way in it",
        "它在等待锁，而其中没有进行中的 gloo 集合通信",
    ),
    (r"it uses a CPU", "它在占用 CPU"),
    (r"it waits for another thread or for a lock", "它在等待另一个线程或锁"),
    (r"it waits for the network or a device", "它在等待网络或设备"),
    (r"its stack is in no collective", "它的堆栈不在集合通信中"),
    (r"it sleeps, in no collective", "它在睡眠，不在集合通信中"),
    (r"it uses a CPU, in no collective", "它在占用 CPU，不在集合通信中"),
    (r"it waits for a lock, in no collective", "它在等待锁，不在集合通信中"),
    (r"it waits for a lock or a thread, in no collective", "它在等待锁或线程，不在集合通信中"),
    (r"it waits for its DataLoader", "它在等待 DataLoader"),
    (r"its DataLoader's processes wait for a device or a file system", "它的 DataLoader 进程在等待设备或文件系统"),
    (r"it waits for a lock, a thread or a process of its own", "它在等待自己的锁、线程或进程"),
    (r"it moves, or cannot be seen into", "它在运行，或无法看到其内部"),
    (r"a collective of gloo is under way in it", "其中有进行中的 gloo 集合通信"),
    (r"its main thread ran during the look", "查看期间它的主线程在运行"),
    *(
        (sentence + end, chinese + function)
        for sentence, chinese in (
            (r"its stack is in a collective", "它的堆栈在集合通信中"),
            (r"its stack is where a process group is made", "它的堆栈在创建进程组之处"),
            (r"its stack reads or writes files", "它的堆栈正在读写文件"),
            (r"its stack waits for the network", "它的堆栈正在等待网络"),
            (r"it is in the backward pass", "它在反向传播中"),
            (r"it waits for its device", "它在等待设备"),
        )
        for end, function in (("", ""), (r": (\S{1,100})", r"：\1"))
    ),
    (r"no process has this rank", "没有进程持有该 rank"),
    (r"no process has this rank yet", "尚无进程持有该 rank"),
    (r"its stack imports a module", "它的堆栈正在导入模块"),
    (r"it has not loaded torch yet", "它还没有加载 torch"),
    (r"it has no process group yet", "它还没有进程组"),
)

_VERDICTS = (
    (r"hung in user code", "挂在用户代码中"),
    (r"blocked on I/O", "阻塞在 I/O 上"),
    (r"stopped", "被暂停"),
    (r"starved", "得不到 CPU"),
    (r"gone", "进程已不在"),
)
_WHO = (
    ("", ""),
    (r" \(rank ([\d, ]{1,100})\)", r"（rank \1）"),
    (r" \(rank ([\d, ]{1,100}) and more\)", r"（rank \1 等）"),
)

#: For a phrasebook.
PHRASES = (
    *((sentence + end, chinese + beside) for sentence, chinese in _SENTENCES for end, beside in _BESIDE),
    (r"(\d+) of (\d+) ranks have waited for (\d+) s or more", r"\2 个 rank 中有 \1 个已等待 \3 s 以上"),
    (
        r"the logs name no failure: this is what the ranks are doing now",
        "日志中没有故障：以下是各 rank 当前的状态",
    ),
    (
        r"no rank process was found: none has RANK and LOCAL_RANK in its environment",
        "没有找到 rank 进程：没有进程的环境变量中有 RANK 和 LOCAL_RANK",
    ),
    (
        r"no rank runs yet: torchrun waits on (.{1,300}), and there is none on (.{1,300})",
        r"还没有 rank 在运行：\1 上的 torchrun 在等待，而 \2 上没有 torchrun",
    ),
    (
        r"no rank runs yet: torchrun waits on (.{1,300}) for its rendezvous",
        r"还没有 rank 在运行：\1 上的 torchrun 在等待汇合",
    ),
    (r"(.{1,300}) could not be looked at: (.{1,500})", r"无法查看 \1：\2"),
    (r"what the ranks are doing was looked at", "已查看各 rank 当前在做什么"),
    (r"the last line of a log is (\d+) s old: it may only be slow", r"日志的最后一行是 \1 s 前的：可能只是慢"),
    (r"nothing singles out a rank", "没有哪个 rank 与众不同"),
    (r"nothing singles out a rank, and there are no Python stacks", "没有哪个 rank 与众不同，也没有 Python 堆栈"),
    (
        r"every rank waits, and none is seen to be missing: a network that is down, or ranks that were not seen",
        "每个 rank 都在等待，没有发现缺席者：网络中断，或有 rank 未被看到",
    ),
    (r"no rank stood still during the look", "查看期间没有静止的 rank"),
    (r"--repeat compares two", "--repeat 可比较两次查看"),
    (r"cannot tell", "无法判断"),
    (r"starting", "正在启动"),
    (
        r"(\d+) of (\d+) ranks are starting, (\d+) s after they were launched",
        r"\2 个 rank 中有 \1 个正在启动，启动至今 \3 s",
    ),
    (r"(\d+) of (\d+) ranks are still starting after (\d+) min", r"\2 个 rank 中有 \1 个启动 \3 分钟后仍未就绪"),
    (r"working", "正在工作"),
    (r"waiting in a collective", "在集合通信中等待"),
    *((sentence + who, chinese + told) for sentence, chinese in _VERDICTS for who, told in _WHO),
)
