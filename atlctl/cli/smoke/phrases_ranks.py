"""What the checks that run ranks say, in Chinese: patterns and what stands for it."""

from __future__ import annotations

from atlctl.diagnosis.telling.phrasebook import Phrasebook

_SAID = r"(?P<said>.{1,900})"
_NUMBER = r"[\d.e+-]{1,20}"
_WHO = r"(?P<who>rank \d{1,9} on \S{1,200}(?:, GPU \d{1,9})?)"
_STEPS = r"([^()]{1,200})"
_SOME = r"(\d{1,9}) of (\d{1,9}) ranks"

#: Who a rank is.
WHO = Phrasebook(
    (
        (r"rank (\d{1,9}) on (\S{1,200}), GPU (\d{1,9})", r"\2 上 GPU \3 的 rank \1"),
        (r"rank (\d{1,9}) on (\S{1,200})", r"\2 上的 rank \1"),
    )
)
#: Who has which torch.
VERSIONS = Phrasebook(((r"(\S{1,60}) on ([^;]{1,900})", r"\2 为 \1"),))

# A rank that did not come to its end: how, in what step, where its stack is, and its last words.
_DOING = (
    ("", ""),
    (", stopped by a signal", "，被信号暂停"),
    (", stopped by a debugger", "，被调试器暂停"),
    (", waiting for a device or a disk", "，在等待设备或磁盘"),
)
_STACK = (("", ""), (r": (?P<stack>\S{1,200} \([^()]{1,200}\)(?: < .{1,800})?)", r"：\g<stack>"))
_IN = ((r" in its start", "在启动时"), (r" in (?P<step>\w{1,30}(?: \w{1,10})?)", r"在 \g<step> 中"))
_SIGNAL = (
    (
        r"was ended by signal (?P<number>9) \(SIGKILL, which is what too little memory looks like\)",
        r"被信号 \g<number>（SIGKILL，内存不足时即如此）结束",
    ),
    (r"was ended by signal (?P<number>\d{1,4}) \((?P<name>\w{1,20})\)", r"被信号 \g<number>（\g<name>）结束"),
    (r"was ended by signal (?P<number>.{1,20})", r"被信号 \g<number> 结束"),
    (r"ended with exit (?P<number>-?\d{1,9}|None)", r"以退出码 \g<number> 结束"),
)
_ENDS = (
    (r"(?P<said>.{1,1200}?); it said: (.{1,400})", r"\g<said>；它的消息：\2"),
    (
        r"the process of " + _WHO + r" cannot be started: (.{1,500})",
        r"\g<who> 的进程无法启动：\2",
    ),
    *(
        (_WHO + " does not start" + doing + stack, r"\g<who> 没有启动" + doing_told + stack_told)
        for doing, doing_told in _DOING
        for stack, stack_told in _STACK
    ),
    *(
        (_WHO + " hangs" + step + doing + stack, r"\g<who> " + step_told + "卡住" + doing_told + stack_told)
        for step, step_told in _IN
        for doing, doing_told in _DOING
        for stack, stack_told in _STACK
    ),
    *(
        (f"{_WHO} {how}{step}{stack}", rf"\g<who> {step_told}{how_told}{stack_told}")
        for how, how_told in _SIGNAL
        for step, step_told in _IN
        for stack, stack_told in _STACK
    ),
    (
        _WHO + r" opened the store, and " + _SOME + r" cannot reach it: " + _SAID,
        r"\g<who> 打开了 store，而 \3 个 rank 中有 \2 个无法连上：\g<said>",
    ),
    *((_WHO + " failed" + step + ": " + _SAID, r"\g<who> " + told + r"出错：\g<said>") for step, told in _IN),
    (
        _WHO + r" fails in pairs with others, who get along without it: " + _SAID,
        r"\g<who> 与其他 rank 配对时出错，而其他 rank 没有它都正常：\g<said>",
    ),
    (r"the whole group makes no progress", "整个组没有进展"),
    (r"no rank makes progress, and all do the same", "没有 rank 有进展，且都在做同样的事"),
    (
        r"different versions of torch did not get along \((?P<versions>[^()]{1,900})\): " + _SAID,
        r"不同版本的 torch 无法协同（\g<versions>）：\g<said>",
    ),
    (r"it says that it failed", "它报告自己出错"),
    (
        r"none of (\d{1,9}) ranks came to its end in time: the machines are too busy, or hold all of them up",
        r"\1 个 rank 都没有及时完成：机器过于繁忙，或都被什么卡住了",
    ),
    (
        r"RuntimeError: ranks \[([\d, ]{1,400})\] of the group did not come to the store",
        r"RuntimeError：组内的 rank \1 没有到达 store",
    ),
    (
        r"RuntimeError: the store of the leader cannot be reached on port (\d{1,9}): (.{1,600})",
        r"RuntimeError：无法通过端口 \1 连上 leader 的 store：\2",
    ),
    (r"RuntimeError: no interface has an address", "RuntimeError：没有一个网络接口有地址"),
    (
        r"RuntimeError: GPU (\d{1,9}) is hidden by CUDA_VISIBLE_DEVICES=(.{0,200})",
        r"RuntimeError：GPU \1 被 CUDA_VISIBLE_DEVICES=\2 隐藏",
    ),
)

# Which ranks there are.
_CHOICE = (
    (r"(\d{1,9}) ranks?: there is nobody to compare with", r"\1 个 rank：没有可比较的对象"),
    (r"did not come to its end for " + _SOME, r"\2 个 rank 中有 \1 个没有完成"),
    (r"no worker has a torch that can be tested", "没有一个 worker 有可测试的 torch"),
    (r"no torch: (?P<said>.{1,700})", r"没有 torch：\g<said>"),
    (r"nothing was told", "没有给出任何信息"),
    (r"its import is not done yet", "import 尚未完成"),
    (r"torch was not asked for", "没有要求 torch"),
    (r"torch cannot be imported: (.{1,500})", r"无法 import torch：\1"),
    (r"the process that starts ranks takes no orders: (.{1,300})", r"负责启动 rank 的进程不接受指令：\1"),
    (r"the process that starts ranks has ended", "负责启动 rank 的进程已结束"),
    (r"the process that starts ranks was ended by signal (\d{1,4})", r"负责启动 rank 的进程被信号 \1 结束"),
    (r"the process that starts ranks ended with exit (\d{1,4})", r"负责启动 rank 的进程以退出码 \1 结束"),
    (r"the agent leaves", "agent 正在退出"),
    (r"no GPU of it was selected", "没有选择它的 GPU"),
    (r"it has no GPU (\d[\d, ]{0,200})", r"它没有 GPU \1"),
    (r"it has GPUs, and a torch that was built without CUDA", "它有 GPU，但 torch 构建时不带 CUDA"),
    (r"it has no GPU, and other workers have", "它没有 GPU，而其他 worker 有"),
    (r"(\d{1,9}) ranks? on CPUs", r"CPU 上的 \1 个 rank"),
    (r"(\d{1,9}) ranks? on ([^;]{1,300})", r"\2 上的 \1 个 rank"),
    (r"(\d{1,9}) of (\d{1,9}) ranks, (nccl|gloo)", r"\2 个 rank 中的 \1 个，\3"),
    (r"(\d{1,9}) ranks, (nccl|gloo)", r"\1 个 rank，\2"),
    (r"skipped: (.{1,400})", r"已跳过：\1"),
)

# Values that came wrong.
_FIRST = (
    ("", ""),
    (
        r" \((?P<n>\d{1,12}) values, the first at (?P<at>\S{1,20}): (?P<got>\S{1,60}) in place of (?P<want>\S{1,60})\)",
        r"（共 \g<n> 个值，第一个在 \g<at>：应为 \g<want>，实为 \g<got>）",
    ),
)
_WRONG = (
    *(
        (sentence + first, chinese + told)
        for sentence, chinese in (
            (
                rf"what rank (\d{{1,9}}) sent came wrong to rank (\d{{1,9}}) alone, in {_STEPS}",
                r"rank \1 发出的数据只在 rank \2 处出错（\3）",
            ),
            (rf"wrong values from it came to (\d{{1,9}}) ranks? in {_STEPS}", r"\1 个 rank 从它收到错误的值（\2）"),
            (
                r"it got wrong values from (\d{1,9}) ranks? that others got right",
                r"它从 \1 个 rank 收到错误的值，而其他 rank 收到的是正确的",
            ),
        )
        for first, told in _FIRST
    ),
    (
        rf"wrong sums in {_STEPS} came to it, and right ones to the others",
        r"它在 \1 中得到错误的和，而其他 rank 得到的是正确的",
    ),
    (rf"wrong sums in {_STEPS} came to {_SOME}", r"\3 个 rank 中有 \2 个在 \1 中得到错误的和"),
    (rf"wrong sums came to {_SOME}", r"\2 个 rank 中有 \1 个得到错误的和"),
    (
        r"the gradient that it gave to DDP is not the one of its micro-batch",
        "它交给 DDP 的梯度不是它的 micro-batch 的梯度",
    ),
    (
        rf"gradients after the sync differ from the reference on {_SOME}",
        r"\2 个 rank 中有 \1 个在同步后的梯度与参考值不同",
    ),
    (
        rf"parameters after a step differ from the reference on {_SOME}",
        r"\2 个 rank 中有 \1 个在一步之后的参数与参考值不同",
    ),
    (
        r"the gradients that it computes are outvoted (\d{1,9}) of (\d{1,9}) times",
        r"它计算的梯度在 \2 次表决中有 \1 次与多数不符",
    ),
    (
        r"the gradient that it computes differs from its own reference in fp64",
        "它计算的梯度与自身的 fp64 参考值不同",
    ),
    (r"its gradients differ from those of the other ranks after the sync", "同步后它的梯度与其他 rank 不同"),
    (r"its parameters differ from those of the other ranks after the sync", "同步后它的参数与其他 rank 不同"),
    (
        r"memory does not hold what was written at (\d{1,9}) or more places, the first (.{1,40})",
        r"显存或内存中至少 \1 处与写入的内容不符，第一处为 \2",
    ),
    *(
        (
            r"(matmul \w{1,10}) differs from fp64 by " + found + rf" of the greatest value \(({_NUMBER}) allowed\)",
            r"\1 与 fp64 之差为最大值的 " + told,
        )
        for found, told in ((rf"({_NUMBER}|inf|nan)", r"\2（允许 \3）"), (r"not a number", r"NaN（允许 \2）"))
    ),
    (r"(\d{1,12}) wrong products in (\d{1,9}) s under load", r"在 \2 s 的负载下有 \1 个错误的乘积"),
    (
        r"under load its speed falls to (\d{1,9})%, that of the others to (\d{1,9})%",
        r"负载下它的速度降到 \1%，其他 rank 降到 \2%",
    ),
)

# How fast.
_SPEED = (
    (r"nothing was measured", "没有测到任何数据"),
    (
        rf"busbw ({_NUMBER}) GB/s at (\w{{1,9}}) is (\d{{1,9}}%) of the ({_NUMBER}) that it should be \((.{{1,400}})\)",
        r"\2 时 busbw 为 \1 GB/s，只有应有值 \4 的 \3（\5）",
    ),
    (
        r"the GPUs of (\S{1,300}) among themselves reach (\d{1,9}%) of the middle of all workers",
        r"\1 内部各 GPU 之间的速度为所有 worker 中位数的 \2",
    ),
    (r"busbw in GB/s: ([^;]{1,300})", r"busbw（GB/s）：\1"),
    (rf"should be ({_NUMBER}) from (\w{{1,20}})", r"\2 起应为 \1"),
    (r"no figure is known for this hardware", "没有这种硬件的参考值"),
    (r"one worker: there are no pairs", "只有一个 worker：无法配对"),
    (rf"1 pair, busbw ({_NUMBER}) GB/s", r"1 对，busbw \1 GB/s"),
    (
        rf"(\d{{1,9}}) pairs?, busbw ({_NUMBER}) to ({_NUMBER}) GB/s, middle ({_NUMBER})",
        r"\1 对，busbw \2 至 \3 GB/s，中位数 \4",
    ),
    (
        r"on CPUs that says little of the network: see throughput",
        "在 CPU 上这不能说明网络情况：请看 throughput",
    ),
    (r"with one pair there is nothing to compare it with", "只有一对，无从比较"),
    *(
        (rf"(\S{{1,200}}) {found}: {span}", rf"\1 {told}：{span_told}")
        for found, told in (
            ("has pairs that do not come to their end", "有些配对没有完成"),
            ("is slow to most others", "与多数其他 worker 之间都慢"),
        )
        for span, span_told in (
            ("no answer", "没有应答"),
            (rf"no answer to (?P<most>{_NUMBER}) GB/s", r"没有应答至 \g<most> GB/s"),
            (rf"(?P<least>{_NUMBER}) GB/s", r"\g<least> GB/s"),
            (rf"(?P<least>{_NUMBER}) GB/s to (?P<most>{_NUMBER}) GB/s", r"\g<least> GB/s 至 \g<most> GB/s"),
        )
    ),
    *(
        (rf"(\S{{1,200}}) with (\S{{1,200}}): {rate}{rail}", rf"\1 与 \2：{rate_told}{rail_told}")
        for rate, rate_told in (("no answer", "没有应答"), (rf"(?P<rate>{_NUMBER}) GB/s", r"\g<rate> GB/s"))
        for rail, rail_told in (("", ""), (r" on rail (?P<rail>\d{1,4})", r"，在 rail \g<rail> 上"))
    ),
    (
        r"(\d{1,9}) ranks: with fewer than 3 nobody can tell which one is slow",
        r"\1 个 rank：少于 3 个时无法判断哪个慢",
    ),
    (r"(\d{1,9}) of (\d{1,9}) ranks told how fast they are", r"\2 个 rank 中有 \1 个报告了自己的速度"),
    (r"slowest ([\d.]{1,20}) times the middle", r"最慢者用时为中位数的 \1 倍"),
    (r"(\d{1,9}) of (\d{1,9}) had to wait for a CPU", r"\2 个中有 \1 个需要等待 CPU"),
    (
        r"(\d{1,9}) of them also alone: too much else runs to compare their speed",
        r"其中 \1 个单独运行时也如此：其他负载过多，无法比较速度",
    ),
    (
        r"([\d.]{1,20}) times as slow as the middle of all, alone ([\d.]{1,20}) times",
        r"用时为中位数的 \1 倍，单独运行时为 \2 倍",
    ),
    (r"it computes slowly", "它计算得慢"),
    (
        r"most of that it neither computes nor waits for a CPU",
        "其中大部分时间它既不在计算，也不在等待 CPU",
    ),
    (
        _WHO + r" is starved: also alone it waits for a CPU (\d{1,9}%) of its time",
        r"\g<who> 得不到 CPU：单独运行时也有 \2 的时间在等待 CPU",
    ),
    # Which way NCCL took.
    (
        r"NCCL fell back to sockets on (\S{1,200}); (\d{1,9}) of (\d{1,9}) workers use (.{1,40})",
        r"\1 上的 NCCL 退回到 socket；\3 个 worker 中有 \2 个使用 \4",
    ),
    (
        r"NCCL uses sockets on all workers although each has an active RDMA port",
        "所有 worker 上的 NCCL 都使用 socket，尽管每个都有可用的 RDMA 端口",
    ),
    (
        r"GPUs of (\S{1,200}) talk through shared memory; on (\d{1,9}) other workers directly",
        r"\1 的 GPU 之间通过共享内存通信；另有 \2 个 worker 上是直接通信",
    ),
    (r"([^,;]{1,40} x \d{1,9})", r"\1"),
)

#: For a phrasebook with the parts `who` and `versions`. What is said of one rank, whatever it is, comes last.
RANKS = (*_ENDS, *_CHOICE, *_WRONG, *_SPEED, (_WHO + r": (?P<said>.{1,1200})", r"\g<who>：\g<said>"))
