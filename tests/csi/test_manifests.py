"""The manifests say what Kubernetes and this project understand."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from aisfs.app.csi.rpc.services import DRIVER
from aisfs.app.csi.volumes import parse_volume
from aisfs.cli.main import cli
from tests.docs.documents import ROOT

DEPLOY = ROOT / "deploy"
VERSION = "1.32"
CHART = DEPLOY / "chart"
TEMPLATES = sorted((CHART / "templates").glob("*.yaml"))
PLAIN = sorted(DEPLOY.glob("*.yaml"))
_PLACE = re.compile(r"\{\{ \.(Values|Release)\.(\w+)( \| quote)? \}\}")
_EACH = re.compile(r" *\{\{- range \.Values\.(\w+) \}\}\n(.*?\n) *\{\{- end \}\}\n", re.DOTALL)
"""All that the templates use of helm's language."""
LISTS = {"allowSchemes": ["https", "hf"], "allowHosts": ["data.example.com", "10.0.0.7:8080"]}
"""What the values have no elements of by default."""


def rendered(template: Path) -> str:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert all(values[name] == [] for name in LISTS)
    values |= LISTS
    known = {"Values": values, "Release": {"Namespace": "aisfs"}}

    def value(match: re.Match[str]) -> str:
        found = str(known[match[1]][match[2]])
        return f'"{found}"' if match[3] else found

    def each(match: re.Match[str]) -> str:
        return "".join(match[2].replace("{{ . }}", item) for item in values[match[1]])

    text = _PLACE.sub(value, _EACH.sub(each, template.read_text()))
    assert "{{" not in text, "helm's language beyond what this test renders"
    return text


def manifests() -> Iterator[Any]:
    for file in PLAIN:
        yield from yaml.safe_load_all(file.read_text())
    for template in TEMPLATES:
        yield from yaml.safe_load_all(rendered(template))


def containers() -> Iterator[dict[str, Any]]:
    for manifest in manifests():
        spec = manifest.get("spec", {})
        pod = spec.get("template", {}).get("spec", spec)
        yield from pod.get("initContainers", [])
        yield from pod.get("containers", [])


def test_manifests_are_valid():
    found = list(manifests())
    assert len(found) == 10
    for manifest in found:
        kubernetes_validate.validate(manifest, VERSION, strict=True)


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


def test_commands_in_containers_exist():
    ours = [c for c in containers() if c["image"].startswith("aisfs:")]
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
    assert called == 4


def test_only_what_mounts_is_privileged():
    privileged = {c["name"] for c in containers() if c.get("securityContext", {}).get("privileged")}
    assert privileged == {"driver", "aisfs"}
    (mounter,) = (c for c in containers() if c["name"] == "mounter")
    assert mounter["securityContext"]["capabilities"]["drop"] == ["ALL"]
