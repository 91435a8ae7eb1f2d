from __future__ import annotations

import pytest

from atlctl.jobs.errors import UsageError
from atlctl.transfer.copy import CopySpec, Remote, parse
from atlctl.transfer.tar import own_name


@pytest.mark.parametrize(
    ("text", "remote"),
    [
        ("worker-0:/logs", Remote("worker-0", "/logs", False)),
        ("worker-0:/logs/", Remote("worker-0", "/logs", True)),
        (":/logs", Remote("", "/logs", False)),
        (":/", Remote("", "/", True)),
        (":///", Remote("", "/", True)),
        ("0:rel", Remote("0", "./rel", False)),
        ("w:-rf", Remote("w", "./-rf", False)),
        ("w:a:b", Remote("w", "./a:b", False)),
        ("w:.", Remote("w", "./.", False)),
        ("w:$(x)", Remote("w", "./$(x)", False)),
    ],
)
def test_one_side_is_remote(text: str, remote: Remote) -> None:
    assert parse(text, "here") == CopySpec(remote, "here", upload=False)
    assert parse("here", text) == CopySpec(remote, "here", upload=True)


@pytest.mark.parametrize("local", ["file", "./a:b", "/a:b", "a/b:c", ".", "-"])
def test_a_colon_behind_a_slash_is_part_of_a_name(local: str) -> None:
    assert parse(local, "w:/x").local == local


@pytest.mark.parametrize(
    ("source", "target", "message", "hint"),
    [
        ("a:/x", "b:/y", "both sides", "two steps"),
        (":/x", ":/y", "both sides", "two steps"),
        ("x", "y", "neither side", "WORKER:PATH"),
        ("w:", "y", "no path follows 'w:'", "'w:.'"),
        ("x", ":", "no path follows ':'", "':.'"),
        ("", "w:/x", "a path is empty", "atlctl cp"),
        ("w:/x", "", "a path is empty", "atlctl cp"),
    ],
)
def test_what_is_refused_and_with_which_hint(source: str, target: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse(source, target)
    assert message in refused.value.message
    assert hint in (refused.value.hint or "")


@pytest.mark.parametrize(
    ("path", "name"),
    [("/a/b", "b"), ("/a/b/", "b"), ("./b", "b"), ("/", ""), (".", ""), ("a/.", ""), ("a/..", ""), ("...", "...")],
)
def test_names_of_paths(path: str, name: str) -> None:
    assert own_name(path) == name
