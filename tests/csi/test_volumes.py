"""What a volume may ask for."""

import json
import os
from pathlib import Path

import pytest

from aisfs.csi.identity import ATTRIBUTES
from aisfs.csi.permitted import Permitted
from aisfs.csi.volumes import ALLOWED, Secrets, check_endpoint, check_setup, parse_volume
from aisfs.errors import ConfigError
from aisfs.mount.setup import mount_setup
from aisfs.settings import ALL_SETTINGS
from tests.docs.documents import ROOT, section
from tests.support.for_each import for_each

TEXT = "-----BEGIN CERTIFICATE-----"


def test_everything_that_is_allowed_is_an_option_and_documented():
    known = {name for settings in ALL_SETTINGS for name in settings.options}
    assert known >= ALLOWED
    told = section(ROOT / "docs" / "KUBERNETES.md", "Attributes")
    assert all(f"`{name.replace('_', '-')}`" in told for name in {*ALLOWED, *ATTRIBUTES})


def test_names_have_dashes_or_underscores_and_lists_have_blanks():
    volume = parse_volume(
        {"source": "ais://a ais://b", "attr-ttl": "5", "include": "a/* b/*"}, read_only=False
    )
    assert volume.sources == ["ais://a", "ais://b"]
    assert volume.settings == {"attr_ttl": "5", "include": ("a/*", "b/*")}
    assert volume.read_only


def test_secrets_are_in_memory_only_and_can_be_replaced():
    secrets = {"client_ca": TEXT, "token": " t\n"}
    volume = parse_volume({"source": "ais://b"}, secrets=secrets, read_only=True)
    kept = Secrets(57)
    settings = kept.keep(volume.secrets)
    assert settings["token"] == ""  # that of the environment would count before a file
    assert all(
        settings[name].startswith("/proc/self/fd/") for name in ("client_ca", "authn_token_file")
    )

    def now() -> tuple[str, object]:
        token = json.loads(Path(settings["authn_token_file"]).read_text())
        return Path(settings["client_ca"]).read_text(), token

    assert now() == (TEXT, {"token": "t"})
    other = {"token": "longer than before", "client_ca": "short", "client_key": "k"}
    assert kept.renew([os.getpid()], other).startswith("client_key: new in the secret")
    assert now() == ("short", {"token": "longer than before"})
    assert kept.renew([os.getpid()], {"token": "t"}) == ""
    assert now()[1] == {"token": "t"}
    assert Secrets(5).renew([os.getpid()], {"token": "other"}) != ""
    assert now()[1] == {"token": "t"}


def test_another_cluster_needs_a_permission_and_a_token_of_its_own(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AIS_ENDPOINT", "http://own:8080")
    monkeypatch.setenv("AIS_AUTHN_TOKEN", "secret")

    def check(endpoint: str, token: str = "", hosts: tuple[str, ...] = ()) -> None:
        check_endpoint(
            parse_volume(
                {"source": "ais://b", "endpoint": endpoint},
                secrets={"token": token} if token else {},
                read_only=True,
                permitted=Permitted(hosts=hosts),
            )
        )

    check("http://own:8080")
    check("own:8080/")
    check("http://other:8080", "its own", ("other:8080",))
    with pytest.raises(ConfigError, match="the token of this node is for another cluster"):
        check("http://other:8080", hosts=("other:8080",))
    for endpoint in ("http://other:8080", "http://own", "http://u@own:8080", ""):
        with pytest.raises(ConfigError, match=r"endpoint|no user or password"):
            check(endpoint, "its own")


@for_each(
    "value, options, writable",
    [
        ("true", [], True), ("on", [], True), ("Yes", [], True), ("1", ["rw"], True),
        ("false", [], False), ("off", [], False), ("true", ["ro"], False), ("on", ["ro", "writable"], False),
    ],
)  # fmt: skip
def test_which_volumes_are_writable(value: str, options: list[str], writable: bool):
    attributes = {"source": "ais://b", "writable": value}
    volume = parse_volume(attributes, options, read_only=False)
    assert volume.read_only is not writable
    assert volume.settings == ({"writable": True} if writable else {})


@for_each("name", ["writable", "direct", "anonymous"])
def test_a_flag_is_a_flag(name: str):
    with pytest.raises(ConfigError, match=f'{name}: "true" or "false"'):
        parse_volume({"source": "ais://b", name: "maybe"}, read_only=False)


@for_each("host", ["", "https://h", "h/x", "u@h", "h:x", "*.h", "h "])
def test_hosts_that_are_none(host: str):
    with pytest.raises(ConfigError):
        Permitted(hosts=(host,))


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"source": "https://ok/a.tar https://{ok,127.0.0.1}/b.tar"}, "host 127.0.0.1 is not"),
        (
            {"source": "https://ok/a.tar", "view": "class", "label": "csv:https://no/t.csv"},
            "host no",
        ),
        ({"source": "http://ok:81/d/"}, "host ok:81 is not permitted"),
        ({"source": "https://ok@169.254.169.254/x.tar"}, "no user or password"),
        ({"source": "s3://b/x.tar"}, "s3\\+direct:// is not permitted"),
        ({"source": "s3://b/x.tar", "direct": "true"}, "s3\\+direct:// is not permitted"),
        ({"source": "oc://b/x.tar"}, "oci:// is not permitted"),
    ],
)
def test_what_names_turn_out_to_mean_counts(
    attributes: dict[str, str], reason: str, monkeypatch: pytest.MonkeyPatch
):
    """Here no endpoint is known, so that AIStore's clouds would be the clouds themselves."""
    monkeypatch.delenv("AIS_ENDPOINT", raising=False)
    permitted = Permitted(("http", "https"), ("ok",))
    volume = parse_volume(attributes, read_only=True, permitted=permitted)
    with pytest.raises(ConfigError, match=reason):
        check_setup(volume, mount_setup(volume.sources, Path("/dev/fd/3"), (), volume.settings))


def test_what_is_permitted_passes():
    volume = parse_volume(
        {"source": "https://ok/{a,b}.tar", "view": "class", "label": "csv:https://ok/t.csv"},
        read_only=True,
        permitted=Permitted(("https",), ("OK:443",)),
    )
    check_setup(volume, mount_setup(volume.sources, Path("/dev/fd/3"), (), volume.settings))
