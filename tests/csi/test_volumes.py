"""What a volume may ask for."""

import pytest

from aisfs.app.csi.mounter import check_token
from aisfs.app.csi.volumes import ALLOWED, parse_volume
from aisfs.config import ALL_SETTINGS
from aisfs.errors import ConfigError
from tests.docs.documents import ROOT, section

TEXT = "-----BEGIN CERTIFICATE-----"


def test_everything_that_is_allowed_is_an_option_and_documented():
    known = {name for settings in ALL_SETTINGS for name in settings.model_fields}
    assert known >= ALLOWED
    told = section(ROOT / "docs" / "KUBERNETES.md", "Attributes")
    assert all(f"`{name.replace('_', '-')}`" in told for name in ALLOWED)


def test_names_have_dashes_or_underscores_and_lists_have_blanks():
    volume = parse_volume(
        {"source": "ais://a ais://b", "attr-ttl": "5", "include": "a/* b/*"}, read_only=False
    )
    assert volume.sources == ["ais://a", "ais://b"]
    assert volume.settings == {"attr_ttl": "5", "include": ("a/*", "b/*")}
    assert volume.read_only


def test_certificates_are_in_memory_only():
    secrets = {"client_ca": TEXT, "token": " t\n"}
    volume = parse_volume({"source": "ais://b"}, secrets=secrets, read_only=True)
    settings = volume.settings_with_secrets()
    assert settings["token"] == "t"
    with open(settings["client_ca"]) as file:
        assert file.read() == TEXT


def test_the_token_of_the_node_goes_to_its_own_cluster_only(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AIS_ENDPOINT", "http://own:8080")
    monkeypatch.setenv("AIS_AUTHN_TOKEN", "secret")
    check_token({"endpoint": "http://own:8080"})
    check_token({"endpoint": "http://other:8080", "token": "its own"})
    with pytest.raises(ConfigError, match="the token of this node is for another cluster"):
        check_token({"endpoint": "http://other:8080"})
