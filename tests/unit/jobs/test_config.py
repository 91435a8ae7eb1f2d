"""The configuration: files, precedence, and limits of a project file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from atlctl.jobs.config import Config, load_config
from atlctl.jobs.configfiles import config_files
from atlctl.jobs.errors import UsageError


@pytest.fixture
def home(tmp_path):
    folder = tmp_path / "home"
    (folder / ".config" / "atlctl").mkdir(parents=True)
    return folder


@pytest.fixture
def work(home):
    folder = home / "project" / "src" / "deep"
    folder.mkdir(parents=True)
    return folder


def user_file(home, text):
    (home / ".config" / "atlctl" / "config.toml").write_text(text)


def loaded(home, cwd, **environ):
    return load_config({"HOME": str(home), **environ}, str(cwd)).signatures


def listing(*paths):
    return f"[errors]\nsignatures = {[str(path) for path in paths]!r}\n"


def test_nothing_is_configured(home, work):
    assert load_config({"HOME": str(home)}, str(work)) == Config(())


def test_paths_of_the_users_file(home, work):
    user_file(home, listing("own.toml", "~/other.toml", "/etc/site.toml", "../up.toml", "~user/x.toml"))
    folder = home / ".config" / "atlctl"
    assert loaded(home, work) == (
        str(folder / "own.toml"),
        str(home / "other.toml"),
        "/etc/site.toml",
        str(home / ".config" / "up.toml"),
        str(folder / "~user" / "x.toml"),
    )


def test_xdg_config_home(home, work, tmp_path):
    other = tmp_path / "xdg"
    (other / "atlctl").mkdir(parents=True)
    (other / "atlctl" / "config.toml").write_text(listing("x.toml"))
    assert loaded(home, work, XDG_CONFIG_HOME=str(other)) == (str(other / "atlctl" / "x.toml"),)
    assert loaded(home, work, XDG_CONFIG_HOME="xdg") == ()


def test_the_first_that_has_it_holds(home, work):
    user_file(home, listing("/user.toml"))
    assert loaded(home, work) == ("/user.toml",)
    (work / ".atlctl.toml").write_text(listing("project.toml"))
    assert loaded(home, work) == (str(work / "project.toml"),)
    assert loaded(home, work, ATLCTL_SIGNATURES="a.toml:~/b.toml::/c.toml") == (
        str(work / "a.toml"),
        str(home / "b.toml"),
        "/c.toml",
    )
    assert loaded(home, work, ATLCTL_SIGNATURES="") == ()


def test_a_project_file_without_the_key_leaves_the_users(home, work):
    user_file(home, listing("/user.toml"))
    (work / ".atlctl.toml").write_text("[errors]\n")
    assert loaded(home, work) == ("/user.toml",)
    (work / ".atlctl.toml").write_text(listing())
    assert loaded(home, work) == ()


def test_the_nearest_project_file_up_to_the_home(home, work):
    (home.parent / ".atlctl.toml").write_text(listing("outside.toml"))
    assert loaded(home, work) == ()
    (home / ".atlctl.toml").write_text(listing("home.toml"))
    assert loaded(home, work) == (str(home / "home.toml"),)
    (home / "project" / ".atlctl.toml").write_text(listing("project.toml"))
    assert loaded(home, work) == (str(home / "project" / "project.toml"),)


def test_no_further_than_a_git_folder(home, work):
    (home / ".atlctl.toml").write_text(listing("home.toml"))
    (home / "project" / ".git").mkdir()
    assert loaded(home, work) == ()
    (home / "project" / ".atlctl.toml").write_text(listing("project.toml"))
    assert loaded(home, work) == (str(home / "project" / "project.toml"),)


def test_outside_of_home_and_git_only_the_working_folder(home, tmp_path):
    inner = tmp_path / "scratch" / "inner"
    inner.mkdir(parents=True)
    (inner.parent / ".atlctl.toml").write_text(listing("x.toml"))
    assert loaded(home, inner) == ()
    assert loaded(home, inner.parent) == (str(inner.parent / "x.toml"),)
    (inner.parent / ".git").write_text("gitdir: elsewhere")
    assert loaded(home, inner) == (str(inner.parent / "x.toml"),)


@pytest.mark.parametrize("path", ["/etc/passwd", "../../x.toml", "sub/../../x.toml", "away/x.toml"])
def test_a_project_file_stays_in_its_folder(home, work, tmp_path, path):
    (work / "away").symlink_to(tmp_path)
    (work / ".atlctl.toml").write_text(listing(path))
    with pytest.raises(UsageError, match=r"outside of the project.s folder") as caught:
        loaded(home, work)
    assert path in caught.value.message
    assert caught.value.hint


def test_a_project_file_knows_no_home(home, work):
    (work / ".atlctl.toml").write_text(listing("~/x.toml"))
    assert loaded(home, work) == (str(work / "~" / "x.toml"),)


@pytest.mark.parametrize("which", ["file", "folder"])
@pytest.mark.parametrize("how", ["anyone may write", "a group may write", "another user's"])
def test_a_project_file_that_somebody_else_may_have_written_is_not_read(home, work, which, how):
    if how != "anyone may write" and os.geteuid() != 0:
        pytest.skip("only root gives files away")
    user_file(home, listing("own.toml"))
    own = (str(home / ".config/atlctl/own.toml"),)
    file = work / ".atlctl.toml"
    file.write_text(listing("x.toml"))
    path = file if which == "file" else work
    if how == "anyone may write":
        path.chmod(0o1777)
        says = f"{path} can be written by others (mode 1777)"
    elif how == "a group may write":
        os.chown(path, 0, 4243)
        path.chmod(0o770)
        says = f"{path} can be written by others (mode 0770)"
    else:
        os.chown(path, 4243, 4243)
        says = f"{path} belongs to user 4243"
    found = load_config({"HOME": str(home)}, str(work))
    assert (found.signatures, found.unread) == (own, says)
    assert config_files({"HOME": str(home)}, str(work)) == [str(home / ".config/atlctl/config.toml")]
    os.chown(path, os.geteuid(), os.getegid())
    path.chmod(0o755)
    found = load_config({"HOME": str(home)}, str(work))
    assert (found.signatures, found.unread) == ((str(work / "x.toml"),), "")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_project_file_of_root_and_one_of_a_private_group_are_read(home, work, monkeypatch):
    file = work / ".atlctl.toml"
    file.write_text(listing("x.toml"))
    monkeypatch.setattr(os, "geteuid", lambda: 4243)
    assert loaded(home, work) == (str(work / "x.toml"),)
    for path in (work, file):
        os.chown(path, 4243, 4243)
        path.chmod(0o775)
    assert loaded(home, work) == (str(work / "x.toml"),)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[errors]\nsignature = []\n", "unknown key errors.signature"),
        ("[logs]\nx = 1\n", "unknown key logs"),
        ("errors = 3\n", "unknown key errors"),
        ("top = 1\n", "unknown key top"),
        ("[errors]\nsignatures = 'x.toml'\n", "errors.signatures must be a list of paths"),
        ("[errors]\nsignatures = [1]\n", "errors.signatures must be a list of paths"),
        ("[errors]\nsignatures = ['']\n", "errors.signatures must be a list of paths"),
        ('[errors]\nsignatures = ["a\\u0000b"]\n', "errors.signatures must be a list of paths"),
        ("[errors\n", "not valid TOML"),
        ("a = " + "[" * 100_000, "not valid TOML"),
    ],
)
@pytest.mark.parametrize("which", ["user", "project"])
def test_mistakes_name_the_file_and_the_cure(home, work, text, says, which):
    path = home / ".config" / "atlctl" / "config.toml" if which == "user" else work / ".atlctl.toml"
    path.write_text(text)
    for environ in ({}, {"ATLCTL_SIGNATURES": "x.toml"}):
        with pytest.raises(UsageError) as caught:
            loaded(home, work, **environ)
        assert says in caught.value.message
        assert str(path) in caught.value.message
        assert caught.value.hint


@pytest.mark.parametrize(
    ("value", "names"),
    [("'json://h/token'", ("json://h/token",)), ("['a://x', 'b://y']", ("a://x", "b://y"))],
)
def test_notifications_of_the_users_file(home, work, value, names):
    user_file(home, f"[notify]\nteam = {value}\n")
    config = load_config({"HOME": str(home)}, str(work))
    assert config.notify == {"team": names}
    assert names[0] not in repr(config)


@pytest.mark.parametrize("value", ["1", "[]", "''", "['json://h/token', 2]", "{ url = 'json://h/token' }"])
def test_notifications_that_are_none_do_not_show_their_secrets(home, work, value):
    user_file(home, f"[notify]\nteam = {value}\n")
    with pytest.raises(UsageError) as caught:
        loaded(home, work)
    assert "notify.team must be a URL or a list of them" in caught.value.message
    assert "token" not in caught.value.message


def test_a_project_does_not_choose_who_is_notified(home, work):
    (work / ".atlctl.toml").write_text("[notify]\nteam = 'json://h/token'\n")
    with pytest.raises(UsageError, match=r"a project cannot set notify"):
        loaded(home, work)


def test_a_home_that_is_none(work, tmp_path):
    for home in ("/dev/null", str(tmp_path / "missing")):
        assert load_config({"HOME": home}, str(work)).signatures == ()


def test_a_folder_instead_of_the_file(home, work):
    (home / ".config" / "atlctl" / "config.toml").mkdir()
    with pytest.raises(UsageError, match="not a regular file"):
        loaded(home, work)


def test_figures_of_hardware_are_a_setting_of_their_own(tmp_path: Path) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    (home / ".config/atlctl").mkdir(parents=True)
    work.mkdir()
    (home / ".config/atlctl/config.toml").write_text('[smoke]\nbusbw = ["own.toml"]\n')
    (work / ".atlctl.toml").write_text('[errors]\nsignatures = ["s.toml"]\n')
    found = load_config({"HOME": str(home)}, str(work))
    assert found == Config((str(work / "s.toml"),), (str(home / ".config/atlctl/own.toml"),))
    assert load_config({"HOME": str(home), "ATLCTL_BUSBW": ""}, str(work)).busbw == ()
