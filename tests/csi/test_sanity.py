"""The specs of csi-sanity for what this driver offers (Identity, Node, Controller), one by one, over its sockets.

csi-sanity itself (github.com/kubernetes-csi/csi-test) is a program in Go, which no registry of this project's tests has. It was
built from its sources and run by hand: all specs that apply passed (docs/KUBERNETES.md). Their names are in the comments.
"""

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from tests.csi.conftest import MODES, Kubelet, running_kubelet
from tests.csi.test_driver import refusal
from tests.csi.test_provisioning import capability

pytestmark = pytest.mark.mount
IDEMPOTENT = 3
"""Times that each call is made where csi-sanity makes it several times."""
ONCE = capability(MODES.SINGLE_NODE_WRITER)
WRONG, MISSING = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND


@pytest.fixture(scope="module")
def kubelet() -> Iterator[Kubelet]:
    with running_kubelet() as running:
        running.start("controller")
        yield running


REFUSED = {
    # Controller: CreateVolume should fail when no name, when no volume capabilities are provided
    "CreateVolume name": ("CreateVolume", {"volume_capabilities": [ONCE]}, WRONG),
    "CreateVolume capabilities": ("CreateVolume", {"name": "n"}, WRONG),
    # DeleteVolume should fail when no volume id is provided
    "DeleteVolume id": ("DeleteVolume", {}, WRONG),
    # ValidateVolumeCapabilities should fail when no volume id, no capabilities, when the volume does not exist
    "Validate id": ("ValidateVolumeCapabilities", {"volume_capabilities": [ONCE]}, WRONG),
    "Validate capabilities": ("ValidateVolumeCapabilities", {"volume_id": "v"}, WRONG),
    "Validate missing": ("ValidateVolumeCapabilities", {"volume_id": "v", "volume_capabilities": [ONCE]}, MISSING),
    # NodePublishVolume should fail when no volume id, no target path, no volume capability is provided
    "Publish id": ("NodePublishVolume", {"target_path": "/t", "volume_capability": ONCE}, WRONG),
    "Publish path": ("NodePublishVolume", {"volume_id": "v", "volume_capability": ONCE}, WRONG),
    "Publish capability": ("NodePublishVolume", {"volume_id": "v", "target_path": "/t"}, WRONG),
    # NodeUnpublishVolume should fail when no volume id, no target path is provided
    "Unpublish id": ("NodeUnpublishVolume", {"target_path": "/t"}, WRONG),
    "Unpublish path": ("NodeUnpublishVolume", {"volume_id": "v"}, WRONG),
    # NodeGetVolumeStats should fail when no volume id, no volume path is provided, when volume is not found
    "Stats id": ("NodeGetVolumeStats", {"volume_path": "/t"}, WRONG),
    "Stats path": ("NodeGetVolumeStats", {"volume_id": "v"}, WRONG),
    "Stats missing": ("NodeGetVolumeStats", {"volume_id": "v", "volume_path": "some/path"}, MISSING),
}  # fmt: skip


@pytest.mark.parametrize(("call", "fields", "code"), REFUSED.values(), ids=REFUSED)
def test_calls_that_fail(kubelet: Kubelet, call: str, fields: dict[str, object], code):
    service = "Node" if call.startswith("Node") else "Controller"
    assert refusal(kubelet.call, call, service, **fields)[0] is code


def test_identity_and_capabilities(kubelet: Kubelet):
    # GetPluginCapabilities, Probe, GetPluginInfo should return appropriate capabilities / information
    capabilities = kubelet.call("GetPluginCapabilities", "Identity").capabilities
    assert [found.service.type for found in capabilities] == [1]
    assert kubelet.call("Probe", "Identity").ready.value
    info = kubelet.call("GetPluginInfo", "Identity")
    assert 0 < len(info.name) <= 63
    # NodeGetCapabilities, ControllerGetCapabilities should return appropriate capabilities
    nodes = kubelet.call("NodeGetCapabilities").capabilities
    assert {found.rpc.type for found in nodes} <= set(range(1, 7))
    controllers = kubelet.call("ControllerGetCapabilities", "Controller").capabilities
    assert {found.rpc.type for found in controllers} <= set(range(1, 16))
    # NodeGetInfo should return appropriate values
    node = kubelet.call("NodeGetInfo")
    assert node.node_id
    assert node.max_volumes_per_node >= 0


@pytest.mark.parametrize("source", ["", "ais://b/volumes"])
def test_a_volume_is_made_published_and_removed_several_times_each(
    kubelet: Kubelet, target: Path, source: str
):
    # CreateVolume …: SingleNodeWriter NoCapacity; WithCapacity; already existing name and same capacity, and
    # different capacity; maximum-length name. DeleteVolume should succeed when an invalid volume id is used
    made = {"parameters": {"source": source} if source else {}, "volume_capabilities": [ONCE]}
    create = ("CreateVolume", "Controller")
    for name, room in (("no-capacity", 0), ("with", 1 << 30), ("x" * 128, 1 << 30)):
        for _ in range(IDEMPOTENT):
            volume = kubelet.call(
                *create, name=name, capacity_range={"required_bytes": room}, **made
            ).volume
            assert volume.volume_id
            assert volume.capacity_bytes in (0, room)
        more = {"required_bytes": room + 1}
        got = refusal(kubelet.call, *create, name=name, capacity_range=more, **made)
        assert got[0] is grpc.StatusCode.ALREADY_EXISTS
        # ValidateVolumeCapabilities should return appropriate values
        said = kubelet.call(
            "ValidateVolumeCapabilities", "Controller", volume_id=volume.volume_id, volume_capabilities=[ONCE]
        )  # fmt: skip
        assert said.HasField("confirmed")
        # Node Service should work, should be idempotent; NodeUnpublishVolume should remove target path
        fields = {
            "volume_id": volume.volume_id, "target_path": str(target), "volume_capability": ONCE,
            "volume_context": dict(volume.volume_context),
        }  # fmt: skip
        for _ in range(IDEMPOTENT):
            kubelet.call("NodePublishVolume", **fields)
        # NodeGetVolumeStats should fail when volume does not exist on the specified path
        stats = {"volume_id": volume.volume_id, "volume_path": "some/path"}
        assert refusal(kubelet.call, "NodeGetVolumeStats", **stats)[0] is MISSING
        for _ in range(IDEMPOTENT):
            kubelet.call("NodeUnpublishVolume", volume_id=volume.volume_id, target_path=str(target))
            assert not target.exists()
        for _ in range(IDEMPOTENT):
            kubelet.call("DeleteVolume", "Controller", volume_id=volume.volume_id)
    kubelet.call("DeleteVolume", "Controller", volume_id="reallyfakevolumeid")


def test_a_single_writer_is_mounted_once(kubelet: Kubelet, target: Path):
    # … should fail when volume with single node single writer access mode is already mounted at a different target path
    fields = {
        "volume_id": "v",
        "volume_capability": capability(MODES.SINGLE_NODE_SINGLE_WRITER),
        "volume_context": {"source": "ais://b", "writable": "true"},
    }
    kubelet.call("NodePublishVolume", target_path=str(target), **fields)
    other = {"target_path": f"{target}-other", **fields}
    code, _ = refusal(kubelet.call, "NodePublishVolume", **other)
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    kubelet.unpublish(target)
