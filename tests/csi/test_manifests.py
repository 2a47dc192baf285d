"""The manifests say what Kubernetes and this project understand."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from aisfs.commands.main import cli
from aisfs.csi.provisioning import planned
from aisfs.csi.services import DRIVER
from aisfs.csi.volumes import parse_volume
from tests.csi.conftest import running_kubelet
from tests.docs.documents import ROOT
from tests.support.for_each import for_each
from tests.support.mounts import aisfs, environment

DEPLOY = ROOT / "deploy"
VERSION = "1.32"
CHART = DEPLOY / "chart"
TEMPLATES = sorted((CHART / "templates").glob("*.yaml"))
PLAIN = sorted(DEPLOY.glob("*.yaml"))
MORE: dict[str, Any] = {
    "allowSchemes": ["https", "hf"],
    "allowHosts": ["data.example.com", "10.0.0.7:8080"],
    "tokenRequests": [
        {"audience": "aistore", "expirationSeconds": 3600},
        {"audience": "sts.amazonaws.com"},
    ],
    "tokenAudience": "aistore",
    "imagePullSecrets": [{"name": "registry"}],
    "caConfigMap": "ca",
    "extraEnv": [{"name": "AISFS_LATEST", "value": "yes"}],
    "extraVolumes": [{"name": "aws", "secret": {"secretName": "aws"}}],
    "extraVolumeMounts": [{"name": "aws", "mountPath": "/aws"}],
    "cacheVolume": {"emptyDir": {"sizeLimit": "25Gi"}},
    "controllerEnv": [{"name": "AIS_AUTHN_TOKEN", "value": "t"}],
    "nodeSelector": {"disk": "nvme"},
    "affinity": {"nodeAffinity": {}},
    "podMonitor": True,
}
"""Values that are not the defaults."""
_STATEMENT = re.compile(r" *\{\{- (if|with|range|end|toYaml)( [.\w]+)?(?: \| nindent (\d+))? \}\}")
_PLACE = re.compile(r"\{\{ ([.\w]+)( \| quote)? \}\}")
"""All that the templates use of helm's language."""


def default_values() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
    return found


def rendered(template: Path, values: dict[str, Any]) -> str:
    known = {"Values": values, "Release": {"Namespace": "aisfs"}}
    lines = _render(iter(template.read_text().splitlines()), known, None)
    assert "{{" not in "".join(lines), "helm's language beyond what this test renders"
    return "\n".join(lines)


def _render(lines: Iterator[str], known: dict[str, Any], dot: Any) -> list[str]:
    """Render up to the end of the block."""

    def value(path: str) -> Any:
        if path == ".":
            return dot
        found: Any = known
        for name in path.lstrip(".").split("."):
            found = found[name]
        return found

    def place(match: re.Match[str]) -> str:
        found = value(match[1])
        return json.dumps(str(found)) if match[2] else str(found)

    done: list[str] = []
    for line in lines:
        statement = _STATEMENT.fullmatch(line)
        if statement is None:
            done.append(_PLACE.sub(place, line))
            continue
        word, path, indent = statement[1], (statement[2] or "").strip(), statement[3]
        if word == "end":
            return done
        if word == "toYaml":
            text = yaml.safe_dump(value(path))
            done += [" " * int(indent) + row for row in text.splitlines()]
            continue
        inner = list(_block(lines))
        found = value(path)
        for item in found if word == "range" else [found] if found else []:
            done += _render(iter(inner), known, dot if word == "if" else item)
    return done


def _block(lines: Iterator[str]) -> Iterator[str]:
    """Yield the lines of a block that has begun, its end included."""
    depth = 1
    while depth:
        line = next(lines)
        statement = _STATEMENT.fullmatch(line)
        if statement is not None:
            depth += {"end": -1, "toYaml": 0}.get(statement[1], 1)
        yield line


def manifests(more: dict[str, Any] | None = None) -> Iterator[Any]:
    values = default_values() | (more or {})
    for file in PLAIN:
        yield from yaml.safe_load_all(file.read_text())
    for template in TEMPLATES:
        yield from filter(None, yaml.safe_load_all(rendered(template, values)))


def containers(more: dict[str, Any] | None = None) -> Iterator[dict[str, Any]]:
    for manifest in manifests(more):
        spec = manifest.get("spec", {})
        pod = spec.get("template", {}).get("spec", spec)
        yield from pod.get("initContainers", [])
        yield from pod.get("containers", [])


@for_each("more", [{}, MORE])
def test_manifests_are_valid(more: dict[str, Any]):
    found = [m for m in manifests(more) if m["kind"] != "PodMonitor"]
    assert len(found) == 18
    for manifest in found:
        kubernetes_validate.validate(manifest, VERSION, strict=True)
    kinds = [manifest["kind"] for manifest in manifests(more)]
    assert ("PodMonitor" in kinds) == bool(more)


def test_the_values_fit_their_schema_and_are_all_used():
    schema = json.loads((CHART / "values.schema.json").read_text())
    for values in (default_values(), default_values() | MORE):
        jsonschema.validate(values, schema)
    assert schema["properties"].keys() - {"global"} == default_values().keys()
    used = "".join(template.read_text() for template in TEMPLATES)
    assert all(f".Values.{name}" in used for name in default_values())
    for wrong in ({"cacheSize": "10 gigs"}, {"casheSize": "1Gi"}, {"allowSchemes": ["file"]}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(default_values() | wrong, schema)


def test_examples_create_the_secrets_that_they_name():
    for file in PLAIN:
        there = list(yaml.safe_load_all(file.read_text()))
        named = set(re.findall(r"PublishSecretRef:\s+name: (\S+)", file.read_text()))
        assert named == {m["metadata"]["name"] for m in there if m["kind"] == "Secret"}


def test_a_mistake_would_be_found():
    manifest = next(m for m in manifests() if m["kind"] == "DaemonSet")
    manifest["spec"]["template"]["spec"]["contaners"] = []
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(manifest, VERSION, strict=True)


def test_volumes_ask_for_what_is_allowed():
    volumes = [m["spec"]["csi"] for m in manifests() if m["kind"] == "PersistentVolume"]
    pods = [m["spec"] for m in manifests() if m["kind"] == "Pod"]
    volumes += [v["csi"] for pod in pods for v in pod["volumes"] if "csi" in v]
    options = [m["spec"].get("mountOptions", []) for m in manifests() if "csi" in m.get("spec", {})]
    assert len(volumes) == 2
    for volume in volumes:
        assert volume["driver"] == DRIVER
        parse_volume(volume["volumeAttributes"], read_only=True)
    parse_volume({"source": "ais://b"}, options[0], read_only=False)
    (driver,) = (m for m in manifests() if m["kind"] == "CSIDriver")
    assert driver["metadata"]["name"] == DRIVER


@for_each("more", [{}, MORE])
def test_commands_in_containers_exist(more: dict[str, Any]):
    ours = [c for c in containers(more) if c["image"].startswith("aisfs:")]
    called = 0
    for container in ours:
        words = (
            container.get("args") or container["command"][-1].partition("exec aisfs ")[2].split()
        )
        if "command" in container and "aisfs" not in container["command"][-1]:
            continue
        command: Any = cli
        for name in words[:2] if words[0] == "csi" else words[:1]:
            command = command.commands.get(name) or command.get_command(None, name)
        rest = words[2:] if words[0] == "csi" else words[1:]
        command.make_context(words[0], [str(word) for word in rest])
        called += 1
    assert called == 5


def test_a_storage_class_makes_volumes_and_can_be_left_out():
    (made,) = (m for m in manifests() if m["kind"] == "StorageClass")
    assert made["provisioner"] == DRIVER
    planned("pvc-1", 1 << 40, made["parameters"])
    kinds = [m["kind"] for m in manifests({"provisioner": False})]
    assert "ClusterRole" not in kinds
    assert "Deployment" not in kinds


def test_only_what_mounts_is_privileged():
    privileged = {c["name"] for c in containers() if c.get("securityContext", {}).get("privileged")}
    assert privileged == {"driver", "aisfs"}
    (mounter,) = (c for c in containers() if c["name"] == "mounter")
    assert mounter["securityContext"]["capabilities"]["drop"] == ["ALL"]


@pytest.mark.mount
def test_the_defaults_of_the_chart_mount_a_volume():
    """Driver and mounter with exactly the arguments and the environment of the chart, but for places."""
    made = {c["name"]: c for c in containers() if c["name"] in ("driver", "mounter")}
    with running_kubelet() as kubelet:
        place = kubelet.place

        def here(text: str) -> str:
            for there in ("/csi/mounter/mounter.sock", "/csi/csi.sock", "/cache/"):
                text = text.replace(there, f"{place}/{there.lstrip('/').replace('csi/', '')}")
            return text.replace("$(NODE_NAME)", "node-1").replace("0.0.0.0:9809", "127.0.0.1:0")

        variables = {v["name"]: here(v["value"]) for v in made["mounter"]["env"]}
        assert variables.pop("AIS_ENDPOINT") == default_values()["endpoint"]
        for name in ("driver", "mounter"):
            kubelet.end(name)
        (place / "mounter").mkdir()
        for name in ("mounter", "driver"):
            words = [here(str(word)) for word in made[name]["args"][2:]]
            kubelet.start(name, *words, alone=True, **variables)
        target = place / "pods" / "v"
        kubelet.publish(target)
        assert (target / "a.txt").read_bytes() == b"a"
        assert kubelet.call("NodeGetInfo").max_volumes_per_node == default_values()["maxVolumes"]
        kubelet.unpublish(target)


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("AISFS_CACHE_SIZE", "10 gigs", "AISFS_CACHE_SIZE: a size is a number"),
        ("AISFS_VIEW", "round", "AISFS_VIEW: "),
        ("AIS_CLIENT_CA", "/missing/ca.crt", "/missing/ca.crt: no such file"),
        ("AIS_AUTHN_TOKEN_FILE", "/missing/token", "/missing/token: No such file"),
        ("AISFS_METRICS_ADDR", "9100", "only one volume could listen there"),
        ("AISFS_TOKEN_EXCHANGE", "idp:8443/token", "expected the URL of a token endpoint"),
        ("AISFS_WRITE_BACK", "5", "--write-back needs --writable"),
    ],
)
def test_the_mounter_refuses_an_environment_that_no_volume_could_use(
    tmp_path: Path, variable: str, value: str, said: str
):
    socket = tmp_path / "mounter.sock"
    env = environment({"AIS_ENDPOINT": "http://127.0.0.1:9", variable: value}, home=tmp_path)
    done = aisfs("csi", "mounter", str(socket), env=env)
    assert done.returncode == 2
    assert said in done.stderr.decode()
    assert len(done.stderr.splitlines()) == 1
    assert not socket.exists()
