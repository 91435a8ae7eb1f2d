import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from atlctl.jobs.errors import AtlctlError, NotAllowed, UsageError
from atlctl.jobs.statedir import check_private, ensure_dir, read_bytes, state_dir, write_atomic


@pytest.fixture
def umask_000() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.parametrize(
    ("env", "path"),
    [
        ({"ATLCTL_STATE_DIR": "/s/x/", "XDG_STATE_HOME": "/xdg", "HOME": "/h"}, "/s/x"),
        ({"ATLCTL_STATE_DIR": "", "XDG_STATE_HOME": "/xdg", "HOME": "/h"}, "/xdg/atlctl"),
        ({"XDG_STATE_HOME": "relative", "HOME": "/h"}, "/h/.local/state/atlctl"),
        ({"XDG_STATE_HOME": "", "HOME": "/h"}, "/h/.local/state/atlctl"),
    ],
)
def test_where_state_lives(env: dict[str, str], path: str) -> None:
    assert state_dir(env) == path


def test_without_home_the_password_file_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME", raising=False)
    assert os.path.isabs(state_dir({}))


def test_a_relative_state_dir_is_refused() -> None:
    with pytest.raises(UsageError, match="absolute"):
        state_dir({"ATLCTL_STATE_DIR": "state"})


@pytest.mark.usefixtures("umask_000")
def test_created_folders_are_private_under_an_open_umask(tmp_path: Path) -> None:
    ensure_dir(str(tmp_path / "a" / "b" / "c") + "/")
    assert [mode(tmp_path / part) for part in ("a", "a/b", "a/b/c")] == [0o700] * 3
    ensure_dir(str(tmp_path / "a" / "b" / "c"))


def test_created_folders_are_usable_under_a_closed_umask(tmp_path: Path) -> None:
    before = os.umask(0o777)
    try:
        ensure_dir(str(tmp_path / "a" / "b"))
        write_atomic(str(tmp_path / "a" / "b" / "f"), b"x")
    finally:
        os.umask(before)
    assert [mode(tmp_path / part) for part in ("a", "a/b", "a/b/f")] == [0o700, 0o700, 0o600]


def test_a_linked_folder_is_refused_even_with_a_slash(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "dangling").symlink_to("nowhere")
    for name in ("link", "link/", "dangling"):
        with pytest.raises(NotAllowed, match="symbolic link"):
            ensure_dir(f"{tmp_path}/{name}")
    assert not (tmp_path / "nowhere").exists()
    ensure_dir(str(tmp_path / "link" / "below"))


@pytest.mark.parametrize("bits", [0o770, 0o702, 0o777])
def test_a_folder_that_others_can_write_is_refused(tmp_path: Path, bits: int) -> None:
    path = tmp_path / "open"
    path.mkdir()
    path.chmod(bits)
    with pytest.raises(NotAllowed, match=f"{bits:04o}") as caught:
        ensure_dir(str(path))
    assert "chmod go-w" in str(caught.value.hint)


@pytest.mark.parametrize("level", ["", "a", "a/b"])
def test_every_folder_from_the_top_on_is_checked(tmp_path: Path, level: str) -> None:
    below = tmp_path / "a/b"
    with pytest.raises(FileNotFoundError):
        check_private(str(below), str(tmp_path))
    ensure_dir(str(below), str(tmp_path))
    check_private(str(below), str(tmp_path))
    (tmp_path / level).chmod(0o720)
    with pytest.raises(NotAllowed, match=f"^{tmp_path / level} can be written"):
        check_private(str(below), str(tmp_path))
    with pytest.raises(NotAllowed, match=f"^{tmp_path / level} can be written"):
        ensure_dir(str(below), str(tmp_path))


def test_a_readable_folder_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "readable"
    path.mkdir()
    path.chmod(0o755)
    ensure_dir(str(path))


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"")
    with pytest.raises(NotAllowed, match="not a folder"):
        ensure_dir(str(tmp_path / "f"))
    with pytest.raises(AtlctlError, match="Not a directory"):
        ensure_dir(str(tmp_path / "f" / "below"))


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(NotAllowed, match="belongs to user"):
        ensure_dir(str(tmp_path))


@pytest.mark.usefixtures("umask_000")
def test_write_replaces_whole_files_privately(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"old")
    path.chmod(0o644)
    write_atomic(str(path), b"new" * 100_000)
    assert path.read_bytes() == b"new" * 100_000
    assert mode(path) == 0o600
    assert os.listdir(tmp_path) == ["f"]


def test_write_replaces_a_link_and_not_what_it_points_to(tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"precious")
    (tmp_path / "f").symlink_to("precious")
    write_atomic(str(tmp_path / "f"), b"new")
    assert (tmp_path / "precious").read_bytes() == b"precious"
    assert not (tmp_path / "f").is_symlink()


@pytest.mark.parametrize(
    ("number", "text"), [(errno.ENOSPC, "no space left on"), (errno.EDQUOT, "disk quota exceeded")]
)
def test_a_full_disk_is_one_clear_line_and_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, text: str
) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"old")
    real_write = os.write

    def short_write(fd: int, data: memoryview) -> int:
        if len(data) <= 90:
            raise OSError(number, os.strerror(number))
        return real_write(fd, data[:10])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", short_write)
        with pytest.raises(AtlctlError, match=text) as caught:
            write_atomic(str(path), b"x" * 100)
    assert "\n" not in caught.value.message
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["f"]


def test_an_interrupted_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(source: str, target: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write_atomic(str(tmp_path / "f"), b"x")
    assert os.listdir(tmp_path) == []


def test_read_within_the_limit(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"12345")
    (tmp_path / "empty").write_bytes(b"")
    assert read_bytes(str(tmp_path / "f"), 5) == b"12345"
    assert read_bytes(str(tmp_path / "empty"), 0) == b""
    with pytest.raises(AtlctlError, match="larger than 4 bytes"):
        read_bytes(str(tmp_path / "f"), 4)


def test_read_refuses_links_pipes_and_folders(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"secret")
    (tmp_path / "link").symlink_to("f")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(NotAllowed, match="symbolic link"):
        read_bytes(str(tmp_path / "link"), 100)
    for name in ("pipe", "."):
        with pytest.raises(NotAllowed, match="not a regular file"):
            read_bytes(str(tmp_path / name), 100)
    with pytest.raises(FileNotFoundError):
        read_bytes(str(tmp_path / "none"), 100)
