"""Endpoints of clouds in the environment: empty is as unset, and what is no URL is one line."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from aisfs.commands.options import Exit
from tests.support.clouds import S3, moto, s3_environment
from tests.support.mounts import aisfs, mounted

pytestmark = pytest.mark.mount

KEYS = {**s3_environment(""), "AWS_EC2_METADATA_DISABLED": "true"}
VARIABLES = {
    "AWS_ENDPOINT_URL_S3": "s3+direct://pets",
    "AWS_ENDPOINT_URL": "s3+direct://pets",
    "AWS_ENDPOINT": "s3+direct://pets",
    "AWS_METADATA_ENDPOINT": "s3+direct://pets",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI": "s3+direct://pets",
    "STORAGE_EMULATOR_HOST": "gs+direct://pets",
    "GOOGLE_BASE_URL": "gs+direct://pets",
    "AZURE_STORAGE_ENDPOINT": "az+direct://account/pets/",
    "AZURE_ENDPOINT": "az+direct://account/pets/",
    "AZURE_AUTHORITY_HOST": "az+direct://account/pets/",
    "HF_ENDPOINT": "hf://datasets/own/pets/",
}
OF_EACH_CLOUD = {"AWS_ENDPOINT_URL", "STORAGE_EMULATOR_HOST", "AZURE_ENDPOINT", "HF_ENDPOINT"}
MALFORMED = ["/s3", "http://[::1", "http://host:99999", "http://", "ftp://host", "http://a b"]


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with moto() as cloud:
        yield cloud


@pytest.mark.parametrize("variable", VARIABLES)
def test_what_is_no_url_is_one_line(variable: str, mountpoint: Path):
    for value in MALFORMED if variable in OF_EACH_CLOUD else MALFORMED[:1]:
        words = ["mount", "--anonymous", "--io-timeout", "3", VARIABLES[variable], mountpoint]
        done = aisfs(*words, env={**KEYS, variable: value})
        said = done.stderr.decode()
        assert (done.returncode, said.count("\n")) == (Exit.USAGE, 1), (value, said)
        assert variable in said, said
        assert "is no URL such as http://host:9000" in said, said


def test_the_endpoint_of_a_profile_is_named(mountpoint: Path, tmp_path: Path):
    file = tmp_path / "config"
    file.write_text(
        "[profile x]\nendpoint_url = /s3\nregion = us-east-1\naws_access_key_id = k\naws_secret_access_key = s\n"
    )
    env = {"AWS_CONFIG_FILE": str(file), "AWS_PROFILE": "x"}
    done = aisfs("mount", "s3+direct://pets", mountpoint, env=env)
    assert done.returncode == Exit.USAGE, done.stderr
    assert b"endpoint_url of the profile of AWS: /s3 is no URL" in done.stderr


@pytest.mark.parametrize("empty", ["", " "])
def test_an_empty_variable_is_as_unset(empty: str, s3: S3, mountpoint: Path):
    bucket = s3.make_bucket()
    s3.put(bucket, "a.txt", b"a")
    nothing = {name: empty for name in VARIABLES if name.startswith("AWS_")}
    env = {**nothing, "AWS_SESSION_TOKEN": empty, **s3.environment, "AIS_ENDPOINT": empty}
    with mounted(f"s3://{bucket}", mountpoint, env=env) as mount:
        assert (mount.path / "a.txt").read_bytes() == b"a"


@pytest.mark.parametrize("variable", VARIABLES)
def test_the_usual_place_is_asked_where_a_variable_is_empty(variable: str):
    """There is no way to it here; that it is tried is what shows."""
    words = ["ls", "--anonymous", "--io-timeout", "3", VARIABLES[variable]]
    # Nothing listens there: no test asks the world.
    nowhere = {"HTTPS_PROXY": "http://127.0.0.1:9"}
    done = aisfs(*words, env={**KEYS, "AWS_ENDPOINT_URL": "", **nowhere, variable: ""})
    assert (done.returncode, done.stderr.count(b"\n")) == (Exit.UNREACHABLE, 1), done.stderr
    assert b"refused" in done.stderr
