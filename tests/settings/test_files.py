"""Configuration files: which value wins, and what a mistake is called."""

from pathlib import Path

import pytest

from aisfs.errors import ConfigError
from aisfs.settings import CacheSettings, ClusterSettings, TreeSettings, ViewSettings, use_file
from aisfs.settings.values import _used

PETS = """\
list-ttl = 10

[profiles.pets]
source = "ais://pets"
list_ttl = 20
"""


@pytest.fixture(autouse=True)
def _forget_the_file():
    token = _used.set(None)  # type: ignore[arg-type]
    yield
    _used.reset(token)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "AIS_ENDPOINT", "AISFS_ENDPOINT", "AISFS_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / ".config/aisfs").mkdir(parents=True)
    return tmp_path


def written(home: Path, text: str) -> Path:
    path = home / ".config/aisfs/config.toml"
    path.write_text(text)
    return path


def test_typed_wins_over_environment_over_file_over_default(
    home: Path, monkeypatch: pytest.MonkeyPatch
):
    assert TreeSettings.load({}).list_ttl == 60
    path = written(home, PETS)
    assert TreeSettings.load({}).list_ttl == 10
    assert TreeSettings.origin("list_ttl") != "default"
    assert str(TreeSettings.origin("list_ttl")) == f"{path}, line 1"
    monkeypatch.setenv("AISFS_LIST_TTL", "5")
    assert TreeSettings.load({}).list_ttl == 5
    assert TreeSettings.origin("list_ttl") == "AISFS_LIST_TTL"
    assert TreeSettings.load({"list_ttl": 1}).list_ttl == 1
    monkeypatch.setenv("AISFS_LIST_TTL", "")
    assert TreeSettings.load({}).list_ttl == 10, "an empty variable is as if unset"


def test_a_file_that_is_named_replaces_the_usual_ones(home: Path, monkeypatch: pytest.MonkeyPatch):
    written(home, PETS)
    other = home / "other.toml"
    other.write_text("attr-ttl = 7\n")
    monkeypatch.setenv("AISFS_CONFIG", str(other))
    assert (TreeSettings.load({}).attr_ttl, TreeSettings.load({}).list_ttl) == (7, 60)
    assert use_file(home / ".config/aisfs/config.toml").profile("pets").values["list_ttl"] == 20
    assert (TreeSettings.load({}).attr_ttl, TreeSettings.load({}).list_ttl) == (60, 10)
    with pytest.raises(ConfigError, match=r"--config /nowhere\.toml: no such file"):
        use_file(Path("/nowhere.toml"))


def test_only_what_was_typed_can_contradict_what_was_typed(home: Path):
    written(home, 'label = "txt"\n')
    settings = ViewSettings.load({"image": "png"})
    assert settings.label == "txt"
    assert settings.typed == {"image"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("list-tll = 1", "line 1: unknown option 'list-tll'; did you mean list-ttl?"),
        ("\n\nlist-ttl = -1", "line 3: list-ttl: "),
        ("list-ttl = 1\nlist_ttl = 2", "line 2: 'list_ttl' is given twice"),
        ("[profiles.a]\nview='class'\n[profiles.b]\nveiw='class'", "line 4: unknown option 'veiw'"),
        ("mountpoint = '/mnt'", "line 1: unknown option 'mountpoint'; it belongs into a profile"),
        ("x = 1\n[mounts.pets]", "unknown"),
        ("list-ttl = \n", "line 1"),
        ("profiles = 1", "profiles are tables"),
        ("cache-size = '1,5GiB'", "line 1: cache-size: a size is a number"),
    ],
)
def test_a_mistake_is_told_with_its_line(home: Path, text: str, said: str):
    path = written(home, text)
    wrong = CacheSettings if "cache" in text else TreeSettings
    with pytest.raises(ConfigError) as caught:
        wrong.load({})
    assert str(path) in str(caught.value)
    assert said in str(caught.value)


def test_a_missing_profile_names_those_there_are(home: Path):
    with pytest.raises(ConfigError, match=r"@x: there is no .*config\.toml"):
        use_file(None).profile("x")
    written(home, PETS)
    with pytest.raises(ConfigError, match=r"@x: no such profile in .*; there are: @pets"):
        use_file(None).profile("x")


def test_the_endpoint_and_the_certificates_of_the_ais_cli(
    home: Path, monkeypatch: pytest.MonkeyPatch
):
    assert ClusterSettings.load({}).endpoint == ""
    path = home / ".config/ais/cli/cli.json"
    path.parent.mkdir(parents=True)
    path.write_text(
        '{"cluster": {"url": "https://ais:51080", "default_ais_host": "x", "client_ca_tls": "/ca.pem",'
        ' "client_crt": "", "skip_verify_crt": true}, "timeout": {"tcp_timeout": "60s"}}'
    )
    settings = ClusterSettings.load({})
    assert settings.endpoint == "https://ais:51080"
    assert (settings.client_ca, settings.skip_verify_crt) == (Path("/ca.pem"), True)
    monkeypatch.setenv("AIS_CLIENT_CA", "/other.pem")
    assert ClusterSettings.load({}).client_ca == Path("/other.pem")
    elsewhere = ClusterSettings.load({"endpoint": "https://elsewhere:1"})
    assert not elsewhere.skip_verify_crt, "that is for the CLI's own cluster"
    path.write_text("no JSON")
    assert ClusterSettings.load({}).endpoint == ""
