"""The texts of the smoke test in one language."""

from __future__ import annotations

from atlctl.cli import catalogue
from atlctl.cli.catalogue import Language
from atlctl.smoke.findings import Culprit, Finding, Severity, Verdict

_VERDICTS = {
    Verdict.FAIL: "verdict_fail",
    Verdict.WARN: "verdict_warn",
    Verdict.NOT_JUDGED: "verdict_not_judged",
    Verdict.PASS: "verdict_pass",
}
_WHOLE = {
    Verdict.FAIL: "whole_fail",
    Verdict.WARN: "whole_warn",
    Verdict.NOT_JUDGED: "whole_not_judged",
    Verdict.PASS: "whole_pass",
}
_CHECKS = {
    "roll-call": "check_roll_call",
    "facts": "check_facts",
    "mesh": "check_mesh",
    "throughput": "check_throughput",
    "storage": "check_storage",
    "gpus": "check_gpus",
    "device": "check_device",
    "collectives": "check_collectives",
    "ddp": "check_ddp",
    "fsdp": "check_fsdp",
    "allreduce": "check_allreduce",
    "stragglers": "check_stragglers",
    "pairs": "check_pairs",
}
#: Advice by check: for a reader of another language than that in which checks give theirs, and where one gives none.
_ADVICE = {
    "roll-call": "advice_roll_call",
    "facts": "advice_facts",
    "mesh": "advice_mesh",
    "throughput": "advice_throughput",
    "storage": "advice_storage",
    "gpus": "advice_gpus",
    "device": "advice_device",
    "collectives": "advice_collectives",
    "ddp": "advice_ddp",
    "fsdp": "advice_fsdp",
    "allreduce": "advice_allreduce",
    "stragglers": "advice_stragglers",
    "pairs": "advice_pairs",
}


class Words:
    """`words("key", name=...)` is the text `smoke.say.key`."""

    def __init__(self, lang: Language) -> None:
        self.lang = lang

    def __call__(self, key: str, **values: object) -> str:
        return catalogue.find(self.lang, f"smoke.say.{key}").format(**values)

    def verdict(self, verdict: Verdict) -> str:
        return self(_VERDICTS[verdict])

    def whole(self, verdict: Verdict) -> str:
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
        """A note or evidence, which are English: in the reader's language, and then harmless and one line."""
        if self.lang == "en":
            return text
        from atlctl.cli.smoke.phrases import said
        from atlctl.render.sanitize import clean

        return said(clean(text))

    def aside(self, text: str) -> str:
        """Behind a text, in brackets."""
        return f" ({text})" if self.lang == "en" else f"（{text}）"

    def culprit(self, culprit: Culprit | None, names: str) -> str:
        """Who is at fault. `names`: the worker, or several of them, folded."""
        if culprit is None:
            return self("nobody")
        match culprit.kind:
            case "gpu" if culprit.gpu is not None:
                return self("culprit_gpu", gpu=culprit.gpu, names=names)
            case "rank" if culprit.rank is not None:
                return self("culprit_rank", rank=culprit.rank, names=names)
            case "link":
                return f"{names} <-> {culprit.peer or '?'}"
            case "mount" if culprit.path is not None:
                return self("culprit_mount", path=culprit.path, names=names) if names else culprit.path
        return names or self("nobody")
