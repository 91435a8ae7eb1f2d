"""The text output of `stacks`."""

from __future__ import annotations

from atlctl.cli.commands.stacks import SceneText
from atlctl.diagnosis.hang import changes
from atlctl.render.streams import Streams
from tests.unit.diagnosis.hang.made import COLLECTIVE, job, rank, recorder, stack

PIPE = SceneText("en", Streams())


def test_the_odd_rank_comes_first() -> None:
    odd = rank(5, "sleep", stack=stack(["stuck", "/job/train.py", 6]), recorder=recorder(5, pending=False))
    scene = job({5: odd}, stack=stack(*COLLECTIVE), recorder=recorder(6, pending=True))
    assert PIPE.text(scene, changes(scene, scene), verbose=False) == (
        "rank 5 on worker-1: hung in user code, certain\n"
        "  it sleeps, in no collective; 15 of 16 ranks have waited for 2 s or more\n"
        "  main thread: S in clock_nanosleep; 0 CPU ticks in 2.0 s, all threads 0\n"
        "  pid 1005: python train.py\n"
        "  flight recorder: not in collective 6 (all_reduce, default_pg), in which others wait\n"
        "  main thread's stack, innermost first (from py-spy):\n"
        "    stuck (/job/train.py:6)\n"
        "\n"
        "ranks 0-4,6-15 on worker-[0-3] (15 ranks): waiting in collective 6 (all_reduce, default_pg), certain\n"
        "  its stack is in a collective: all_reduce\n"
        "  main thread: S in futex; 0 CPU ticks in 2.0 s, all threads 0\n"
        "  pid 1000, 1001, 1002, 1003, ...: python train.py\n"
        "  main thread's stack, innermost first (from py-spy):\n"
        "    all_reduce (torch/distributed/distributed_c10d.py:3252)\n"
        "    _exception_logger.<locals>.wrapper (torch/distributed/c10d_logger.py:83)\n"
        "    main (/job/train.py:17)\n"
        "\n"
        "between the two looks\n"
        "  did not move: ranks 0-15\n"
    )


def test_in_chinese() -> None:
    odd = rank(5, "sleep", stack=stack(["stuck", "/job/train.py", 6]), recorder=recorder(5, pending=False))
    scene = job({5: odd}, stack=stack(*COLLECTIVE), recorder=recorder(6, pending=True))
    assert SceneText("zh", Streams()).text(scene, changes(scene, scene), verbose=False) == (
        "worker-1 上的 rank 5：卡在用户代码中，确定\n"
        "  它在睡眠，不在集合通信中；15/16 个 rank 已等待 2 s 以上\n"
        "  主线程：S in clock_nanosleep；2.0 s 内 0 个 CPU tick，所有线程 0 个\n"
        "  pid 1005: python train.py\n"
        "  flight recorder：不在第 6 个集合通信中（all_reduce，default_pg），其他 rank 在其中等待\n"
        "  主线程调用栈，最内层在前（来自 py-spy）：\n"
        "    stuck (/job/train.py:6)\n"
        "\n"
        "worker-[0-3] 上的 rank 0-4,6-15（15 个 rank）：在第 6 个集合通信中等待（all_reduce，default_pg），确定\n"
        "  它的调用栈在集合通信中：all_reduce\n"
        "  主线程：S in futex；2.0 s 内 0 个 CPU tick，所有线程 0 个\n"
        "  pid 1000, 1001, 1002, 1003, ...: python train.py\n"
        "  主线程调用栈，最内层在前（来自 py-spy）：\n"
        "    all_reduce (torch/distributed/distributed_c10d.py:3252)\n"
        "    _exception_logger.<locals>.wrapper (torch/distributed/c10d_logger.py:83)\n"
        "    main (/job/train.py:17)\n"
        "\n"
        "两次查看之间\n"
        "  没有动：rank 0-15\n"
    )


def test_hostile_text_is_harmless() -> None:
    evil = "\x1b]0;x\x07\x9b2J\n"
    child = {"pid": 1, "name": evil, "state": evil, "syscall": evil, "target": evil}
    threads = stack([evil, evil, 1])
    threads["threads"].append({"tid": 4, "name": evil, "frames": [[evil, evil, 2]]})
    odd = rank(5, "file", command=evil, children=[child], stack=threads)
    odd["looks"][0] = odd["looks"][1] = {"state": evil, "syscall": "read", "target": evil}
    dump = recorder(5, pending=True)
    for item in dump["json"]["entries"]:
        item["profiling_name"] = item["process_group"][1] = evil
    shown = PIPE.text(job({5: odd, 6: rank(6, recorder=dump)}), None, verbose=True)
    assert "^[]0;x^G" in shown
    assert not set(shown) & {"\x1b", "\x07", "\x9b"}


def test_nothing_to_see() -> None:
    shown = PIPE.text(job(dict.fromkeys(range(16)), whole=False), None, verbose=False)
    assert shown.startswith("undecided\n  no rank process was found")
