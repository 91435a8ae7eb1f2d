"""The launcher around a small tree: where it unpacks, what it refuses to run, starts side by side, broken files."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from atlctl.packaging import executable as packing
from tests.packaging.bare import ROOT, Bare
from tests.support.needs import needs

pytestmark = needs("cc", "busybox")
only_root = pytest.mark.skipif(not ROOT, reason="only root can act as two users")

#: More than one block of the payload, and nothing that packs well; its middle lies across two blocks.
NOISE = os.urandom(3 << 20)
PROGRAM = '#!/bin/sh\necho "ran $0"\nshift 3\nfor word; do echo "[$word]"; done\n'


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory, bare: Bare) -> Path:
    """An executable file in the bare root, at /bin/small."""
    tree = tmp_path_factory.mktemp("tree")
    (tree / "bin").mkdir()
    (tree / "bin/python3").write_text(PROGRAM)
    (tree / "lib/deep/empty").mkdir(parents=True)
    (tree / "lib/deep/nothing").write_bytes(b"")
    (tree / "lib/deep/noise").write_bytes(NOISE)
    (tree / "lib/blank").write_bytes(bytes(2 << 20))
    return packing.seal(tree, bare.root / "bin/small")


@pytest.fixture
def home(bare: Bare, launcher: Path, request: pytest.FixtureRequest) -> str:
    """A home of this test's own, for user 1000 where there are users; as a path inside."""
    path = bare.root / "home" / f"{request.node.name[:40]}"
    path.mkdir()
    if ROOT:
        os.chown(path, 1000, 1000)
    for place in bare.root.glob("tmp/atlctl-*"):
        subprocess.run(["rm", "-r", place], check=True)
    return f"/home/{path.name}"


def outside(bare: Bare, path: str) -> Path:
    return bare.root / path.lstrip("/")


def tree_in(bare: Bare, place: str) -> Path:
    (found,) = outside(bare, place).glob("*-*-*")
    return found


def ran(stdout: bytes) -> str:
    """Where the program that ran lies."""
    first = stdout.decode().splitlines()[0]
    return first.removeprefix("ran ")


def test_words_and_tree_arrive_as_they_are(bare: Bare, home: str) -> None:
    result = bare.run("small", "a b", "", "*", "-c", uid=1000, env={"HOME": home})
    assert result.stdout.decode().splitlines()[1:] == ["[a b]", "[]", "[*]", "[-c]"]
    assert (result.stderr, result.code) == (b"", 0)
    tree = tree_in(bare, f"{home}/.cache/atlctl")
    assert ran(result.stdout) == f"/{tree.relative_to(bare.root)}/bin/python3"
    assert (tree / "lib/deep/noise").read_bytes() == NOISE
    assert (tree / "lib/blank").read_bytes() == bytes(2 << 20)
    assert (tree / "lib/deep/nothing").read_bytes() == b""
    assert (tree / "lib/deep/empty").is_dir()
    modes = {oct(path.stat().st_mode & 0o777) for path in [tree.parent, tree, *tree.rglob("*")]}
    assert modes == {"0o700", "0o500", "0o400"}


def test_what_was_unpacked_is_used_again(bare: Bare, home: str) -> None:
    env = {"HOME": home}
    bare.run("small", uid=1000, env=env)
    tree = tree_in(bare, f"{home}/.cache/atlctl")
    before = {path: path.stat().st_ino for path in tree.rglob("*")}
    assert bare.run("small", uid=1000, env=env).code == 0
    assert {path: path.stat().st_ino for path in tree.rglob("*")} == before


def test_xdg_cache_home_comes_first(bare: Bare, home: str) -> None:
    result = bare.run("small", uid=1000, env={"HOME": home, "XDG_CACHE_HOME": f"{home}/deep/cache"})
    assert ran(result.stdout).startswith(f"{home}/deep/cache/atlctl/")


def test_first_starts_side_by_side(bare: Bare, home: str) -> None:
    words = bare.words("small", "x", uid=1000, env={"HOME": home})
    runs = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(6)]
    results = [(*run.communicate(timeout=100), run.returncode) for run in runs]
    assert {(said.splitlines()[1], error, code) for said, error, code in results} == {(b"[x]", b"", 0)}
    assert sorted(path.name for path in outside(bare, f"{home}/.cache/atlctl").iterdir())[1:] == ["lock"]


def test_what_a_killed_start_left_is_removed(bare: Bare, home: str) -> None:
    left = outside(bare, f"{home}/.cache/atlctl/.new-7-x")
    (left / "lib").mkdir(parents=True)
    (left / "lib/file").touch()
    for path in (left.parent.parent, left.parent, left, left / "lib", left / "lib/file"):
        path.chmod(0o700)
        if ROOT:
            os.chown(path, 1000, 1000)
    assert bare.run("small", uid=1000, env={"HOME": home}).code == 0
    assert not left.exists()


def nowhere(bare: Bare, reasons: list[str], **env: str) -> None:
    """With these variables there is no folder to unpack into, for these reasons, and /tmp and /var/tmp are closed."""
    (bare.root / "tmp").chmod(0o755)
    try:
        result = bare.run("small", uid=1000, env=env)
    finally:
        (bare.root / "tmp").chmod(0o1777)
    lines = result.stderr.decode().splitlines()
    assert (result.stdout, result.code) == (b"", 1)
    assert lines[0] == "error: there is no folder to unpack into"
    assert lines[-1].startswith("hint: XDG_CACHE_HOME=")
    assert [line.strip() for line in lines[1:-1] if not line.startswith(("  /tmp", "  /var"))] == reasons


NOT_OWN = "is not a folder of your own that you alone can write to"


@only_root
def test_a_folder_of_somebody_else_is_refused(bare: Bare, home: str) -> None:
    cache = outside(bare, f"{home}/.cache")
    (cache / "atlctl").mkdir(parents=True)
    nowhere(bare, [f"{home}/.cache/atlctl {NOT_OWN}"], HOME=home)
    os.chown(cache, 1000, 1000)
    os.chown(cache / "atlctl", 1000, 1000)
    os.chown(cache, 1001, 1001)
    nowhere(bare, [f"{home}/.cache/atlctl: others can change {home}/.cache"], HOME=home)


@only_root
def test_a_folder_that_others_can_write_to_is_refused(bare: Bare, home: str) -> None:
    bare.run("small", uid=1000, env={"HOME": home})
    cache = outside(bare, f"{home}/.cache/atlctl")
    cache.chmod(0o777)
    nowhere(bare, [f"{home}/.cache/atlctl {NOT_OWN}"], HOME=home)
    cache.chmod(0o700)
    cache.parent.chmod(0o777)
    nowhere(bare, [f"{home}/.cache/atlctl: others can change {home}/.cache"], HOME=home)
    cache.parent.chmod(0o1777)
    assert bare.run("small", uid=1000, env={"HOME": home}).code == 0


@only_root
def test_a_tree_of_somebody_else_is_refused(bare: Bare, home: str) -> None:
    bare.run("small", uid=1000, env={"HOME": home})
    tree = tree_in(bare, f"{home}/.cache/atlctl")
    (tree / "bin/python3").chmod(0o755)
    (tree / "bin/python3").write_text("#!/bin/sh\necho evil\n")
    os.chown(tree, 1001, 1001)
    place = f"/{tree.relative_to(bare.root)}"
    nowhere(bare, [f"{place} {NOT_OWN}"], HOME=home)
    os.chown(tree, 1000, 1000)
    tree.chmod(0o770)
    nowhere(bare, [f"{place} {NOT_OWN}"], HOME=home)


@only_root
def test_a_link_in_place_of_the_folder_is_refused(bare: Bare, home: str) -> None:
    target = outside(bare, f"{home}/elsewhere")
    target.mkdir()
    outside(bare, f"{home}/.cache").mkdir()
    outside(bare, f"{home}/.cache/atlctl").symlink_to(f"{home}/elsewhere")
    for path in (target, target.parent / ".cache"):
        os.chown(path, 1000, 1000)
    nowhere(bare, [f"{home}/.cache/atlctl {NOT_OWN}"], HOME=home)


@only_root
def test_root_does_not_run_what_lies_in_a_users_home(bare: Bare, home: str) -> None:
    result = bare.run("small", env={"HOME": home})
    assert ran(result.stdout).startswith("/tmp/atlctl-0/")


def test_a_home_that_cannot_be_written_gives_the_temporary_folder(bare: Bare, home: str) -> None:
    place = bare.root / home.lstrip("/")
    place.chmod(0o555)
    if ROOT:
        os.chown(place, 0, 0)
    uid = 1000 if ROOT else 0
    result = bare.run("small", "x", uid=uid, env={"HOME": home if ROOT else "/nowhere"})
    assert (result.stderr, result.code) == (b"", 0)
    assert ran(result.stdout).startswith(f"/tmp/atlctl-{uid}/")


def test_no_home_at_all(bare: Bare, home: str) -> None:
    result = bare.run("/bin/env", "-u", "HOME", "small", uid=1000)
    assert ran(result.stdout).startswith("/tmp/atlctl-")


def test_where_programs_may_not_run(bare: Bare, home: str) -> None:
    env = {"HOME": "/nowhere", "XDG_CACHE_HOME": "/noexec/cache", "TMPDIR": "/noexec"}
    uid = 1000 if ROOT else 0
    result = bare.run("small", uid=uid, env=env)
    assert ran(result.stdout).startswith(f"/tmp/atlctl-{uid}/")
    if ROOT:
        (bare.root / "tmp/atlctl-1000").rename(bare.root / "tmp/gone")
        refused = [f"/noexec/{name}: no program may run there (noexec)" for name in ("cache/atlctl", "atlctl-1000")]
        nowhere(bare, refused, **env)


@only_root
def test_a_full_disk_leaves_nothing_behind(bare: Bare, home: str) -> None:
    env = {"HOME": "/nowhere", "XDG_CACHE_HOME": "/small", "TMPDIR": home}
    result = bare.run("small", uid=1000, env=env)
    assert ran(result.stdout).startswith(f"{home}/atlctl-1000/")
    assert bare.run("ls", "-A", "/small/atlctl", uid=1000).stdout == b"lock\n"


def test_a_name_that_the_loader_would_misread(bare: Bare, home: str) -> None:
    result = bare.run("small", uid=1000, env={"HOME": home, "XDG_CACHE_HOME": f"{home}/a:b"})
    assert ran(result.stdout).startswith(f"{home}/.cache/atlctl/")


def broken(bare: Bare, home: str, data: bytes) -> str:
    file = bare.root / "bin/broken"
    file.write_bytes(data)
    file.chmod(0o755)
    result = bare.run("broken", uid=1000, env={"HOME": home})
    assert (result.stdout, result.code) == (b"", 1)
    assert [path.name for path in outside(bare, f"{home}/.cache/atlctl").iterdir()] == ["lock"]
    return result.stderr.decode()


def test_a_file_that_was_cut_short(bare: Bare, launcher: Path, home: str) -> None:
    said = broken(bare, home, launcher.read_bytes()[:-1000])
    assert said == "error: this file is cut short\nhint: copy it again, and compare sizes\n"


@pytest.mark.parametrize("place", [-40, -(1 << 20), -(3 << 20)])
def test_a_file_with_one_wrong_byte(bare: Bare, launcher: Path, home: str, place: int) -> None:
    data = bytearray(launcher.read_bytes())
    data[place] ^= 0x10
    said = broken(bare, home, bytes(data))
    assert said == "error: this file is damaged\nhint: copy it again, and compare checksums\n"


def test_without_proc(bare: Bare, home: str) -> None:
    """A chroot that nobody gave a /proc."""
    for name in ("bin", "home"):
        (bare.root / "jail" / name).mkdir(parents=True)
    for name in ("busybox", "small"):
        os.link(bare.root / "bin" / name, bare.root / "jail/bin" / name)
    (bare.root / "jail/bin/sh").symlink_to("busybox")
    result = bare.run("chroot", "/jail", "/bin/small", "x", env={"HOME": "/home"})
    assert (result.stdout.splitlines()[1:], result.stderr, result.code) == ([b"[x]"], b"", 0)
