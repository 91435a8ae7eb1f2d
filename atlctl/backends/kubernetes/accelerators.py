"""Which resources of a container are accelerator cards, and how many it may use.

A table of vendors' names and not a search for "gpu": MIG slices and NPUs do not hold that word, and memory and core
shares do. Names are those of the vendors' device plugins and of HAMi.
"""

from __future__ import annotations

from functools import lru_cache

from atlctl.backends.kubernetes.api import Object
from atlctl.backends.kubernetes.objects import MAX_COUNT, spec
from atlctl.jobs.fields import entries, mapping, text

#: Resources that are cards, or shares that a container sees as one card -> vendor.
CARDS = {
    "nvidia.com/gpu": "NVIDIA",
    "nvidia.com/gpu.shared": "NVIDIA",
    "amd.com/gpu": "AMD",
    "kunlunxin.com/xpu": "Kunlunxin",
    "baidu.com/xpu": "Kunlunxin",
    "cambricon.com/mlu": "Cambricon",
    "cambricon.com/vmlu": "Cambricon",
    "hygon.com/dcu": "Hygon",
    "hygon.com/dcunum": "Hygon",
    "metax-tech.com/gpu": "MetaX",
    "metax-tech.com/sgpu": "MetaX",
    "mthreads.com/gpu": "Moore Threads",
    "mthreads.com/vgpu": "Moore Threads",
    "enflame.com/gcu": "Enflame",
    "enflame.com/vgcu": "Enflame",
    "enflame.com/drs-gcu": "Enflame",
    "enflame.com/shared-gcu": "Enflame",
    "iluvatar.ai/gpu": "Iluvatar",
    "iluvatar.com/gpu": "Iluvatar",
    "alibabacloud.com/ppu": "Alibaba",
    "birentech.com/gpu": "Biren",
    "google.com/tpu": "Google",
    "aws.amazon.com/neuron": "AWS",
    "aws.amazon.com/neuroncore": "AWS",
    "aws.amazon.com/neurondevice": "AWS",
    "habana.ai/gaudi": "Intel",
    "gpu.intel.com/i915": "Intel",
    "gpu.intel.com/xe": "Intel",
}

#: Beginnings of names that go on with a model or a slice's size.
FAMILIES = {
    "nvidia.com/mig-": "NVIDIA",
    "huawei.com/Ascend": "Huawei",
    "cambricon.com/mlu": "Cambricon",
    "iluvatar.ai/": "Iluvatar",
    "baidu.com/": "Baidu",
}
#: Baidu's and Iluvatar's families hold other things, too: only names with this end are cards.
_FAMILY_ENDS = {"baidu.com/": ("_cgpu",), "iluvatar.ai/": ("-vgpu",)}

#: Ends of names of shares of a card (memory, cores), which count no card.
_SHARES = (
    "mem",
    "cores",
    "-core",
    "_core",
    "memory",
    "_percent",
    "-percentage",
    ".vcore",
    ".vmemory",
)

_SUFFIXES = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
}


@lru_cache(maxsize=512)
def vendor(resource: str) -> str | None:
    """Whose card a resource is; None for what is no card."""
    if resource in CARDS:
        return CARDS[resource]
    if resource.lower().endswith(_SHARES):
        return None
    for start, whose in FAMILIES.items():
        if resource.startswith(start):
            ends = _FAMILY_ENDS.get(start)
            return whose if ends is None or resource.endswith(ends) else None
    return None


def cards(container: Object) -> dict[str, int]:
    """Cards that a container may use, by resource: its limits, which for such resources equal its requests."""
    resources = mapping(container.get("resources"))
    stated = mapping(resources.get("limits")) or mapping(resources.get("requests"))
    found = {}
    for resource, quantity in stated.items():
        if vendor(resource) is not None and (number := _quantity(quantity)):
            found[resource] = number
    return found


def pod_cards(pod: Object) -> int | None:
    """Cards of all containers of a pod; None where it states none, as with dynamic resource allocation."""
    found = 0
    for container in entries(spec(pod).get("containers")):
        if "resources" in container:
            found += sum(cards(container).values())
    return min(found, MAX_COUNT) or None


def _quantity(value: object) -> int | None:
    """A whole quantity: `8`, `1k`. Kubernetes allows extended resources no fractions."""
    if type(value) is int:
        return value if 0 < value <= MAX_COUNT else None
    written = text(value)
    if len(written) > 20 or not written.isascii():
        return None
    digits = written.rstrip("kKMGi")
    factor = _SUFFIXES.get(written[len(digits) :])
    if factor is None or not digits.isdigit():
        return None
    number = int(digits) * factor
    return number if 0 < number <= MAX_COUNT else None
