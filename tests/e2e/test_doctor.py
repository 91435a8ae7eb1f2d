"""`doctor` as the user of the kubeconfig."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.cluster import Cluster


def test_doctor_names_server_user_and_kinds(cluster: Cluster) -> None:
    run = cluster.cli("doctor")
    assert run.code == 0, run
    data = cluster.data("doctor")
    assert data["backend"]["name"] == "kubernetes"
    assert data["cluster"]["namespace"] == cluster.namespace
    assert data["cluster"]["version"].startswith("v1.")
    assert {"jobs.batch", "statefulsets.apps"} <= {kind["resource"] for kind in data["kinds"]}
    assert {kind["resource"] for kind in data["kinds"]} <= set(cluster.kinds)
    rights = {(right["resource"], right["verb"]): right["allowed"] for right in data["permissions"]}
    assert rights["pods/exec", "create"]
    assert rights["pods/exec", "get"]


def test_a_server_that_is_not_there_is_255(cluster: Cluster) -> None:
    """Uses a port of this machine without a listener, not the cluster."""
    text = "apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts: [{name: a, context: {cluster: a, user: a}}]\n"
    text += "clusters: [{name: a, cluster: {server: 'https://127.0.0.1:9'}}]\nusers: [{name: a, user: {token: none}}]\n"
    Path("nowhere").write_text(text)
    run = cluster.cli("jobs", env={"KUBECONFIG": "nowhere"})
    assert run.code == 255, run
    assert run.stderr.startswith(b"error: ")


def test_a_token_that_is_no_good_is_4(cluster: Cluster) -> None:
    """The user's server and certificates, with an invalid token."""
    import yaml

    from tests.e2e.settings import SETTINGS

    path = Path(SETTINGS.kubeconfig.split(":")[0])
    config = yaml.safe_load(path.read_text())
    for user in config["users"]:
        user["user"] = {"token": "e2e-no-such-token"}
    for item in config["clusters"]:
        authority = item["cluster"].get("certificate-authority")
        if authority:
            item["cluster"]["certificate-authority"] = str(path.parent / authority)
    Path("stranger").write_text(yaml.safe_dump(config))
    Path("stranger").chmod(0o600)
    run = cluster.cli("jobs", env={"KUBECONFIG": "stranger"})
    assert run.code == 4, run
    assert b"e2e-no-such-token" not in run.stdout + run.stderr
