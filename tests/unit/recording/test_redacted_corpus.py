"""Redaction changes no verdict: corpus cases, unchanged and with secrets added between their lines."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from atlctl.recording.redacted import ReportFolder, copy_folder
from tests.unit.recording.test_redacted import told

CASES = sorted(
    path for path in (Path(__file__).parents[2] / "corpus" / "data").iterdir() if (path / "case.json").exists()
)
CANARY = "CANARYx4711xCANARY"
PLANTS = (
    f"HF_TOKEN={CANARY} WANDB_API_KEY='{CANARY}'",
    f"-----BEGIN RSA PRIVATE KEY-----\n{CANARY}\n-----END RSA PRIVATE KEY-----",
    f'{{"msg": "connect", "password": "{CANARY}", "url": "redis://:{CANARY}@h:6379"}}',
    f"GET /x Authorization: Bearer {CANARY}",
)
_STEP = re.compile(rb"\bstep[ =:]{1,2}\d")


def planted(case: Path, into: Path) -> None:
    """A copy of the case with secrets after the first lines of its logs and after lines about steps.

    Not within tracebacks: there, a line of a key would look like an exception name before redaction.
    """
    for path in sorted(case.rglob("*")):
        target = into / path.relative_to(case)
        if path.is_dir():
            target.mkdir(exist_ok=True)
        elif path.suffix != ".log" or path.parent != case:
            target.write_bytes(path.read_bytes())
        else:
            made = []
            for number, line in enumerate(path.read_bytes().split(b"\n")):
                made.append(line)
                if number == 0 or _STEP.search(line):
                    stamp = line.split(b" ", 1)[0] + b" " if line[:2] == b"20" else b""
                    made += [stamp + plant.encode() for plant in PLANTS[number % 4].split("\n")]
            target.write_bytes(b"\n".join(made))


def test_there_are_cases():
    assert len(CASES) > 100


@pytest.mark.parametrize("case", CASES[::2], ids=lambda case: case.name)
def test_no_verdict_changes(case, tmp_path):
    (tmp_path / "planted").mkdir()
    planted(case, tmp_path / "planted")
    for source, name in ((case, "plain"), (tmp_path / "planted", "hidden")):
        folder = ReportFolder(str(tmp_path / name))
        copy_folder(str(source), folder)
        folder.close()
        before = json.loads(json.dumps(told([str(source)])).replace(CANARY, "[redacted]"))
        assert told([str(tmp_path / name)]) == before
    assert not [path for path in (tmp_path / "hidden").rglob("*.log") if CANARY.encode() in path.read_bytes()]
