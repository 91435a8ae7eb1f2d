"""The texts of a report's page, by the names that its tables and marks have."""

from __future__ import annotations

from collections.abc import Mapping

from atlctl.i18n import Language, Message, about, translated

_TEXTS = {
    "title": Message("Report on {name}"),
    "saved logs": Message("saved logs"),
    "contents": Message("Contents"),
    # Headings.
    "verdict": Message("Verdict"),
    "evidence": Message("Evidence"),
    "timeline": Message("Timeline"),
    "cascade": Message("What followed"),
    "earlier": Message("Earlier rounds"),
    "workers": Message("Workers"),
    "states": Message("States"),
    "events": Message("Events"),
    "smoke": Message("Smoke test"),
    "environment": Message("Environment"),
    "remarks": Message("Remarks"),
    "missing": Message("What is missing"),
    "files": Message("Files in this folder"),
    "made": Message("How this report was made"),
    # The job.
    "job": Message("job"),
    "kind of job": Message("kind"),
    "namespace": Message("namespace"),
    "state": Message("state"),
    "workers with logs": about("report: workers with logs", "workers"),
    "uid": Message("uid"),
    # Evidence and timeline.
    "more evidence": Message("{count} more pieces of evidence"),
    "zero": Message("Times count from {time}."),
    "zero unknown": Message("No line of these logs names a year: times count from the first that is known."),
    "around the failure": Message("Around the failure"),
    "whole run": Message("The whole run"),
    "mark root": Message("root cause"),
    "mark failure": Message("failed of its own"),
    "mark victim": Message("lost a peer"),
    "mark ended": Message("ended by its agent"),
    "mark agent": Message("torchrun itself ended"),
    "mark earlier": Message("failure of an earlier round"),
    "mark restart": Message("restart"),
    "mark signal": Message("signal from outside"),
    "mark state": Message("state changed"),
    "mark event": Message("event"),
    "mark last": Message("last line of the log"),
    "mark folded": Message("{count} alike, the first: {told}"),
    "lane count": Message("{count} workers"),
    "lanes folded": Message(
        "{count} workers in {lanes} lanes: workers alike share one. A line beside a mark leads to the last of them."
    ),
    "lanes left out": Message("{count} more lanes are left out; the table of workers has all."),
    "clocks unknown": Message("The clocks of {names} could not be compared with the others': their marks may lie off."),
    # Tables.
    "head after": Message("after"),
    "head count": Message("count"),
    "head what they say": Message("what they say"),
    "head what it said": Message("what it said"),
    "head workers": about("report: head workers", "workers"),
    "head worker": Message("worker"),
    "head who": Message("who"),
    "head ranks": Message("ranks"),
    "head first time": Message("first"),
    "head time": Message("time"),
    "head place": Message("where it stands"),
    "head state": Message("state"),
    "head ended": Message("exit"),
    "head part": Message("part"),
    "head last line": Message("last line"),
    "head restarts": Message("restarts"),
    "head rounds": Message("rounds"),
    "head clock": Message("clock"),
    "head reason": Message("reason"),
    "head message": Message("message"),
    "head about": Message("about"),
    "head name": Message("name"),
    "head value": Message("value"),
    "head source": Message("from"),
    "head node rank": Message("node rank"),
    "head node": Message("node"),
    "head pod": Message("pod"),
    "head address": Message("address"),
    "head GPUs": Message("GPUs"),
    "head started": Message("started"),
    "head end": Message("ended"),
    "head file": Message("file"),
    "head size": Message("size"),
    "head verdict": Message("verdict"),
    "head check": Message("check"),
    "head culprit": Message("who"),
    "head evidence": Message("evidence"),
    "head confirmed": Message("seen again"),
    "head advice": Message("next step"),
    "head seconds": Message("seconds"),
    "head note": Message("note"),
    "cascade caption": Message("Failures of these did not begin it."),
    "earlier caption": Message("The job was restarted after these."),
    "part initiator": Message("failed of its own"),
    "part victim": Message("lost a peer"),
    "part ended": Message("ended by its agent"),
    "part silent": Message("its log just ends"),
    "part agent": Message("torchrun itself ended"),
    "part no log": Message("no log"),
    "part never seen": Message("never seen"),
    "all rows": Message("All {count}"),
    "rows more": Message("{count} more"),
    "rows left out": Message("The first {count} are left out."),
    "from logs": Message("logs"),
    "from smoke": Message("smoke test"),
    # The smoke test.
    "smoke tier": Message("tier"),
    "smoke time": Message("took"),
    "smoke findings": Message("Findings"),
    "smoke checks": Message("Checks"),
    "smoke fail": Message("FAIL"),
    "smoke warn": Message("WARN"),
    "smoke not_judged": Message("NOT JUDGED"),
    "smoke pass": Message("PASS"),
    "yes": Message("yes"),
    "heat throughput": Message("Throughput from row to column"),
    "heat round trips": Message("Round trips from row to column"),
    "heat corner": Message("from / to"),
    "heat key": Message(
        "- below 80 % of the median, ! below 60 %, x nothing came through. Of round trips, more is worse."
    ),
    "heat median": Message("Median: {median} {unit}."),
    "heat shares": Message("% of the median"),
    "heat left out": Message("The {shown} of {count} workers with the worst figures are shown."),
    # How it was made.
    "made by": Message("by"),
    "made at": Message("at"),
    "made with": Message("command"),
    "made redacted": Message("secrets"),
    "made redacted text": Message(
        "What looks like a token, a password or a key was replaced by [redacted]; the mark stands at {count} places of "
        "the files. It is found by pattern, which cannot be complete: look before you hand this on."
    ),
    "made read": Message("read it"),
    "made read text": Message(
        "verdict.json has the verdict for programs; 'atlctl errors --from FOLDER' reads the folder again"
    ),
    "looked": Message(
        "The logs alone do not tell this: it was seen in a look at the ranks while the job ran. "
        "'atlctl errors --from' on this folder says less."
    ),
}


def words(language: Language) -> Mapping[str, str]:
    """All of them in one language."""
    return {name: translated(text, language) for name, text in _TEXTS.items()}
