"""Volumes that are made for claims: the calls that Kubernetes' external-provisioner makes, in its order."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from tests.csi.conftest import MODES, TOKEN, Kubelet, running_kubelet
from tests.csi.test_driver import refusal
from tests.support.mounts import eventually, run

pytestmark = pytest.mark.mount
CLAIM = "pvc-0f5b1a52-7d0c-4c7c-8f0f-0b6f5a1d9c11"
RECORD = ".aisfs-index/volume.json"
GI = 1 << 30
WRONG, EXISTS, UNPROVEN = (
    grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.FAILED_PRECONDITION,
)  # fmt: skip


@pytest.fixture(scope="module")
def kubelet() -> Iterator[Kubelet]:
    with running_kubelet() as running:
        running.start("controller")
        yield running


@pytest.fixture
def store(kubelet: Kubelet) -> Path:
    return kubelet.place / "store"


def capability(
    mode: int = MODES.MULTI_NODE_MULTI_WRITER, *, block: bool = False
) -> dict[str, object]:
    return {("block" if block else "mount"): {}, "access_mode": {"mode": mode}}


def create(kubelet: Kubelet, name: str = CLAIM, size: int = GI, most: int = 0, **fields: object):
    """Call as external-provisioner does, which adds the names of the claim to the parameters."""
    named = {
        "csi.storage.k8s.io/pvc/name": "data",
        "csi.storage.k8s.io/pvc/namespace": "default",
        "csi.storage.k8s.io/pv/name": name,
    }
    more = {"volume_capabilities": [capability()], **fields}
    more["parameters"] = {**more.get("parameters", {}), **named}
    room = {"required_bytes": size, "limit_bytes": most}
    return kubelet.call("CreateVolume", "Controller", name=name, capacity_range=room, **more).volume


def delete(kubelet: Kubelet, volume: str, **fields: object) -> None:
    kubelet.call("DeleteVolume", "Controller", volume_id=volume, **fields)


def publish(
    kubelet: Kubelet, target: Path, volume, mode: int = MODES.MULTI_NODE_MULTI_WRITER
) -> None:
    """Publish a volume as kubelet does: with the context that the PersistentVolume keeps."""
    context = dict(volume.volume_context)
    kubelet.publish(target, context.pop("source"), mode=mode, **context)


PLACES = {
    "a bucket": ({}, CLAIM),
    "a directory": ({"source": "ais://b/volumes"}, f"b/volumes/{CLAIM}"),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_claim_from_beginning_to_end(kubelet: Kubelet, target: Path, store: Path, place: str):
    parameters, path = PLACES[place]
    parameters = {**parameters, "file-mode": "0600", "attr-ttl": "0"}
    kinds = kubelet.call("ControllerGetCapabilities", "Controller").capabilities
    assert [kind.rpc.type for kind in kinds] == [1, 13]
    for _ in range(2):  # it asks again when an answer was lost
        volume = create(kubelet, parameters=parameters)
        assert volume.volume_id.rstrip("/") == f"ais://{path}"
        assert volume.capacity_bytes == GI
        assert dict(volume.volume_context) == {
            "source": volume.volume_id, "writable": "true", "file-mode": "0600", "attr-ttl": "0",
        }  # fmt: skip
    publish(kubelet, target, volume)
    assert list(target.iterdir()) == []  # some programs want an empty directory
    assert not run("git", "init", "--quiet", target).returncode
    (target / "data").mkdir()
    (target / "data" / "x.txt").write_text("x")
    assert (store / path / "data" / "x.txt").read_text() == "x"
    kubelet.unpublish(target)
    create(kubelet, parameters=parameters)  # a controller that has begun anew
    for _ in range(2):
        delete(kubelet, volume.volume_id)
        assert not (store / path).exists()
    assert (store / "b" / "a.txt").read_bytes() == b"a"


def test_a_volume_of_the_same_name_is_the_same_or_refused(kubelet: Kubelet, store: Path):
    volume = create(kubelet, "same", parameters={"uid": "1000"})
    for fields in ({"size": 2 * GI}, {"parameters": {"uid": "2000"}}):
        code, said = refusal(create, kubelet, "same", **{"parameters": {"uid": "1000"}, **fields})
        assert (code, "with another size or other parameters" in said) == (EXISTS, True)
    delete(kubelet, volume.volume_id)


def test_names_that_no_bucket_can_have(kubelet: Kubelet, store: Path):
    names = ["x" * 128, "with/slash", "Ünïcode", "../b", "x" * 127 + "y", "A"]
    made = [create(kubelet, name).volume_id for name in names]
    assert len(set(made)) == len(names)
    assert all(len(volume) <= 64 and volume.count("/") == 2 for volume in made)
    for volume in made:
        delete(kubelet, volume)


def test_what_is_there_is_never_taken_for_a_volume(kubelet: Kubelet, store: Path):
    precious = store / "precious"
    precious.mkdir()
    (precious / "only-copy.txt").write_text("only copy")
    code, said = refusal(create, kubelet, "precious")
    assert (code, "has objects, and is no volume" in said) == (EXISTS, True)
    under = {"source": "ais://precious"}
    (precious / "d").mkdir()
    (precious / "d" / "x").write_text("x")
    assert refusal(create, kubelet, "d", parameters=under)[0] is EXISTS
    for volume in ("ais://precious", "ais://precious/", "ais://precious/d/", "ais://precious/d"):
        code, said = refusal(delete, kubelet, volume)
        assert (code, "nothing proves that" in said) == (UNPROVEN, True)
    # The record of another volume, as a copy of a whole bucket has it, proves nothing.
    other = create(kubelet, "other")
    (precious / ".aisfs-index").mkdir()
    (precious / RECORD).write_bytes((store / "other" / RECORD).read_bytes())
    assert refusal(delete, kubelet, "ais://precious")[0] is UNPROVEN
    for damage in (b"", b"{}", b"[", b"\xff"):
        (precious / RECORD).write_bytes(damage)
        assert refusal(delete, kubelet, "ais://precious")[0] is UNPROVEN
    assert (precious / "only-copy.txt").read_text() == "only copy"
    assert (precious / "d" / "x").read_text() == "x"
    delete(kubelet, other.volume_id)


@pytest.mark.parametrize(
    "volume",
    [
        "nothing",
        "ais://none",
        "ais://b/none/",
        "/etc",
        "s3+direct://b",
        "file://etc/",
        "ais://../b",
    ],
)
def test_there_is_nothing_to_remove_of_what_is_not_there(kubelet: Kubelet, volume: str):
    delete(kubelet, volume)


def test_a_volume_that_its_pod_has_made_unprovable_stays(kubelet: Kubelet, store: Path):
    volume = create(kubelet, "gone", parameters={"source": "ais://b/volumes/"})
    (store / "b/volumes/gone" / RECORD).unlink()
    (store / "b/volumes/gone/x.txt").write_text("x")
    code, said = refusal(delete, kubelet, volume.volume_id)
    assert (code, "volumes/gone/.aisfs-index/volume.json is missing" in said) == (UNPROVEN, True)
    assert (store / "b/volumes/gone/x.txt").read_text() == "x"


def test_a_removal_that_was_interrupted_goes_on(kubelet: Kubelet, store: Path):
    volume = create(kubelet, "broken", parameters={"source": "ais://b/volumes/"})
    for number in range(5):
        (store / "b/volumes/broken" / f"{number}.txt").write_text("x")
    refused = {
        "match": {"method": "DELETE", "path_contains": "3.txt"},
        "action": "status",
        "status": 403,
        "times": -1,
    }
    kubelet.server.faults([refused])
    try:
        assert refusal(delete, kubelet, volume.volume_id)[0] is grpc.StatusCode.PERMISSION_DENIED
    finally:
        kubelet.server.faults([])
    assert (store / "b/volumes/broken" / RECORD).exists()
    delete(kubelet, volume.volume_id)
    assert not (store / "b/volumes/broken").exists()


def test_what_is_still_there_keeps_the_record(kubelet: Kubelet, store: Path):
    volume = create(kubelet, "odd", parameters={"source": "ais://b/volumes/"})
    (store / "b/volumes/odd/x.txt").write_text("x")
    said_only = {"method": "DELETE", "path_contains": "odd/x.txt"}
    kubelet.server.faults([{"match": said_only, "action": "status", "status": 200, "times": 1}])
    try:
        code, said = refusal(delete, kubelet, volume.volume_id)
        assert (code, "odd/x.txt': is still there" in said) == (UNPROVEN, True), said
    finally:
        kubelet.server.faults([])
    assert (store / "b/volumes/odd" / RECORD).exists()
    delete(kubelet, volume.volume_id)
    assert not (store / "b/volumes/odd").exists()


def test_a_bucket_of_a_volume_that_was_never_finished_becomes_one(kubelet: Kubelet, store: Path):
    """The controller was killed between bucket and record."""
    lost = {
        "match": {"method": "PUT", "path_contains": "volume.json"},
        "action": "status",
        "status": 403,
        "times": -1,
    }
    kubelet.server.faults([lost])
    try:
        assert refusal(create, kubelet, "late")[0] is grpc.StatusCode.PERMISSION_DENIED
    finally:
        kubelet.server.faults([])
    assert (store / "late").is_dir()
    assert refusal(delete, kubelet, "ais://late")[0] is UNPROVEN
    volume = create(kubelet, "late")
    delete(kubelet, volume.volume_id)
    assert not (store / "late").exists()


def test_one_call_at_a_time_is_at_work_on_a_volume(kubelet: Kubelet):
    slow = {
        "match": {"path_contains": "slow-claim"}, "action": "stall", "seconds": 60, "until_cleared": True, "times": -1,
    }  # fmt: skip
    kubelet.server.faults([slow])
    ended: list[object] = []
    thread = threading.Thread(target=lambda: ended.append(create(kubelet, "slow-claim")))
    thread.start()
    try:
        assert eventually(lambda: kubelet.server.struck()[0] > 0)
        for call in (
            lambda: create(kubelet, "slow-claim"),
            lambda: delete(kubelet, "ais://slow-claim"),
        ):
            assert refusal(call)[0] is grpc.StatusCode.ABORTED
    finally:
        kubelet.server.faults([])
        thread.join(60)
    assert len(ended) == 1
    delete(kubelet, "ais://slow-claim")


@pytest.mark.parametrize(
    ("fields", "code", "said"),
    [
        ({"name": ""}, WRONG, "needs a name"),
        ({"volume_capabilities": []}, WRONG, "capabilities"),
        ({"volume_capabilities": [capability(block=True)]}, WRONG, "no block device"),
        ({"volume_capabilities": [{"mount": {}}]}, WRONG, "an unknown access mode"),
        ({"volume_content_source": {}}, WRONG, "snapshots and clones are not offered"),
        ({"size": 2, "most": 1}, grpc.StatusCode.OUT_OF_RANGE, "contradicts itself"),
        ({"parameters": {"source": "/etc"}}, WRONG, "expected a bucket of AIStore"),
        ({"parameters": {"source": "s3+direct://b"}}, WRONG, "expected a bucket of AIStore"),
        ({"parameters": {"source": "ais://" + "d/" * 60}}, WRONG, "too long"),
        ({"parameters": {"source": "ais://b/a b"}}, WRONG, "characters"),
        ({"parameters": {"source": "ais://b/{c,d}"}}, WRONG, "characters"),
        ({"parameters": {"endpoint": "http://other"}}, WRONG, "endpoint: no parameter"),
        ({"parameters": {"sauce": "ais://b"}}, WRONG, "sauce: no option of volumes"),
        ({"parameters": {"source": "ais://none/x"}}, grpc.StatusCode.NOT_FOUND, "ais://none"),
    ],
)
def test_volumes_that_are_not_made(kubelet: Kubelet, store: Path, fields, code, said: str):
    before = sorted(path for path in store.iterdir() if path.name[0] != ".")
    got, reason = refusal(create, kubelet, **{"name": "never", **fields})
    assert (got, said in reason) == (code, True), reason
    assert sorted(path for path in store.iterdir() if path.name[0] != ".") == before


def test_the_token_of_the_class_counts(kubelet: Kubelet):
    only = {"match": {"other_token": TOKEN, "marked": False}, "action": "expire", "times": -1}
    kubelet.server.faults([only])
    try:
        assert refusal(create, kubelet, "secret")[0] is grpc.StatusCode.PERMISSION_DENIED
        volume = create(kubelet, "secret", secrets={"token": TOKEN})
        assert refusal(delete, kubelet, volume.volume_id)[0] is grpc.StatusCode.PERMISSION_DENIED
        delete(kubelet, volume.volume_id, secrets={"token": TOKEN})
    finally:
        kubelet.server.faults([])


def validate(kubelet: Kubelet, volume: str, *capabilities: dict[str, object], **context: str):
    return kubelet.call(
        "ValidateVolumeCapabilities", "Controller",
        volume_id=volume, volume_capabilities=capabilities, volume_context=context,
    )  # fmt: skip


def test_which_capabilities_are_confirmed(kubelet: Kubelet):
    volume = create(kubelet, "valid")
    wanted = [capability(mode) for mode in range(1, 8)]
    said = validate(kubelet, volume.volume_id, *wanted, **volume.volume_context)
    assert len(said.confirmed.volume_capabilities) == 7
    assert dict(said.confirmed.volume_context) == dict(volume.volume_context)
    assert validate(kubelet, volume.volume_id, capability()).HasField("confirmed")
    for answer in (
        validate(kubelet, volume.volume_id, capability(block=True)),
        validate(kubelet, volume.volume_id, capability(), source="ais://b"),
    ):
        assert not answer.HasField("confirmed")
        assert answer.message
    for missing in ("ais://none", "ais://b", "fake"):
        assert refusal(validate, kubelet, missing, capability())[0] is grpc.StatusCode.NOT_FOUND
    assert refusal(validate, kubelet, volume.volume_id)[0] is WRONG
    delete(kubelet, volume.volume_id)


def test_one_pod_alone_has_a_volume_of_read_write_once_pod(kubelet: Kubelet, target: Path):
    volume = create(kubelet, "alone")
    once, other = MODES.SINGLE_NODE_SINGLE_WRITER, target.with_name("other-pod")
    for _ in range(2):
        publish(kubelet, target, volume, once)
    code, said = refusal(publish, kubelet, other, volume, once)
    assert (code, f"is ReadWriteOncePod, and mounted on {target}" in said) == (UNPROVEN, True)
    assert not other.exists()
    kubelet.unpublish(target)
    publish(kubelet, other, volume, once)
    kubelet.unpublish(other)
    for path in (target, other):  # ReadWriteOnce is no promise: nothing is attached
        publish(kubelet, path, volume, MODES.SINGLE_NODE_WRITER)
    (target / "one").write_text("1")
    (other / "two").write_text("2")
    for path in (target, other):
        kubelet.unpublish(path)
    delete(kubelet, volume.volume_id)


def test_readers_of_a_volume_cannot_write(kubelet: Kubelet, target: Path):
    volume = create(kubelet, "shown")
    publish(kubelet, target, volume, MODES.MULTI_NODE_READER_ONLY)
    with pytest.raises(OSError, match="Read-only"):
        (target / "x").write_text("x")
    kubelet.unpublish(target)
    delete(kubelet, volume.volume_id)


def test_the_record_says_what_was_asked_for(kubelet: Kubelet, store: Path):
    volume = create(kubelet, "told", parameters={"uid": "7"})
    said = json.loads((store / "told" / RECORD).read_text())
    assert said == {"id": "ais://told", "size": GI, "parameters": {"uid": "7"}}
    delete(kubelet, volume.volume_id)
