"""The engine's sentences in Chinese. What is not listed here stays English."""

from __future__ import annotations

from atlctl.diagnosis.telling.hangwords import PHRASES
from atlctl.diagnosis.telling.phrasebook import Phrasebook
from atlctl.i18n import Language

_RANKS = r"(\d+) ranks? on (\d+) workers?"

_PHRASES = (
    # One or several that failed of their own.
    (
        r"(\d+) failed of their own, its words stand first in the log",
        r"\1 个进程自身出错，它的消息在日志中最先出现",
    ),
    (r"(\d+) failed of their own, it is (\S{1,20}) s before the next", r"\1 个进程自身出错，它比下一个早 \2 s"),
    (r"(\d+) processes of one worker were killed at once", r"同一 worker 的 \1 个进程同时被结束"),
    (r"(\d+) others? only lost a peer", r"另有 \1 个只是失去对端"),
    (r"the only one that ended without a peer's failure in its words", "唯一一个结束时没有提到对端故障的进程"),
    (r"killed by SIGKILL", "被 SIGKILL 结束"),
    (r"others waited for a peer until a timeout", "其他进程等待对端直到超时"),
    (r"the only one with a cause in its own words", "唯一一个自己说明了原因的进程"),
    (r"the only failure of its own in this round", "本轮中唯一自身出错的进程"),
    (r"what came later followed", "之后的都是后果"),
    (r"the only one that failed of its own", "唯一一个自身出错的进程"),
    (r"the only failure in the logs", "日志中唯一的故障"),
    (r"they ended with exit code 1, without a word", "它们以退出码 1 结束，没有留下消息"),
    (r"they ended with exit code 1 at the same time, without a word", "它们同时以退出码 1 结束，没有留下消息"),
    (r"the only one that does not blame a peer", "唯一一个没有指向对端的进程"),
    (r"it ended first", "它最先结束"),
    (r"nothing says why", "没有说明原因"),
    (r"the same failure on (\d+) ranks", r"\1 个 rank 上的同一故障"),
    (r"they failed within the same second, and no finer time is known", "它们在同一秒内出错，没有更精确的时间"),
    (r"they failed at the same moment, apart from each other", "它们在同一时刻各自出错"),
    (
        r"each failed of its own, on workers whose clocks cannot be compared: which was first is not known",
        "它们各自出错，而所在 worker 的时钟无法比较：不知道谁先谁后",
    ),
    (r"several ended alike at the same time, without a word", "多个进程同时以同样方式结束，没有留下消息"),
    (
        r"the same failure on all (\d+) processes that failed, on (\d+) workers?",
        r"出错的 \1 个进程（\2 个 worker）全是同一故障",
    ),
    (r"all its processes failed before the user's code ran", "它的所有进程在用户代码运行之前就出错了"),
    (r"(.{1,60}) failed before the user's code ran", r"\1 在用户代码运行之前就出错了"),
    (r"failed in another round", "在另一轮中出错"),
    (r"the job was restarted since", "之后作业已重启"),
    # From outside, and the rendezvous.
    (r"one agent got a signal", "某个 agent 收到了信号"),
    (r"the logs do not decide it, the platform says so", "日志无法判定，平台给出了原因"),
    (r"the platform says: (.{1,500})", r"平台信息：\1"),
    (
        r"(\S{1,80}) ended with exit code (-?\d+), and its log names no failure",
        r"\1 以退出码 \2 结束，其日志中没有故障",
    ),
    (r"(\S{1,80}) is (\w{1,20}), and its log names no failure", r"\1 的状态是 \2，其日志中没有故障"),
    (
        r"(\S{1,80}) ended with exit code (-?\d+), before the job's controller deleted the other pods",
        r"\1 以退出码 \2 结束，之后作业控制器才删除其余 pod",
    ),
    (
        r"(\S{1,80}) was stopped from outside \(its pod was deleted or evicted\) before any other worker ended",
        r"\1 在其他 worker 结束之前被外部停止（其 pod 被删除或驱逐）",
    ),
    (r"it is the first that ended, by the states and events of the job", "按作业的状态和事件，它最先结束"),
    (r"(?:every|the) agent received (\w{1,20}) from outside", r"所有 agent 都收到来自外部的 \1"),
    (r"its agent alone received (\w{1,20}) from outside", r"只有它的 agent 收到来自外部的 \1"),
    (r"the other workers lost their connection to it", "其他 worker 与它断开了连接"),
    (r"(\d+) of (\d+) agents received (\w{1,20}) from outside", r"\2 个 agent 中有 \1 个收到来自外部的 \3"),
    (
        r"every agent waited in the store for the others until the timeout: all were there, and they did not meet",
        "所有 agent 都在 store 中等待其他 agent 直到超时：全都在场，却没有会合",
    ),
    (r"no worker can resolve it", "没有一个 worker 能解析它"),
    (r"the name does not resolve", "该名称无法解析"),
    (r"no worker that left a log could reach it", "留下日志的 worker 都无法连上它"),
    (r"its agent failed by itself, before or beside its processes", "它的 agent 自身出错，与其进程无关"),
    (r"its agent failed by itself", "它的 agent 自身出错"),
    (r"the same on every agent", "每个 agent 都一样"),
    (r"the others waited for it in the rendezvous until the timeout", "其他 worker 在 rendezvous 中等它直到超时"),
    (r"A worker that left no log did not join the rendezvous", "某个没有留下日志的 worker 没有加入 rendezvous"),
    (r"(\S{1,80}) did not join the rendezvous", r"\1 没有加入 rendezvous"),
    (r"(\S{1,80}) could not connect to (\S{1,80})", r"\1 无法连接 \2"),
    # Who is missing.
    (r"it did not even leave on SIGTERM", "收到 SIGTERM 也没有退出"),
    (_RANKS + r" waited for it until the timeout", r"\2 个 worker 上的 \1 个 rank 等它直到超时"),
    (_RANKS + r" lost their connection to it", r"\2 个 worker 上的 \1 个 rank 与它断开了连接"),
    (r"the others lost their rendezvous", "其他 worker 失去了 rendezvous"),
    (r"it said nothing until its agent ended it", "在被 agent 结束之前它没有任何消息"),
    (r"none of its processes said anything", "它的进程都没有任何消息"),
    (r"its log just ends", "它的日志戛然而止"),
    (_RANKS + r" waited for it", r"\2 个 worker 上的 \1 个 rank 等待它"),
    (r"the only one that blames no peer, and it left no word", "唯一没有指向对端的进程，也没有留下消息"),
    (
        r"its agent waits at the exit: its processes had left with exit code 0",
        "它的 agent 在退出处等待：它的进程已以退出码 0 离开",
    ),
    (
        r"it received another size than it expected: it or its peer ran another collective",
        "它收到的大小与预期不同：它或它的对端执行了不同的集合通信",
    ),
    (
        r"all waited until the timeout, its processes too, and its agent alone never reports an end",
        "所有进程都等到超时，包括它的进程，而只有它的 agent 从未报告结束",
    ),
    (r"(\S{1,80}) was cut off from the others", r"\1 与其他 worker 失去联系"),
    (
        r"The processes of (\S{1,80}) left in mid-run without a word \(exit code 0\)",
        r"\1 的进程在运行中途一声不响地离开（退出码 0）",
    ),
    (
        r"The others lost their connection to (\S{1,80}), whose log could not be read",
        r"其他 worker 与 \1 断开了连接，而它的日志无法读取",
    ),
    (r"(.{1,80}) left, and its words are not in the log", r"\1 已离开，它的消息不在日志中"),
    (
        r"its agent ended all others of its worker, it neither ended nor reports this one: it had left .{1,40}",
        "它的 agent 结束了该 worker 的其他进程，却既没有结束也没有报告它：它已以退出码 0 离开",
    ),
    (r"its agent ended all others of its worker", "它的 agent 结束了该 worker 的其他进程"),
    (_RANKS + r" lost it or waited for it", r"\2 个 worker 上的 \1 个 rank 与它断开或等待它"),
    (
        rf"its own watchdog thread was stuck, {_RANKS} only lost a peer",
        r"它自己的看门狗线程卡住，\2 个 worker 上的 \1 个 rank 只是失去对端",
    ),
    (r"it lost its peers only after they had given up", "它在对端放弃之后才失去它们"),
    (r"the same failure on all (\d+) workers", r"全部 \1 个 worker 上的同一故障"),
    (
        r"the others could not reach the rendezvous on it, and its own log has no word of an agent",
        "其他 worker 无法连接到它上面的 rendezvous，而它自己的日志里没有 agent 的任何消息",
    ),
    (r"No agent came up on (\S+)", r"\1 上没有启动 agent"),
    (
        r"(\d+) of (\d+) agents joined, and there (?:is|are) (\d+) logs?",
        r"\2 个 agent 中有 \1 个加入，而日志有 \3 份",
    ),
    (
        r"what it lacks is the same for all of its worker; the others were ended before they could say so",
        "它缺少的东西对该 worker 的所有进程都一样；其他进程还没来得及说就被结束了",
    ),
    (
        rf"its own watchdog thread was stuck, {_RANKS} waited until the timeout",
        r"它自己的看门狗线程卡住，\2 个 worker 上的 \1 个 rank 等到超时",
    ),
    (
        r"the only one of the group that waited first which said nothing",
        "最先开始等待的那一组中唯一没有任何消息的进程",
    ),
    (r"the logs of (\d+) workers just end", r"有 \1 个 worker 的日志戛然而止"),
    (r"a worker left no log", "某个 worker 没有留下日志"),
    (r"all victims name its address (\S{1,80})", r"所有受害者都提到它的地址 \1"),
    (r"nobody heard of it, though the ranks around it spoke", "没有它的任何消息，而它前后的 rank 都有"),
    (r"nothing tells which of them was first", "无法得知谁最先出错"),
    (r"a victim that spoke: the first failure is not in these logs", "它只是受害者：最先的故障不在这些日志中"),
    (
        r"its agent lost the rendezvous: the first failure is not in these logs",
        "它的 agent 失去了 rendezvous：最先的故障不在这些日志中",
    ),
    (r"the line does not say which process printed it", "该行没有写明由哪个进程打印"),
    (
        r"(.{1,80}) did not come to the collective in which the others waited",
        r"\1 没有到达其他 rank 所等待的集合通信",
    ),
    (r"(.{1,80}) left in mid-run without a word \(exit code 0\)", r"\1 在运行中途一声不响地离开（退出码 0）"),
    (
        r"No process of (\S{1,80}) came to the collective in which the others waited",
        r"\1 没有一个进程到达其他 rank 所等待的集合通信",
    ),
    (
        r"The log of (\S{1,80}) just ends, while the others lost their connection to it",
        r"\1 的日志戛然而止，其他 worker 与它断开了连接",
    ),
    # What the ranks say about each other's progress.
    (r"last enqueued collective (\d+)", r"最后提交的集合通信是第 \1 个"),
    (r"(\d+) other ranks had enqueued up to (\d+)", r"另有 \1 个 rank 已提交到第 \2 个"),
    (r"it waited in (.{1,80}), (\d+) others in (.{1,80})", r"它在 \1 中等待，另有 \2 个在 \3 中"),
    (r"a report of the waiting ranks names it", "等待中的 rank 的报告指出了它"),
    (r"two sides, no majority", "双方人数相当，没有多数"),
    (r"(\d+) ranks ran (.{1,200}), it did not", r"\1 个 rank 执行 \2，它没有"),
    (
        r"the flight recorders of (\d+) ranks have (.{1,100}), its own does not",
        r"\1 个 rank 的飞行记录器中有 \2，它自己的没有",
    ),
    (
        r"it did not enqueue the collective in which the others waited",
        r"它没有提交其他 rank 所等待的集合通信",
    ),
    (r"it (?:called|ran) another collective than its peers?", r"它调用了与对端不同的集合通信"),
    (r"it did not join the collective of the others", r"它没有加入其他 rank 的集合通信"),
    (r"it did not come to the barrier", r"它没有到达 barrier"),
    (
        r"None of its processes came to the collective in which the others waited",
        "它没有一个进程到达其他 rank 所等待的集合通信",
    ),
    # What only followed.
    (r"ended by its own agent \((SIGTERM|SIGKILL)\)", r"被自己的 agent 结束（\1）"),
    (r"killed by its own agent \(SIGKILL\)", "被自己的 agent 强制结束（SIGKILL）"),
    (
        r"torchrun itself ended: the rendezvous or its store was gone",
        "torchrun 自身结束：rendezvous 或其 store 已不在",
    ),
    (r"a later failure: (\S{1,200})", r"之后的故障：\1"),
    (r"ended by (\w{1,20})", r"被 \1 结束"),
    (r"exit code (-?\d+)", r"退出码 \1"),
    (r"other failures", "其他故障"),
    (r"(gloo|NCCL): connection closed by a peer", r"\1：连接被对端关闭"),
    (r"gloo: connection to a peer broke", "gloo：与对端的连接中断"),
    (r"gloo: could not connect to its peers", "gloo：无法连接对端"),
    (r"gloo: waited for a peer until the timeout", "gloo：等待对端直到超时"),
    (r"gloo: received another size than expected", "gloo：收到的大小与预期不同"),
    (r"NCCL: its own watchdog thread was stuck", "NCCL：它自己的看门狗线程卡住"),
    (r"NCCL: ended after a peer's timeout", "NCCL：在对端超时后结束"),
    (r"NCCL: a peer left", "NCCL：对端离开"),
    (r"NCCL: waited in a collective until the timeout", "NCCL：在集合通信中等待直到超时"),
    (r"NCCL: ended by its own watchdog after a failed collective", "NCCL：集合通信失败后被自己的看门狗结束"),
    (r"NCCL: the communicator was aborted after a failure", "NCCL：故障后 communicator 被中止"),
    (r"the store's host went away", "store 所在主机离开"),
    (r"waited in the store for a peer", "在 store 中等待对端"),
    (r"waited for peers to join", "等待对端加入"),
    (r"the rendezvous' host went away or cannot be reached", "rendezvous 所在主机离开或不可达"),
    (r"another worker closed the rendezvous", "另一个 worker 关闭了 rendezvous"),
    (r"waited for peers in a barrier", "在 barrier 中等待对端"),
    (r"ran another collective than a peer", "执行了与对端不同的集合通信"),
    (r"connection reset by a peer", "连接被对端重置"),
    (r"wrote to a peer that was gone", "写入时对端已不在"),
    # Remarks.
    (r"no log of (\d+) workers?: (.{1,500})", r"\1 个 worker 没有日志：\2"),
    (r"never seen: (.{1,500})", r"从未出现：\1"),
    (r"clocks differ and were set right: (.{1,500})", r"时钟不一致，已校正：\1"),
    (r"the job was restarted", "作业已重启"),
    (r"what came after round (\d+) only followed", r"第 \1 轮之后的都只是后果"),
)
_BOOK = Phrasebook(_PHRASES, PHRASES)


def said_in(text: str, language: Language) -> str:
    """A sentence of the engine's in `language`; what is not wholly known, as a log's own text, stays as it is."""
    return text if language == "en" else _BOOK.said(text)
