"""The style counter finds its patterns, and ignores plain English and Chinese."""

from __future__ import annotations

import pytest

from tests.support import style
from tests.support.rules import Module

STUMBLES = {
    "where, for: if": (
        "None where there is none.",
        "exit with 1 where nothing was found",
        "Where two share a name, the version is compared, and so on.",
        "clusters, where KUBECONFIG is not set",
    ),
    "is no X, for: is not an X": ("stdout is no terminal", "these are no logs"),
    "tells, for: reports, shows, says": ("the server does not tell why", "What it says of a pod"),
    "somebody, for: the user, no worker": ("Nobody answered", "whoever reads it"),
    "stands or lives, for: is": ("the mark stands at 3 places", "where jobs live", "the ranks live on"),
    "what-clause, for: a noun": (
        "What is written there.",
        "interrupted; what was recorded is kept",
        "see what followed",
    ),
    "of its own, for: by itself": ("in a folder of its own", "left without a word"),
    "own idioms": ("the job; left out: the current job", "a login program hangs"),
    "half-width punctuation": ("后果: 无", "错误(7)", "失败,重试"),
    "no blank beside Latin": ("第40 行", "这个worker"),
}
PLAIN = (
    "the folder where the log is; see where it hangs",
    "there is no terminal; it is no longer running",
    "DDP stands for data parallelism, this server stands in for a cluster, shown live",
    "What do they wait for? See what to do next.",
    "its own folder: word by word",
    "第 40 行：失败（2 次），路径写 :PATH，见 `a,b`。",
)


@pytest.mark.parametrize("name", [*style.ENGLISH, *style.CHINESE])
def test_counts_what_readers_stumble_over(name: str) -> None:
    pattern = (style.ENGLISH | style.CHINESE)[name]
    assert [text for text in STUMBLES[name] if not pattern.search(text)] == []
    assert [text for text in PLAIN if pattern.search(text)] == []


def test_reads_docstrings_and_comments() -> None:
    text = (
        '"""Nobody."""\n#: Whoever\n#: lives.\nx = "nobody"  # nobody\ny = 1\ndef f():\n    """Nobody\n    told."""\n'
    )
    seen = [place for _, place in style.found("code", [Module("atlctl", "a.b", text)])]
    assert len(seen) == 6, seen
    assert seen[0].startswith("a.b: …")


@pytest.mark.parametrize("area", style.AREAS)
def test_reads_every_area(area: str) -> None:
    texts = [text for _, text in style.AREAS[area]([Module("atlctl", "a", '"""A docstring."""')])]
    assert "".join(texts).strip()
