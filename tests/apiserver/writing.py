"""POST, PUT and PATCH: dry runs, conflicts, warnings about unknown fields."""

from __future__ import annotations

import copy
import json
import secrets
from typing import Any

from tests.apiserver import statuses
from tests.apiserver.cluster import Call
from tests.apiserver.resources import Resource
from tests.apiserver.statuses import Refusal
from tests.apiserver.store import Record, dumps, now

Object = dict[str, Any]

#: Known fields of specs by kind; other kinds accept any field.
FIELDS: dict[str, set[str]] = {
    kind: set(text.split())
    for kind, text in {
        "Job": """parallelism completions activeDeadlineSeconds podFailurePolicy successPolicy backoffLimit
            backoffLimitPerIndex maxFailedIndexes selector manualSelector template ttlSecondsAfterFinished
            completionMode suspend podReplacementPolicy managedBy""",
        "JobSet": """replicatedJobs network successPolicy failurePolicy startupPolicy suspend coordinator managedBy
            ttlSecondsAfterFinished volumeClaimPolicies""",
        "TrainJob": """runtimeRef initializer trainer labels annotations podTemplateOverrides podSpecOverrides
            suspend managedBy runtimePatches""",
        "PyTorchJob": "runPolicy elasticPolicy pytorchReplicaSpecs nprocPerNode",
        "PyTorchJob.runPolicy": """cleanPodPolicy ttlSecondsAfterFinished activeDeadlineSeconds backoffLimit
            schedulingPolicy suspend managedBy""",
    }.items()
}


def serve(call: Call) -> tuple[bytes | Object, int, dict[str, str]]:
    """The answer: body, status, headers."""
    content = call.request.headers.get("Content-Type", "application/json").partition(";")[0]
    try:
        body = json.loads(call.entry["body"] or "null")
    except ValueError as error:
        raise statuses.bad_request(f"error decoding: {error}") from None
    if not isinstance(body, dict):
        if content == "application/json-patch+json":
            raise Refusal(415, "UnsupportedMediaType", "the test server takes no JSON patch")
        raise statuses.bad_request("the body is no JSON object")
    if call.verb == "create":
        return _create(call, body)
    record = call.cluster.store.get(call.resource, call.namespace, call.name)
    if record is None:
        raise statuses.not_found(call.resource, call.name)
    if call.verb == "update":
        return _update(call, record, body)
    if content not in ("application/merge-patch+json", "application/strategic-merge-patch+json"):
        raise Refusal(415, "UnsupportedMediaType", f"the body of the request was in an unknown format - {content}")
    if content.startswith("application/strategic") and not call.resource.builtin:
        raise Refusal(
            415,
            "UnsupportedMediaType",
            "the body of the request was in an unknown format - accepted media types include: "
            "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml",
        )
    return _patch(call, record, body)


def _dry(call: Call) -> bool:
    return "All" in [value for key, value in call.query if key == "dryRun"]


def _create(call: Call, body: Object) -> tuple[bytes, int, dict[str, str]]:
    resource, store = call.resource, call.cluster.store
    metadata = dict(body.get("metadata") or {})
    if not metadata.get("name") and metadata.get("generateName"):
        metadata["name"] = metadata["generateName"] + secrets.token_hex(3)[:5]
    if not metadata.get("name"):
        cause = ("FieldValueRequired", "metadata.name", "Required value: name or generateName is required")
        raise statuses.invalid(resource.kind, resource.group, "", cause)
    if resource.namespaced:
        metadata["namespace"] = call.namespace
    for key in ("uid", "resourceVersion", "creationTimestamp", "generation"):
        metadata.pop(key, None)
    if store.get(resource, metadata.get("namespace", ""), metadata["name"]) is not None:
        raise statuses.already_exists(resource, metadata["name"])
    headers = _warn(call, {}, body)
    obj = body | {"metadata": metadata}
    if resource.plural == "pods":
        obj.setdefault("status", {"phase": "Pending", "qosClass": "BestEffort"})
    if _dry(call):
        obj["metadata"] |= {"uid": _uid(), "creationTimestamp": now(), "generation": 1}
        return dumps(obj) + b"\n", 201, headers
    return _body(resource, store.write(resource, obj)), 201, headers


def _uid() -> str:
    text = secrets.token_hex(16)
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def _update(call: Call, record: Record, body: Object) -> tuple[bytes, int, dict[str, str]]:
    metadata = dict(body.get("metadata") or {})
    return _put(call, record, body | {"metadata": metadata}, body)


def _patch(call: Call, record: Record, patch: Object) -> tuple[bytes, int, dict[str, str]]:
    return _put(call, record, merge(copy.deepcopy(record.obj), patch), patch)


def _put(call: Call, record: Record, obj: Object, patch: Object) -> tuple[bytes, int, dict[str, str]]:
    resource, store, old = call.resource, call.cluster.store, record.obj
    metadata = obj["metadata"]
    version = metadata.get("resourceVersion")
    if version and version != record.version:
        raise statuses.modified(resource, call.name)
    if metadata.get("uid", record.uid) != record.uid:
        text = f'Invalid value: "{metadata["uid"]}": field is immutable'
        cause = ("FieldValueInvalid", "metadata.uid", text)
        raise statuses.invalid(resource.kind, resource.group, call.name, cause, repeat=1 if resource.builtin else 2)
    _types(call, record, obj)
    headers = _warn(call, record.obj, obj)
    obj = _known(resource, obj)
    obj["metadata"] = metadata = {k: v for k, v in old["metadata"].items() if k not in _FREE} | metadata
    metadata["resourceVersion"] = record.version
    if call.sub == "status":
        obj = old | {"status": obj.get("status")}
    elif "status" in old:
        obj["status"] = old["status"]
    if obj.get("spec") != old.get("spec"):
        metadata["generation"] = old["metadata"].get("generation", 1) + 1
    if obj == old:
        return _body(resource, record), 200, headers
    if _dry(call):
        return _body(resource, Record(obj)), 200, headers
    written = store.write(resource, obj)
    if metadata.get("deletionTimestamp") and not metadata.get("finalizers") and resource.plural != "pods":
        store.remove(resource, call.namespace, call.name)
    return _body(resource, written), 200, headers


#: Metadata that a write may omit and thereby remove.
_FREE = ("labels", "annotations", "finalizers", "ownerReferences")


def merge(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    if not isinstance(target, dict):
        target = {}
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        else:
            target[key] = merge(target.get(key), value)
    return target


def _body(resource: Resource, record: Record) -> bytes:
    head = [("kind", resource.kind), ("apiVersion", resource.group_version)]
    found = dict(head if resource.builtin else head[::-1])
    return dumps(found)[:-1] + b"," + record.rest + b"\n"


def _types(call: Call, record: Record, obj: Object) -> None:
    """Checks only `suspend`, which must be a boolean."""
    spec = obj.get("spec") or {}
    place = spec.get("runPolicy") or {} if call.resource.group == "kubeflow.org" else spec
    value = place.get("suspend")
    if value is None or isinstance(value, bool):
        return
    if call.resource.kind == "TrainJob":
        text = 'admission webhook "defaulter.trainjob.trainer.kubeflow.org" denied the request: json: cannot unmarshal '
        text += f"{_json_kind(value)} into Go struct field TrainJobSpec.spec.suspend of type bool"
        raise Refusal(400, "", text)
    if call.resource.kind == "Job" and call.resource.group == "batch":
        raise _bad_patch(record, "json: cannot unmarshal string into Go struct field JobSpec.spec.suspend of type bool")
    text = f'Invalid value: "{_json_kind(value)}": spec.suspend in body must be of type boolean: "{_json_kind(value)}"'
    cause = ("FieldValueTypeInvalid", "spec.suspend", text)
    text = "Invalid value: null: some validation rules were not checked because the object was invalid; correct the "
    text += "existing errors to complete validation"
    more = ("FieldValueInvalid", "<nil>", text)
    raise statuses.invalid(call.resource.kind, call.resource.group, call.name, cause, more)


def _json_kind(value: Any) -> str:
    return "string" if isinstance(value, str) else "number" if isinstance(value, int | float) else "object"


def _bad_patch(record: Record, text: str) -> Refusal:
    shown = json.dumps(record.obj, separators=(",", ":"))
    message = f"Invalid value: {json.dumps(shown)}: {text}"
    causes = [{"reason": "FieldValueInvalid", "message": message, "field": "patch"}]
    return Refusal(422, "Invalid", f' "" is invalid: patch: {message}', {"causes": causes})


def _unknown(resource: Resource, obj: Object) -> list[tuple[str, ...]]:
    """Paths of fields that are not in the kind's schema."""
    if resource.group == "batch.volcano.sh" or resource.kind not in FIELDS:
        return []
    spec = obj.get("spec") or {}
    found: list[tuple[str, ...]] = [("spec", key) for key in spec if key not in FIELDS[resource.kind]]
    inner = FIELDS.get(f"{resource.kind}.runPolicy")
    if inner:
        found += [("spec", "runPolicy", key) for key in spec.get("runPolicy") or {} if key not in inner]
    return found


def _warn(call: Call, old: Object, obj: Object) -> dict[str, str]:
    """The Warning header about unknown fields. Raises Refusal (422) if the client requested strict validation."""
    paths = [".".join(path) for path in _unknown(call.resource, obj)]
    if not paths:
        return {}
    if call.get("fieldValidation") == "Strict":
        raise _bad_patch(Record(old), "strict decoding error: " + ", ".join(f'unknown field "{p}"' for p in paths))
    if call.get("fieldValidation") == "Ignore":
        return {}
    return {"Warning": ", ".join(f'299 - "unknown field \\"{path}\\""' for path in paths)}


def _known(resource: Resource, obj: Object) -> Object:
    """The object without unknown fields: the real server drops them."""
    for path in _unknown(resource, obj):
        place = obj
        for key in path[:-1]:
            place = place[key]
        place.pop(path[-1], None)
    return obj
