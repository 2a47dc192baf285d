"""The metadata and the data of packages are complete."""

import re
import subprocess
import sys
import tomllib

from tests.docs.documents import ROOT
from tests.support.for_each import for_each

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGING = ROOT / "packaging"


def test_a_wheel_has_the_unit():
    data = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-data"]
    assert data["systemd/aisfs@.service"] == "lib/systemd/system/aisfs@.service"
    assert data["systemd/sample.env"].startswith("share/aisfs/")
    for path in data:
        assert (ROOT / path).exists()


def test_the_long_description_has_no_link_into_the_repository():
    (hook,) = PROJECT["tool"]["hatch"]["metadata"]["hooks"].values()
    (rule,) = hook["substitutions"]
    text = (ROOT / "README.md").read_text()
    shown = re.sub(rule["pattern"], rule["replacement"].replace("\\1", r"\g<1>"), text)
    targets = re.findall(r"\]\(([^)]*)\)", shown)
    assert targets
    assert all(target.startswith("https://") for target in targets)
    assert "PERFORMANCE has every figure" in shown


def test_nothing_is_installed_from_an_index_that_does_not_have_it():
    found = subprocess.run(
        ["git", "grep", "-nE", r"pip(x)? install '?aisfs", "--", ":!tests"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout == ""


def test_the_dockerfile_copies_what_it_may_and_has_known_instructions():
    subprocess.run([sys.executable, PACKAGING / "image.py", "--check"], check=True)
    dockerfile = (ROOT / "Dockerfile").read_text()
    copied = {
        path
        for paths in re.findall(r"^COPY (?!--from)(.*) \S+$", dockerfile, re.MULTILINE)
        for path in paths.split()
    }
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert copied == {line[1:] for line in ignored if line.startswith("!")}
    data = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-data"]
    assert {path.split("/")[0] for path in data} <= copied


def test_manifests_name_the_image_of_this_version():
    image = f"aisfs:{PROJECT['project']['version']}"
    texts = [path.read_text() for path in (ROOT / "deploy").rglob("*.yaml")]
    named = [name for text in texts for name in re.findall(r"image: \"?(aisfs:\S+)", text)]
    assert len(named) >= 3
    assert {*named} == {image}
    assert f"docker build -t {image} ." in (ROOT / "Dockerfile").read_text()


@for_each(
    "script",
    [path for path in sorted(PACKAGING.rglob("*")) if path.is_file()],
)
def test_scripts_are_read_without_a_complaint(script):
    if script.parent.name == "checks" or script.read_bytes().startswith(b"#!/usr/bin/env bash"):
        subprocess.run(["bash", "-n", script], check=True)
    elif script.read_bytes().startswith(b"#!/bin/sh"):
        subprocess.run(["sh", "-n", script], check=True)
