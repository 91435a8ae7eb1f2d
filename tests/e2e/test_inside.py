"""`atlctl` inside a worker: its identity without permissions, and the current job with the Role printed by `doctor`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.e2e import kinds, objects
from tests.e2e.cluster import Cluster, Object, until
from tests.e2e.kinds import Job
from tests.e2e.luggage import bring, inside
from tests.e2e.settings import token
from tests.support.cli import Result

RBAC = "rbac.authorization.k8s.io/v1"


@dataclass(frozen=True)
class Visitor:
    """A worker of a job whose service account has no permissions, with atlctl installed."""

    job: Job
    account: str
    worker: str
    pod: str

    def run(self, *words: str) -> Result:
        return inside(self.job.cluster, self.job, self.worker, *words)

    def data(self, *words: str) -> Object:
        run = self.run(*words, "-o", "json")
        assert run.stdout, run
        data: Object = json.loads(run.stdout)["data"]
        return data

    def allow(self, rules: list[Object]) -> None:
        """Grant permissions to the account."""
        name, cluster = f"some-{token()}", self.job.cluster
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
        subject = {"kind": "ServiceAccount", "name": self.account, "namespace": cluster.namespace}
        metadata = {"name": name}
        self.apply({"apiVersion": RBAC, "kind": "Role", "metadata": metadata, "rules": rules})
        binding = {"roleRef": reference, "subjects": [subject]}
        self.apply({"apiVersion": RBAC, "kind": "RoleBinding", "metadata": metadata, **binding})

    def apply(self, obj: Object) -> None:
        self.job.cluster.create(f"{obj['kind'].lower()}s.rbac.authorization.k8s.io", obj)


@pytest.fixture(params=[kinds.INDEXED, kinds.TRAINJOB, kinds.PYTORCHJOB], ids=lambda kind: kind.id)
def visitor(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[Visitor]:
    kinds.served(cluster, request.param)
    account = f"visitor-{token()}"
    cluster.create("serviceaccounts", {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account}})
    job = kinds.create(
        cluster, request.param, objects.IDLE, serviceAccountName=account, automountServiceAccountToken=True
    )
    try:
        last = job.started().workers[-1]
        bring(cluster, job, last["name"])
        yield Visitor(job, account, last["name"], last["pod"])
    finally:
        job.remove()


def test_without_rights_it_knows_who_it_is_and_what_it_lacks(visitor: Visitor) -> None:
    report = visitor.data("doctor")
    assert (report["pod"]["name"], report["pod"]["namespace"]) == (visitor.pod, visitor.job.cluster.namespace)
    assert report["cluster"]["user"] == f"system:serviceaccount:{visitor.job.cluster.namespace}:{visitor.account}"
    refused = visitor.run("ps")
    assert (refused.stdout, refused.code) == (b"", 4), refused
    assert b"forbidden" in refused.stderr
    # Only its pods: the job's object cannot be read, but commands work.
    visitor.allow([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}])
    run = until("the right to see pods", lambda: told(visitor.run("ps", "-o", "json")), 60)
    assert [worker["pod"] for worker in run["workers"]] == [worker["pod"] for worker in visitor.job.workers]
    # The Role that doctor prints grants the rest.
    role = visitor.data("doctor")["role"]
    assert [obj["kind"] for obj in role] == ["Role", "RoleBinding"]
    for obj in role:
        visitor.apply(obj)
    until("all rights", lambda: visitor.data("doctor")["role"] == [], 60)
    run = told(visitor.run("ps", "-o", "json"))
    assert (run["job"]["name"], run["job"]["kind"]) == (visitor.job.name, visitor.job.kind.title)
    assert [worker["name"] for worker in run["workers"]] == visitor.job.names
    said = visitor.run("exec", "--all", "--no-prefix", "-q", "--", "cat", "/etc/hostname")
    assert said.code == 0, said
    assert len(set(said.stdout.split())) == len(visitor.job.kind.workers)
    assert visitor.run("logs", "--tail", "1").code == 0
    plan = visitor.run("stop", visitor.job.name, "--dry-run", "--no-save")
    assert plan.code == 0, plan
    assert b"the stop ends this terminal, too" in plan.stderr


def told(run: Result) -> Object:
    """A document's data; empty if the command failed."""
    data: Object = json.loads(run.stdout)["data"] if run.code == 0 else {}
    return data
