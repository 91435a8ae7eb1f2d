"""The texts of the smoke test in one language."""

from __future__ import annotations

from atlctl.i18n import Language, Message, about, translated
from atlctl.smoke.findings import Culprit, Finding, Severity, SmokeVerdict

_VERDICTS = {
    SmokeVerdict.FAIL: about("smoke", "FAIL"),
    SmokeVerdict.WARN: Message("WARN"),
    SmokeVerdict.NOT_JUDGED: Message("NOT JUDGED"),
    SmokeVerdict.PASS: Message("PASS"),
}
_WHOLE = {
    SmokeVerdict.FAIL: Message("FAIL: a fault was found"),
    SmokeVerdict.WARN: Message("WARN: nothing is broken, something is odd"),
    SmokeVerdict.NOT_JUDGED: Message("NOT JUDGED: nothing could be judged"),
    SmokeVerdict.PASS: Message("PASS: no fault was found"),
}
_CHECKS = {
    "roll-call": Message("who answers"),
    "facts": Message("what differs between workers"),
    "mesh": Message("every worker calls every other"),
    "throughput": Message("speed and loss of every link"),
    "storage": Message("mounts are written and read by all"),
    "gpus": Message("what the driver tells of the GPUs"),
    "device": Message("memory and arithmetic"),
    "collectives": Message("collectives, bit by bit"),
    "ddp": Message("gradients of a DDP step"),
    "fsdp": Message("a step of FSDP"),
    "allreduce": Message("bandwidth of all-reduce"),
    "stragglers": Message("who is slower than the others"),
    "pairs": Message("each two workers by themselves"),
}
#: Advice by check: for a reader of another language than that in which checks give theirs, and where one gives none.
_ADVICE = {
    "roll-call": Message("look at the worker: atlctl ps, atlctl events; then try a command there: atlctl exec"),
    "facts": Message("give all workers the same image, settings and limits"),
    "mesh": Message("look at the interfaces, routes, MTU and network policies on the way"),
    "throughput": Message("look at the link's speed, errors and drops (ethtool), and who else uses this path"),
    "storage": Message("look at the mount on this worker, its free space and rights"),
    "gpus": Message("look at nvidia-smi on this worker and at the kernel's log; have the GPU checked"),
    "device": Message("leave this GPU out, and have it checked"),
    "collectives": Message("leave this worker or GPU out, and run the test again"),
    "ddp": Message("leave this worker or GPU out, and run the test again"),
    "fsdp": Message("leave this worker or GPU out, and test once more"),
    "allreduce": Message("compare the transport that NCCL chose with that of the others"),
    "stragglers": Message("look at clocks, temperature and other processes on this worker"),
    "pairs": Message("look at the link between these two"),
}


class Words:
    """`words(Message(...))` is the text in that language."""

    def __init__(self, lang: Language) -> None:
        self.lang = lang

    def __call__(self, text: str) -> str:
        return translated(text, self.lang)

    def verdict(self, verdict: SmokeVerdict) -> str:
        return self(_VERDICTS[verdict])

    def whole(self, verdict: SmokeVerdict) -> str:
        return self(_WHOLE[verdict])

    def check(self, name: str) -> str:
        """What a check looks at, in a few words."""
        return self(_CHECKS[name]) if name in _CHECKS else name

    def named(self, name: str) -> str:
        """A check's name, which is English; for a reader of another language with what it looks at."""
        return name if self.lang == "en" else f"{name} {self.check(name)}"

    def advice(self, finding: Finding) -> str:
        """The next step: as the check gave it, in English; for others what holds for all findings of the check."""
        if finding.severity is Severity.NOT_JUDGED or finding.check not in _ADVICE:
            return finding.advice if self.lang == "en" else ""
        return finding.advice if self.lang == "en" and finding.advice else self(_ADVICE[finding.check])

    def sentence(self, text: str) -> str:
        """A note or evidence in the reader's language, harmless and one line."""
        from atlctl.render.sanitize import clean

        return clean(translated(text, self.lang))

    def aside(self, text: str) -> str:
        """Behind a text, in brackets."""
        return f" ({text})" if self.lang == "en" else f"（{text}）"

    def culprit(self, culprit: Culprit | None, names: str) -> str:
        """Who is at fault. `names`: the worker, or several of them, folded."""
        if culprit is None:
            return self(Message("nobody in particular"))
        match culprit.kind:
            case "gpu" if culprit.gpu is not None:
                return self(Message("GPU {gpu} of {names}", gpu=culprit.gpu, names=names))
            case "rank" if culprit.rank is not None:
                return self(Message("rank {rank} on {names}", rank=culprit.rank, names=names))
            case "link":
                return f"{names} <-> {culprit.peer or '?'}"
            case "mount" if culprit.path is not None:
                return self(Message("{path} on {names}", path=culprit.path, names=names)) if names else culprit.path
        return names or self(Message("nobody in particular"))
