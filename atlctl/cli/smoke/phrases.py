"""Notes and evidence of the smoke test in Chinese. What is not listed here stays English.

Groups that are worker's words, names or versions stay as they are; those named `said` may be sentences themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from atlctl.cli.smoke.phrases_ranks import RANKS, VERSIONS, WHO
from atlctl.diagnosis.signatures.load import builtin
from atlctl.diagnosis.telling.phrasebook import Phrasebook

#: Longer texts are no sentences of the program's own.
_LONGEST = 4000
_COUNT = r"\d{1,9}"
_NUMBER = r"[\d.e+-]{1,20}"
_SIZE = _NUMBER + r" [KMGT]?i?B"
_SAID = r"(?P<said>.{1,900})"
#: One of several with `, ` between them.
_ITEM = r"((?:[^,]|,(?! )){1,500})"
_SECONDS = r"([\d.e+]{1,20}) s"

# Behind a sentence, whatever is in it: before all others.
_MORE = (
    (_SAID + r"; its machine has too much to do to tell", r"\g<said>；它所在的机器过于繁忙，无法判断"),
    (
        _SAID + r"; asked once more it answered, and was not tested",
        r"\g<said>；再次询问时它有应答，但没有参与测试",
    ),
    (_SAID + r"; another one answers", r"\g<said>；再启动的另一个 agent 有应答"),
    (_SAID + r"; the agent may still run there", r"\g<said>；agent 可能仍在那里运行"),
    (_SAID + r"; a second time it came to its end", r"\g<said>；第二次它正常完成"),
    (_SAID + r"; a second time it got along", r"\g<said>；第二次它正常完成"),
)

# Who answers, and why not.
_ANSWERS = (
    (r"(\d{1,9}) of (\d{1,9}) workers answer", r"\2 个 worker 中有 \1 个应答"),
    (r"it is not running \((\w{1,20})\)", r"它没有在运行（\1）"),
    (r"it is not running \((\w{1,20}): (.{1,500})\)", r"它没有在运行（\1：\2）"),
    (r"the job has no worker of index (\d{1,9})", r"作业中没有编号为 \1 的 worker"),
    (rf"no answer within {_SECONDS}: not connected", r"\1 s 内没有应答：未连接上"),
    (
        rf"no answer within {_SECONDS}: its agent was started and says nothing",
        r"\1 s 内没有应答：它的 agent 已启动，但没有任何消息",
    ),
    (
        rf"no answer within {_SECONDS}: a shell answers there, and no Python that it starts does",
        r"\1 s 内没有应答：那里的 shell 有应答，但由它启动的 Python 没有",
    ),
    (rf"no answer within {_SECONDS}", r"\1 s 内没有应答"),
    (rf"no answer in {_SECONDS}", r"\1 s 内没有应答"),
    (rf"no answer in {_SECONDS} \(process state (\S{{1,4}})\)", r"\1 s 内没有应答（进程状态 \2）"),
    (
        rf"no answer in {_SECONDS} \(process state (\S{{1,4}}), in (\S{{1,100}})\)",
        r"\1 s 内没有应答（进程状态 \2，位于 \3）",
    ),
    (r"no answer yet", "尚无应答"),
    (r"there is no shell", "那里没有 shell"),
    (r"no Python 3\.8 or newer is there", "那里没有 Python 3.8 或更新的版本"),
    (
        r"no Python 3\.8 or newer is there; not run, as other users can change it: (.{1,900})",
        r"那里没有 Python 3.8 或更新的版本；\1 可被其他用户改动，未予运行",
    ),
    (r"the agent ended with exit (-?\d{1,9}|None)", r"agent 以退出码 \1 结束"),
    (r"it ended with (-?\d{1,9}|None)", r"它以退出码 \1 结束"),
    (r"lost: (.{1,500})", r"连接断开：\1"),
    (r"its answer (?:is|was) not understood", "无法理解它的应答"),
    (r"its agent failed", "它的 agent 出错"),
    (rf"its agent was lost while it was tested: {_SAID}", r"测试期间与它的 agent 失去联系：\g<said>"),
    # Why a check was not made.
    (r"no time left", "时限已到"),
    (r"no worker answers any more", "已没有 worker 应答"),
    (r"--no-gpu", "指定了 --no-gpu"),
    (r"one worker: there is nobody to talk to", "只有一个 worker：没有可通信的对象"),
    (r"the check failed itself: (.{1,900})", r"检查自身出错：\1"),
    (
        rf"somebody trains: (\S{{1,900}}): {_SAID}, and on (\d{{1,9}}) more",
        r"有人在训练：\1：\g<said>（另有 \3 个 worker 同样如此）",
    ),
    (rf"somebody trains: (\S{{1,900}}): {_SAID}", r"有人在训练：\1：\g<said>"),
)

# The GPUs, and who uses them.
_THROTTLED = (
    (r"heat", "过热"),
    (r"power brake", "供电降频（power brake）"),
    (r"hardware", "硬件降频"),
)
_XIDS = tuple(
    (re.escape(signature.meaning.en.rstrip(".")), signature.meaning.zh.rstrip("。"))
    for signature in builtin().signatures
    if "xid" in signature.id
)
_GPUS = (
    (r"whether ranks run there cannot be told: " + _SAID, r"无法得知那里是否有 rank 在运行：\g<said>"),
    (r"ranks run there \(([^()]{1,200})\)", r"那里有 rank 在运行（\1）"),
    (r"processes compute on GPU ([\d, ]{1,120})", r"有进程在 GPU \1 上计算"),
    (r"memory of GPU ([\d, ]{1,120}) is held, up to (\d{1,12}) MiB", r"GPU \1 的显存被占用，最多 \2 MiB"),
    (r"GPU ([\d, ]{1,120}) in use, up to (\d{1,12}) %", r"GPU \1 正在使用，最高 \2 %"),
    *(
        (
            rf"({_SIZE}) of memory are left to its {of}, ({_SIZE}) are needed{end}",
            rf"{of_told}只剩 \1 内存，需要 \2{told}",
        )
        for of, of_told in (("cgroup", "它的 cgroup "), ("machine", "它的机器"))
        for end, told in (
            ("", ""),
            (", and all of its processes would be killed", "，而一旦用尽，它的所有进程都会被结束"),
        )
    ),
    (r"there is no GPU on any worker", "所有 worker 都没有 GPU"),
    (r"(\d{1,9}) GPUs? on (\d{1,9}) workers?", r"\2 个 worker 上共 \1 块 GPU"),
    (r"there is no nvidia-smi to ask", "没有 nvidia-smi 可供查询"),
    (r"nvidia-smi hangs: " + _SAID, r"nvidia-smi 卡住：\g<said>"),
    (r"nvidia-smi tells of a GPU that does not answer: (.{1,400})", r"nvidia-smi 报告有 GPU 没有应答：\1"),
    (r"nvidia-smi ended with (-?\d{1,9}): (.{0,400})", r"nvidia-smi 以退出码 \1 结束：\2"),
    (
        r"(\d{1,9}) GPUs are there, the platform states (\d{1,9}); (?P<said>.{1,500})",
        r"实际有 \1 块 GPU，平台声明 \2 块；\g<said>",
    ),
    (r"(\d{1,9}) GPUs are there, the platform states (\d{1,9})", r"实际有 \1 块 GPU，平台声明 \2 块"),
    (r"a bad row of its memory could not be remapped", "有损坏的显存行无法重映射"),
    (r"bad memory waits for the GPU to be reset", "有损坏的显存，需复位 GPU 才能处理"),
    (
        r"(\d{1,12}) memory errors? that ECC could not correct since the driver was loaded",
        r"自驱动加载以来有 \1 个 ECC 无法纠正的显存错误",
    ),
    (r"Xid (\d{1,9}) (\d{1,9}) min ago: (?P<said>[^;]{1,300})", r"\2 分钟前出现 Xid \1：\g<said>"),
    (r"Xid (\d{1,9}): (?P<said>[^;]{1,300})", r"出现 Xid \1：\g<said>"),
    *_XIDS,
    *_THROTTLED,
    (r"its clock is held down: (?P<said>[^;]{1,200}), (\d{1,9}) degrees", r"它的频率被压低：\g<said>，温度 \2 ℃"),
    (r"its clock is held down: (?P<said>[^;]{1,200})", r"它的频率被压低：\g<said>"),
)

# What a worker is made of.
_LABELS = (
    (r"torch|CUDA|NCCL|Python|memlock|RDMA|/dev/shm", r"\1"),
    (r"GPU driver", "GPU 驱动"),
    (r"kernel", "内核"),
    (r"machine", "机器架构"),
    (r"GPUs", "GPU"),
    (r"GPU topology", "GPU 拓扑"),
    (r"RDMA port (\S{1,200})", r"RDMA 端口 \2"),
    (r"NVLinks of GPU (\d{1,9})", r"GPU \2 的 NVLink"),
)
_NOT_SET = ((r"not set", "未设置"),)
_NONE = ((r"none", "无"), (r"not there", "没有"), (r"no limit", "无限制"))
_VALUES = Phrasebook(
    _NONE,
    (
        (r"(\d{1,9}) up, (\d{1,9}) down", r"\1 条正常，\2 条断开"),
        (r"(\d{1,9}) x of unknown kind", r"\1 x 未知型号"),
        (r"not told: (.{1,200})", r"未知：\1"),
    ),
)


def _groups(own: Iterable[tuple[str, str]]) -> Phrasebook:
    """Who has what: `worker-[0-2] none, worker-3 2.4.0`. `own`: values that are the program's words."""
    known = ((rf"(\S{{1,300}}) {english}", rf"\1 {chinese}") for english, chinese in own)
    return Phrasebook((*known, (_ITEM, r"\1")), joints=((", ", "，"),))


_SPLIT = Phrasebook(
    (
        *((rf"({label}): (?P<groups>[^;]{{1,1500}})", told + r"：\g<groups>") for label, told in _LABELS),
        (r"setting (\w{1,100}): (?P<set>[^;]{1,1500})", r"环境变量 \1：\g<set>"),
        (r"(\d{1,9}) more", r"另有 \1 项"),
    ),
    parts={"groups": _groups(_NONE), "set": _groups(_NOT_SET)},
)
_FACTS = (
    *(
        (
            rf"({label}): (?P<value>[^;]{{0,200}}) \(the others: (?P<value2>[^;]{{0,200}})\)",
            told + r"：\g<value>（其他 worker：\g<value2>）",
        )
        for label, told in _LABELS
    ),
    # Here `none` is what somebody has set, and no word of the program's own.
    (
        r"setting (\w{1,100}): not set \(the others: ([^;]{0,200})\)",
        r"环境变量 \1：未设置（其他 worker：\2）",
    ),
    (
        r"setting (\w{1,100}): ([^;]{0,200}) \(the others: not set\)",
        r"环境变量 \1：\2（其他 worker：未设置）",
    ),
    (r"setting (\w{1,100}): ([^;]{0,200}) \(the others: ([^;]{0,200})\)", r"环境变量 \1：\2（其他 worker：\3）"),
    (
        r"not alike, and no value is that of most: (?P<split>.{1,3000})",
        r"不一致，且没有占多数的值：\g<split>",
    ),
    (r"(\d{1,9}) more", r"另有 \1 项"),
    (r"its name (\S{1,300}) stands for (.{1,300}) there", r"它的主机名 \1 在那里解析为 \2"),
    (r"clocks differ: (?P<said>.{1,2000})", r"时钟不一致：\g<said>"),
    (r"(\S{1,100}) by ([+-][\d.]{1,20}) s", r"\1 \2 s"),
    (rf"its clock is {_SECONDS} ahead of the others', at least", r"它的时钟比其他 worker 至少快 \1 s"),
    (rf"its clock is {_SECONDS} behind the others', at least", r"它的时钟比其他 worker 至少慢 \1 s"),
    (r"it told nothing of itself: " + _SAID, r"它没有提供自身信息：\g<said>"),
    (r"one worker, nothing to compare with", "只有一个 worker，无从比较"),
    (r"one worker, nothing to compare with: (?P<said>.{1,900})", r"只有一个 worker，无从比较：\g<said>"),
    (r"(torch|CUDA|NCCL) none", r"无 \1"),
    (r"GPUs none", "无 GPU"),
    (r"((?:torch|CUDA|NCCL) \S{1,100})", r"\1"),
    (r"GPUs (?P<value>\d{1,6} x [^,;]{1,200})", r"GPU \g<value>"),
)

# The network.
_FAILS = (
    (r"no connection", "没有连接"),
    (r"connections are refused", "连接被拒绝"),
    (r"connected, and then no answer", "连接后没有应答"),
    (r"another worker answers at its address", "在它的地址上应答的是另一个 worker"),
    (r"bytes arrive altered", "收到的字节被改动"),
    (r"small packets pass, large ones do not", "小包能通过，大包不能"),
)
_LOOPBACK = r"all workers share one machine's loopback: no network "
_NETWORK = (
    (r"one worker alone has nobody to call", "只有一个 worker，没有可连接的对象"),
    (r"fewer than two workers can be called", "可连接的 worker 不足两个"),
    (
        r"it has no address but loopback, while other workers are on other hosts",
        "它除回环地址外没有其他地址，而其他 worker 在别的主机上",
    ),
    (r"its agent gave no usable answer: " + _SAID, r"它的 agent 没有给出可用的应答：\g<said>"),
    (r"(\d{1,9}) of (\d{1,9}) connections", r"\2 个连接中有 \1 个成功"),
    (r"round trip ([\d.]{1,20}) ms", r"往返 \1 ms"),
    (r"(\d{1,9}) passed only the second time", r"\1 个第二次才成功"),
    (_LOOPBACK + r"was tested", "所有 worker 都在一台机器的回环网络上：没有测试网络"),
    (_LOOPBACK + r"to measure", "所有 worker 都在一台机器的回环网络上：没有网络可测"),
    (_LOOPBACK + r"to judge", "所有 worker 都在一台机器的回环网络上：没有网络可判定"),
    *((rf"(?P<said>.{{1,2000}}): {english}", rf"\g<said>：{chinese}") for english, chinese in _FAILS),
    *(
        (rf"(?P<said>.{{1,2000}}?): {english} \((?P<said2>.{{1,250}})\)", rf"\g<said>：{chinese}（\g<said2>）")
        for english, chinese in _FAILS
    ),
    (r"(\d{1,9}) of (\d{1,9}) connections to it fail", r"连到它的 \2 个连接中有 \1 个失败"),
    (r"(\d{1,9}) of (\d{1,9}) connections from it fail", r"由它发起的 \2 个连接中有 \1 个失败"),
    (r"only connections from (\S{1,300}) to (\S{1,300}) fail", r"只有从 \1 到 \2 的连接失败"),
    (r"connections between (\S{1,300}) and (\S{1,300}) fail", r"\1 与 \2 之间的连接失败"),
    (
        r"(\d{1,9}) pairs among (.{1,2000}) fail, too many to tell who is at fault",
        r"\2 之间有 \1 对连接失败，数量过多，无法指明是谁的问题",
    ),
    (rf"nothing came for {_SECONDS}", r"\1 s 内没有收到任何数据"),
    (r"hung up", "对端挂断"),
    (r"worker number (\d{1,9}) answers there", r"那里应答的是编号为 \1 的 worker"),
    (r"bytes came back altered", "返回的字节被改动"),
    (r"no transfer was possible", "无法进行任何传输"),
    (rf"median ({_NUMBER}) MB/s, slowest ({_NUMBER}) MB/s", r"中位数 \1 MB/s，最慢 \2 MB/s"),
    (r"speed: with two workers there is no reference", "速度：只有两个 worker，没有参照"),
    (r"speed: too few links are left to compare", "速度：剩下的链路太少，无法比较"),
    (
        rf"({_NUMBER}) % of the packets are lost \(({_COUNT}) of ({_COUNT}), sent slowly\)",
        r"丢包 \1 %（低速发送 \3 个，丢失 \2 个）",
    ),
    (
        rf"no transfer gets through, alone, where others have ({_NUMBER}) MB/s,",
        r"单独传输也无法完成，而其他链路为 \1 MB/s",
    ),
    (
        rf"({_NUMBER}) MB/s, alone, where others have ({_NUMBER}) MB/s,",
        r"单独传输时 \1 MB/s，而其他链路为 \2 MB/s",
    ),
    (
        rf"(?P<said>.{{1,150}}) on ({_COUNT}) of ({_COUNT}) of its directions",
        r"\g<said>，涉及它 \3 个方向中的 \2 个",
    ),
    (
        rf"(?P<said>.{{1,150}}) on ({_COUNT}) pairs, too many to tell who is at fault",
        r"\g<said>，涉及 \2 对，数量过多，无法指明是谁的问题",
    ),
    (
        r"(?P<said>.{1,150}) from (\S{1,300}) to (\S{1,300}) and (\S{1,300}) to (\S{1,300})",
        r"\g<said>，从 \2 到 \3 及从 \4 到 \5",
    ),
    (r"(?P<said>.{1,150}) from (\S{1,300}) to (\S{1,300})", r"\g<said>，从 \2 到 \3"),
)

# Mounts.
_BROKEN = (
    (r"is not there", "不存在"),
    (r"is no folder", "不是目录"),
    (r"is read-only", "只读"),
    (r"is full", "已满"),
    (r"is full: the quota is used up", "已满：配额已用尽"),
    (r"may not be written", "没有写权限"),
    (r"is stale: the server knows it no more", "句柄失效：服务器已不认得它"),
    (r"is not connected: the process that serves it is gone", "未连接：为它提供服务的进程已不在"),
    (r"fails", "出错"),
    (r"cannot be read", "无法读取"),
)
_HANGS = r"hangs: no answer in ([\d.]{1,20}) s to (\w{1,20}) \(process state (\S{1,4})"
_TOGETHER = rf"with all at once {_SECONDS}, the middle one {_SECONDS}"
_STORAGE = (
    (r"no mount was named, and all workers share none", "没有指定挂载点，所有 worker 也没有共同的挂载"),
    (r"one worker: whether others see the same is not judged", "只有一个 worker：无法判断其他 worker 看到的是否相同"),
    (rf"{_ITEM} ({_COUNT}) MB/s", r"\1 \2 MB/s"),
    (_ITEM + r" not written", r"\1 未写入"),
    (r"it told nothing of its mounts: " + _SAID, r"它没有提供挂载信息：\g<said>"),
    (
        r"not mounted; (\d{1,9}) others have it there from (.{1,300})",
        r"未挂载；另有 \1 个 worker 在此挂载了 \2",
    ),
    (r"cannot be tested: (?P<said>[^;]{1,400})", r"无法测试：\g<said>"),
    (r"on all workers: " + _SAID, r"所有 worker：\g<said>"),
    *((rf"{english} \((\w{{1,20}}): ([^;]{{1,400}})\)", rf"{chinese}（\1：\2）") for english, chinese in _BROKEN),
    (_HANGS + r"\)", r"卡住：\2 在 \1 s 内没有返回（进程状态 \3）"),
    (_HANGS + r", in (\S{1,200})\)", r"卡住：\2 在 \1 s 内没有返回（进程状态 \3，位于 \4）"),
    (r"later it answered", "后来有应答"),
    (
        r"no worker sees the file of another one, though all mount the same source",
        "没有一个 worker 能看到其他 worker 的文件，尽管挂载的都是同一来源",
    ),
    (
        r"each worker has a volume of its own there: nothing is shared",
        "各 worker 在此处各有自己的卷：没有共享",
    ),
    (
        r"another volume: it does not see the files of (\S{1,900}), who share one view",
        r"是另一个卷：它看不到 \1 的文件，而它们彼此可见",
    ),
    (
        r"not one volume, and no view is that of most: ([^;]{1,2000})",
        r"不是同一个卷，也没有占多数的一组：\1",
    ),
    (r"its file is not seen by (\S{1,900})", r"\1 看不到它的文件"),
    (
        r"it does not see the file of (\S{1,900}), which others see",
        r"它看不到 \1 的文件，而其他 worker 能看到",
    ),
    (r"what it wrote reads otherwise: (\S{1,900}) read it", r"它写入的内容读出来不一样：由 \1 读取"),
    (
        r"it reads otherwise than others what (\S{1,900}) wrote",
        r"对 \1 写入的内容，它读到的与其他 worker 不一样",
    ),
    (rf"full: ({_SIZE}) free of ({_SIZE})", r"已满：\2 中剩余 \1"),
    (rf"nearly full: ({_SIZE}) free of ({_SIZE})", r"即将写满：\2 中剩余 \1"),
    (
        r"nearly out of inodes: (\d{1,20}) free of (\d{1,20})",
        r"inode 即将用尽：\2 个中剩余 \1 个",
    ),
    *(
        (
            rf"slow: {_SECONDS} {verb} ({_SIZE}) alone, another worker {_SECONDS}; {_TOGETHER}",
            rf"慢：单独{told} \2 用时 \1 s，另一个 worker 为 \3 s；同时进行时它为 \4 s，中位数为 \5 s",
        )
        for verb, told in (("to write and sync", "写入并同步"), ("to read", "读取"))
    ),
)

_BOOK = Phrasebook(
    _MORE,
    _ANSWERS,
    _GPUS,
    _FACTS,
    RANKS,
    _NETWORK,
    _STORAGE,
    joints=(("; ", "；"), (", ", "，")),
    parts={"value": _VALUES, "split": _SPLIT, "who": WHO, "versions": VERSIONS},
)


def said(text: str) -> str:
    """A note or evidence in Chinese; what is not wholly known, as a worker's own words, stays as it is."""
    return _BOOK.said(text) if len(text) <= _LONGEST else text
