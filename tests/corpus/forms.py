"""The same logs as programs other than kubectl save them: the answer stays the same.

`python -m tests.corpus.forms [NAME...]` compares it on all cases.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from heapq import merge
from pathlib import Path

from tests.corpus.methods import root_cause
from tests.corpus.score import DATA, Answer, judge, truths

#: Time (RFC 3339, without its zone), worker, text.
Line = tuple[str, str, bytes]
_LINE = re.compile(rb"(\S{29})Z (.*)")


def lines_of(case: Path) -> dict[str, list[Line]]:
    """The lines of each worker."""
    found: dict[str, list[Line]] = {}
    for path in sorted(case.glob("*.ts.log")):
        worker = path.name.removesuffix(".ts.log")
        split = filter(None, map(_LINE.fullmatch, path.read_bytes().split(b"\n")))
        found[worker] = [(match[1].decode(), worker, match[2]) for match in split]
    return found


def _second(line: Line) -> bytes:
    return datetime.fromisoformat(line[0][:19]).strftime("%b %d %H:%M:%S").encode()


def _loki(line: Line) -> bytes:
    labels = {"pod": line[1], "container": "pytorch"}
    return json.dumps({"labels": labels, "line": line[2].decode(errors="replace"), "timestamp": f"{line[0]}Z"}).encode()


def _kibana(line: Line) -> bytes:
    text = line[2].decode(errors="replace")
    return json.dumps({"@timestamp": f"{line[0]}Z", "kubernetes.pod.name": line[1], "message": text}).encode()


def _sls(line: Line) -> bytes:
    text = line[2].decode(errors="replace")
    return json.dumps(
        {"_pod_name_": line[1], "_time_": f"{line[0]}Z", "content": text, "__time__": 1764500000}
    ).encode()


def _docker(line: Line) -> bytes:
    return json.dumps(
        {"log": line[2].decode(errors="replace") + "\n", "stream": "stderr", "time": f"{line[0]}Z"}
    ).encode()


def _named(form: bytes) -> Callable[[Line], bytes]:
    """`form` has the worker's name (`%(worker)b`), the time to the second (`%(time)b`) or in full (`%(stamp)b`)."""
    return lambda line: (
        form % {b"worker": line[1].encode(), b"time": _second(line), b"stamp": line[0].encode()} + line[2]
    )


#: One file with the lines of all workers.
MERGED = {
    "kubectl logs --prefix": _named(b"[pod/%(worker)b/pytorch] "),
    "kubectl logs --prefix --timestamps": _named(b"[pod/%(worker)b/pytorch] %(stamp)bZ "),
    "stern": _named(b"%(worker)b pytorch "),
    "stern --color always -t": _named(b"\x1b[36m%(worker)b\x1b[0m \x1b[35mpytorch\x1b[0m %(stamp)bZ "),
    "stern -A": _named(b"team-a %(worker)b pytorch "),
    "kail": _named(b"team-a/%(worker)b[pytorch]: "),
    "docker compose logs": _named(b"%(worker)b  | "),
    "pdsh": _named(b"%(worker)b: "),
    "journalctl": _named(b"%(time)b %(worker)b torchrun[4711]: "),
    "aws logs tail": _named(b"%(stamp).26b+00:00 train/default/%(worker)b "),
    "logcli": _named(b'%(stamp)bZ {container="pytorch", pod="%(worker)b"} '),
    "logcli -o jsonl": _loki,
    "kubetail": _named(b"[%(worker)b] "),
    "grep -rn": _named(b"logs/%(worker)b.log:7:"),
    "tail": _named(b"==> logs/%(worker)b.log <==\n"),
    "parallel --tag": _named(b"%(worker)b\t"),
    "Kibana": _kibana,
    "Elasticsearch": lambda line: b'{"_index": "logs", "_source": %b}' % _kibana(line),
    "SLS": _sls,
}
#: One file a worker.
APART = {
    "kubelet": _named(b"%(stamp)bZ stderr F "),
    "docker": _docker,
    "syslog": _named(b"%(time)b %(worker)b torchrun[4711]: "),
    "ts": _named(b"%(time)b "),
    "ts '[%F %T]'": lambda line: b"[%b] " % line[0][:19].replace("T", " ").encode() + line[2],
    "Jenkins": _named(b"[%(stamp).23bZ] "),
    "gh run view --log": _named(b"train\tUNKNOWN STEP\t%(stamp).27bZ "),
    "Airflow": _named(b"[%(stamp).23b+0000] {pod_manager.py:447} INFO - [base] "),
    "GitLab": _named(b"%(stamp).26bZ 01O "),
    "a logger": _named(b"%(stamp).23b | INFO     | launcher:run:12 - "),
    "indented": _named(b"    "),
    "quoted": _named(b"> "),
    "CRLF": lambda line: line[2] + b"\r",
}


def answer(case: Path, form: str | None) -> Answer:
    """The root cause from the logs of a case in one form, or from the plain logs."""
    found = lines_of(case)
    with tempfile.TemporaryDirectory() as scratch:
        if form in MERGED:
            path = Path(scratch, "all")
            path.write_bytes(b"".join(MERGED[form](line) + b"\n" for line in merge(*found.values())))
            said = root_cause(path)
            return said._replace(worker=said.worker and said.worker.removeprefix("train/default/"))
        for worker, lines in found.items():
            text = b"".join((APART[form](line) if form else line[2]) + b"\n" for line in lines)
            Path(scratch, f"{worker}.log").write_bytes(text)
        return root_cause(Path(scratch))


def main(names: list[str]) -> None:
    """Prints how many answers are as with plain logs, right or not, by form; then those that differ."""
    known = truths(DATA)
    plain = {name: judge(truth, answer(DATA / name, None)) for name, truth in known.items()}
    for form in names or [*MERGED, *APART]:
        marks = {name: judge(truth, answer(DATA / name, form)) for name, truth in known.items()}
        print(f"{form:35}", dict(Counter(marks.values())), flush=True)
        for name, mark in marks.items():
            if mark != plain[name]:
                print(f"    {name}: {plain[name]} with plain logs, {mark} here")


if __name__ == "__main__":
    main(sys.argv[1:])
