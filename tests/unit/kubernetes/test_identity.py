"""Identifying the own pod by token, mounts and host name."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from atlctl.backends.kubernetes.identity import OwnPod, own_pod

UID = "0a1b2c3d-0000-4000-8000-00000000abcd"
ACCOUNT = "var/run/secrets/kubernetes.io/serviceaccount"
INSIDE = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "train-worker-1"}


def token(payload: object) -> str:
    body = base64.urlsafe_b64encode(json.dumps(payload).encode()).rstrip(b"=").decode()
    return f"e30.{body}.c2ln"


def root(tmp_path: Path, *, told: str | None = None, mounts: str | None = None, namespace: str | None = None) -> str:
    (tmp_path / ACCOUNT).mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    for path, text in (
        (f"{ACCOUNT}/token", told),
        (f"{ACCOUNT}/namespace", namespace),
        ("proc/self/mountinfo", mounts),
    ):
        if text is not None:
            (tmp_path / path).write_text(text)
    return str(tmp_path)


def mount(source: str, target: str) -> str:
    return f"812 790 8:1 {source} {target} rw,relatime - ext4 /dev/sda1 rw\n"


HOSTS = mount(f"/var/lib/kubelet/pods/{UID}/etc-hosts", "/etc/hosts")
LOG = mount(f"/var/lib/kubelet/pods/{UID}/containers/pytorch/5d3a", "/dev/termination-log")
CLAIMS = {"kubernetes.io": {"namespace": "team", "pod": {"name": "train-worker-1-x7z", "uid": UID}}}


def test_the_token_tells_all(tmp_path: Path) -> None:
    found = own_pod({}, root(tmp_path, told=token(CLAIMS), mounts=HOSTS + LOG))
    assert found == OwnPod("train-worker-1-x7z", UID, "team", "the service account's token")


def test_without_a_token_the_mounts_tell(tmp_path: Path) -> None:
    found = own_pod(INSIDE, root(tmp_path, mounts=HOSTS + LOG, namespace="team\n"))
    assert found == OwnPod("train-worker-1", UID, "team", "the kubelet's mounts")


def test_mounts_of_another_pods_folder_do_not_count(tmp_path: Path) -> None:
    shown = mount(f"/var/lib/kubelet/pods/{UID}/etc-hosts", "/mnt/hosts")
    found = own_pod(INSIDE, root(tmp_path, mounts=shown))
    assert found == OwnPod("train-worker-1", None, None, "the host name")


@pytest.mark.parametrize(
    "told",
    [
        "",
        "a.b",
        "a.!.c",
        token([]),
        token({}),
        token({"kubernetes.io": 1}),
        token({"kubernetes.io": {"pod": {"name": 1}}}),
        "\0",
    ],
)
def test_a_token_that_tells_nothing(tmp_path: Path, told: str) -> None:
    assert own_pod(INSIDE, root(tmp_path, told=told)) == OwnPod("train-worker-1", None, None, "the host name")


def test_outside_of_kubernetes(tmp_path: Path) -> None:
    assert own_pod({"HOSTNAME": "laptop"}, root(tmp_path)) is None
    assert own_pod({}, str(tmp_path / "empty")) is None
