from __future__ import annotations

from typing import Any

import pytest

from atlctl.backends.kubernetes import pods
from tests.unit.kubernetes.fakecluster import pod


def container(**limits: Any) -> dict[str, Any]:
    return {"name": "main", "resources": {"limits": limits}}


@pytest.mark.parametrize(
    "resource",
    [
        "nvidia.com/gpu",
        "nvidia.com/gpu.shared",
        "nvidia.com/mig-1g.10gb",
        "nvidia.com/mig-1g.10gb.me",
        "amd.com/gpu",
        "huawei.com/Ascend910",
        "huawei.com/Ascend910B4",
        "cambricon.com/mlu",
        "cambricon.com/mlu370",
        "hygon.com/dcu",
        "iluvatar.ai/BI-V150-vgpu",
        "baidu.com/v100_32g_cgpu",
        "google.com/tpu",
        "aws.amazon.com/neuron",
    ],
)
def test_cards(resource: str) -> None:
    assert pods.is_card(resource)
    assert pods.cards(container(**{resource: "2"})) == {resource: 2}


@pytest.mark.parametrize(
    "resource",
    [
        "cpu",
        "memory",
        "nvidia.com/gpumem",
        "nvidia.com/gpumem-percentage",
        "nvidia.com/gpucores",
        "huawei.com/Ascend910B4-memory",
        "cambricon.com/mlu.smlu.vcore",
        "cambricon.com/mlu.smlu.vmemory",
        "hygon.com/dcumem",
        "hygon.com/dcucores",
        "baidu.com/v100_32g_cgpu_memory",
        "baidu.com/v100_32g_cgpu_core",
        "iluvatar.ai/vcuda-core",
        "aliyun.com/gpu-mem",
        "rdma/hca",
        "vpc.amazonaws.com/efa",
        "example.com/gpu-licence",
    ],
)
def test_shares_and_other_resources_are_no_cards(resource: str) -> None:
    assert not pods.is_card(resource)


@pytest.mark.parametrize(
    ("quantity", "number"),
    [
        ("8", 8),
        (8, 8),
        ("1k", 1000),
        ("1Ki", 1024),
        ("0", None),
        ("-1", None),
        ("1.5", None),
        ("500m", None),
        ("", None),
        ("k", None),
        ("9" * 30, None),
        ("1G", None),
        ("٣", None),
        (None, None),
        (True, None),
        ([], None),
    ],
)
def test_quantities(quantity: object, number: int | None) -> None:
    assert pods.cards(container(**{"nvidia.com/gpu": quantity})).get("nvidia.com/gpu") == number


def test_cards_of_a_pod() -> None:
    both = [container(**{"nvidia.com/gpu": "4"}), container(**{"nvidia.com/gpu": "4", "nvidia.com/gpumem": "3000"})]
    assert pods.pod_cards(pod("p", spec={"containers": both})) == 8
    assert pods.pod_cards(pod("p")) is None
    requests = [{"name": "main", "resources": {"requests": {"nvidia.com/gpu": 1}}}]
    assert pods.pod_cards(pod("p", spec={"containers": requests})) == 1


def test_devices_of_a_claim_are_not_counted() -> None:
    made = pod("p", spec={"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one"}]})
    assert pods.pod_cards(made) is None
