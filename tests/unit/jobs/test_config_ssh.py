"""`[ssh]` in the configuration: jobs that are host lists, and settings forbidden in projects."""

from __future__ import annotations

from pathlib import Path

import pytest

from atlctl.jobs.config import SshConfig, SshJob, load_config
from atlctl.jobs.errors import UsageError


class Place:
    """A home folder with the user's file, and a project in it."""

    def __init__(self, folder: Path) -> None:
        self.home, self.work = folder / "home", folder / "home" / "project"
        self.user, self.project = self.home / ".config" / "atlctl" / "config.toml", self.work / ".atlctl.toml"
        self.user.parent.mkdir(parents=True)
        self.work.mkdir()

    def loaded(self, **environ: str) -> SshConfig:
        return load_config({"HOME": str(self.home), **environ}, str(self.work)).ssh


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_nothing_is_configured(place: Place) -> None:
    assert place.loaded() == SshConfig("strict", {})


def test_jobs_of_the_users_file(place: Place) -> None:
    place.user.write_text(
        '[ssh]\nhost_keys = "accept-new"\n'
        '[ssh.jobs.train]\nhosts = ["gpu[01-16]", "ml@gpu20:2222"]\nexclude = "gpu03"\n'
        '[ssh.jobs.near]\nhostfile = "hosts"\ninclude = "w0:0,2@w1"\n'
        '[ssh.jobs.far]\nhostfile = "~/hosts"\n'
    )
    where = f"configuration file {place.user}: ssh.jobs"
    assert place.loaded() == SshConfig(
        "accept-new",
        {
            "train": SshJob(f"{where}.train", hosts=("gpu[01-16]", "ml@gpu20:2222"), exclude="gpu03"),
            "near": SshJob(f"{where}.near", hostfile=str(place.user.parent / "hosts"), include="w0:0,2@w1"),
            "far": SshJob(f"{where}.far", hostfile=str(place.home / "hosts")),
        },
    )


def test_a_projects_job_hides_the_users_of_that_name_as_a_whole(place: Place) -> None:
    place.user.write_text(
        '[ssh]\nhost_keys = "accept-new"\n[ssh.jobs.a]\nhosts = ["x"]\ninclude = "x"\n[ssh.jobs.b]\nhosts = ["y"]\n'
    )
    place.project.write_text('[ssh.jobs.a]\nhostfile = "hosts/a"\n')
    found = place.loaded()
    assert found.jobs["a"] == SshJob(
        f"project file {place.project}: ssh.jobs.a",
        hostfile=str(place.work / "hosts" / "a"),
        project=str(place.project),
        hides=True,
    )
    assert found.jobs["b"].hosts == ("y",)
    assert found.host_keys == "accept-new"


@pytest.mark.parametrize("value", ["strict", "accept-new"])
def test_a_project_has_no_say_in_host_keys(place: Place, value: str) -> None:
    place.project.write_text(f'[ssh]\nhost_keys = "{value}"\n')
    with pytest.raises(UsageError, match=r"a project cannot set ssh.host_keys") as caught:
        place.loaded()
    assert str(place.project) in caught.value.message
    assert caught.value.hint == "set it in your own config.toml"


def test_the_environment_has_no_say_in_host_keys(place: Place) -> None:
    assert place.loaded(ATLCTL_SSH_HOST_KEYS="accept-new").host_keys == "strict"


@pytest.mark.parametrize("path", ["/etc/passwd", "../hosts", "away/hosts"])
def test_a_projects_hostfile_lies_in_the_project(place: Place, tmp_path: Path, path: str) -> None:
    (place.work / "away").symlink_to(tmp_path)
    place.project.write_text(f'[ssh.jobs.a]\nhostfile = "{path}"\n')
    with pytest.raises(UsageError, match=r"outside of the project.s folder"):
        place.loaded()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ssh = 3", "unknown key ssh"),
        ("[ssh]\nuser = 'x'", "unknown key ssh.user"),
        ("[ssh]\njobs = ['a']", "ssh.jobs must be a table"),
        ("[ssh.jobs]\na = ['x']", "ssh.jobs.a must be a table"),
        ("[ssh.jobs.a]\nhosts = ['x']\nslots = 8", "unknown key ssh.jobs.a.slots"),
        ("[ssh.jobs.a]\ninclude = 'x'", "ssh.jobs.a has neither hosts nor hostfile"),
        ("[ssh.jobs.a]\nhosts = ['x']\nhostfile = 'x'", "ssh.jobs.a has both hosts and hostfile"),
        ("[ssh.jobs.a]\nhosts = ['x']\ninclude = 'x'\nexclude = 'y'", "ssh.jobs.a has both include and exclude"),
        ("[ssh.jobs.a]\nhosts = 'x'", "ssh.jobs.a.hosts must be a list of hosts"),
        ("[ssh.jobs.a]\nhosts = []", "ssh.jobs.a.hosts must be a list of hosts"),
        ("[ssh.jobs.a]\nhosts = [' ']", "ssh.jobs.a.hosts must be a list of hosts"),
        ("[ssh.jobs.a]\nhosts = [1]", "ssh.jobs.a.hosts must be a list of hosts"),
        ('[ssh.jobs.a]\nhosts = ["x\\ny"]', "ssh.jobs.a.hosts must be a list of hosts"),
        ("[ssh.jobs.a]\nhostfile = ['x']", "ssh.jobs.a.hostfile must be a string"),
        ('[ssh.jobs.a]\nhostfile = "x\\u0000"', "ssh.jobs.a.hostfile must be a string"),
        ("[ssh.jobs.a]\nhosts = ['x']\ninclude = ''", "ssh.jobs.a.include must be a string"),
        ("[ssh.jobs.a]\nhosts = ['x']\nexclude = 0", "ssh.jobs.a.exclude must be a string"),
        ("[ssh.jobs.'a b']\nhosts = ['x']", "ssh.jobs: job name 'a b' contains a character"),
        ("[ssh.jobs.-a]\nhosts = ['x']", "ssh.jobs: job name '-a' must start"),
    ],
)
@pytest.mark.parametrize("which", ["user", "project"])
def test_mistakes_name_the_file_and_the_cure(place: Place, text: str, says: str, which: str) -> None:
    path = place.user if which == "user" else place.project
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        place.loaded()
    assert f"{path}: {says}" in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("value", ["'no'", "true", "['strict']", "''"])
def test_host_keys_are_strict_or_accept_new(place: Place, value: str) -> None:
    place.user.write_text(f"[ssh]\nhost_keys = {value}\n")
    with pytest.raises(UsageError, match="host_keys must be strict or accept-new"):
        place.loaded()
