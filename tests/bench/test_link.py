"""A server at the other end of a shaped link, and that nothing of the link stays."""

import json
import os
import subprocess

import pytest

from bench.interruptions import Interrupts
from bench.link import shaped
from bench.processes import NotMeasured
from bench.server import running_server


def told(*words):
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def rates(*where):
    """Bytes a second that the ends of the link let through."""
    shaped_by = json.loads(told("tc", *where, "-json", "qdisc", "show"))
    return [each["options"]["rate"] for each in shaped_by if each["kind"] == "tbf"]


@pytest.fixture
def possible():
    """Skip where the kernel, the rights or the programs are missing."""
    try:
        with shaped(1e9, 0.0, Interrupts()):
            pass
    except NotMeasured as reason:
        pytest.skip(str(reason))


@pytest.mark.usefixtures("possible")
def test_a_server_at_the_other_end(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "localhost")
    root = tmp_path / "root"
    (root / "b").mkdir(parents=True)
    with shaped(2e9, 0.01, Interrupts()) as link:
        assert link.namespace in told("ip", "netns", "list")
        assert 250_000_000 in rates()
        assert rates("-netns", link.namespace) == [250_000_000]
        assert os.environ["NO_PROXY"] == f"localhost,{link.host}"
        with running_server(
            root, interruptions=Interrupts(), log=tmp_path / "log", link=link
        ) as server:
            assert link.host in server.url
            assert server.counters() == {}
            listening = told("ip", "netns", "pids", link.namespace).split()
            assert str(server.leader) in listening
    assert link.namespace not in told("ip", "netns", "list")
    assert link.host.rpartition(".")[0] not in told("ip", "address")
    assert os.environ["NO_PROXY"] == "localhost"


@pytest.mark.usefixtures("possible")
def test_links_of_killed_runs_are_removed():
    process = subprocess.Popen(["true"])
    process.wait()
    stale = f"aisfs-bench-{process.pid}-0"
    told("ip", "netns", "add", stale)
    with shaped(1e9, 0.0, Interrupts()):
        assert stale not in told("ip", "netns", "list")


def test_without_rights_there_is_a_reason(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NotMeasured, match="need root"), shaped(1e9, 0.0, Interrupts()):
        pass


def test_without_programs_there_is_a_reason(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(NotMeasured, match="iproute2"), shaped(1e9, 0.0, Interrupts()):
        pass
