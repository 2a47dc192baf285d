import json

import pytest

from aisfs.errors import ConfigError
from aisfs.settings import ClusterSettings
from aisfs.stores.ais.auth import Credentials


@pytest.fixture(autouse=True)
def no_token_around(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("AIS_AUTHN_TOKEN", "AIS_AUTHN_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)


def write(path, token):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"token": token}))
    return path


def test_no_token_anywhere():
    credentials = Credentials.load(ClusterSettings())
    assert credentials.authorization() is None
    assert credentials.renew(None) is None


def test_chain(tmp_path, monkeypatch):
    write(ClusterSettings().cli_token_file, "from-cli")
    assert Credentials.load(ClusterSettings()).authorization() == "Bearer from-cli"
    monkeypatch.setenv("AIS_AUTHN_TOKEN_FILE", str(write(tmp_path / "t", "from-file")))
    assert Credentials.load(ClusterSettings.load({})).authorization() == "Bearer from-file"
    monkeypatch.setenv("AIS_AUTHN_TOKEN", "literal")
    assert Credentials.load(ClusterSettings.load({})).authorization() == "Bearer literal"


@pytest.mark.parametrize(
    "content", [None, "", "{}", "[]", '{"token": 5}', '{"token": ""}', "s3cret"]
)
def test_unusable_named_file(tmp_path, content):
    path = tmp_path / "t"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=str(path)) as caught:
        Credentials.load(ClusterSettings(authn_token_file=path))
    assert "s3cret" not in str(caught.value)


def test_token_that_would_break_the_header():
    with pytest.raises(ConfigError) as caught:
        Credentials.load(ClusterSettings(token="s3cret\r\nX: y"))
    assert "s3cret" not in str(caught.value)


def test_renew(tmp_path):
    path = write(tmp_path / "t", "old")
    credentials = Credentials.load(ClusterSettings(authn_token_file=path))
    assert credentials.renew("Bearer old") is None
    write(path, "new")
    assert credentials.renew("Bearer old") == "Bearer new"
    # A second request that was refused with the old token needs no look at the file.
    path.unlink()
    assert credentials.renew("Bearer old") == "Bearer new"
    assert credentials.renew("Bearer new") is None


def test_login_after_the_start():
    credentials = Credentials.load(ClusterSettings())
    write(ClusterSettings().cli_token_file, "later")
    assert credentials.renew(None) == "Bearer later"


def test_literal_token_is_never_renewed():
    credentials = Credentials.load(ClusterSettings(token="t"))
    write(ClusterSettings().cli_token_file, "other")
    assert credentials.renew("Bearer t") is None


def test_token_in_no_repr(tmp_path):
    given = Credentials.load(ClusterSettings(token="s3cret"))
    read = Credentials.load(ClusterSettings(authn_token_file=write(tmp_path / "t", "s3cret")))
    assert "s3cret" not in repr(given) + repr(read)
