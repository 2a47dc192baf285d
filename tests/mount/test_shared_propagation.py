"""A sidecar mounts in its own mount namespace; the node and a pod that began earlier see the mount."""

import sys
from pathlib import Path

import pytest

from tests.mount.content import fill
from tests.support.mounts import is_mountpoint, succeed

pytestmark = pytest.mark.mount

NODE = """
set -e
volume=$1 source=$2
# What kubelet does for a volume: a mount of its own, which is shared with both containers below.
mount --make-rprivate /
mount -t tmpfs volume "$volume"
mount --make-rshared "$volume"
mkdir "$volume/mnt" "$volume/home"
mkfifo "$volume/began" "$volume/mounted" "$volume/seen" "$volume/unmounted"

# mountPropagation: HostToContainer. It has copied the mounts before there is one of aisfs.
unshare --mount --propagation slave sh -ec '
    echo >"$0/began"
    read -r _ <"$0/mounted"
    cat "$0/mnt/a.txt"
    echo >"$0/seen"
    read -r _ <"$0/unmounted"
    ! grep -q " $0/mnt " /proc/self/mountinfo
' "$volume" &
read -r _ <"$volume/began"

# mountPropagation: Bidirectional.
export HOME="$volume/home"
unshare --mount --propagation unchanged "$3" -m aisfs mount "$source" "$volume/mnt" --cache-size 0 \\
    --log-file "$volume/home/log"
cat "$volume/mnt/a.txt"
echo >"$volume/mounted"
read -r _ <"$volume/seen"
umount "$volume/mnt"
echo >"$volume/unmounted"
wait $!
echo " the mount is gone"
"""


def test_two_namespaces_see_the_mount_of_a_sidecar(tmp_path: Path):
    fill(tmp_path / "source", {"a.txt": b"content;"})
    volume = tmp_path.resolve() / "volume"
    volume.mkdir()
    words = ("unshare", "--mount", "sh", "-c", NODE, "sh", volume, tmp_path / "source")
    said = succeed(*words, sys.executable)
    assert said == b"content;content; the mount is gone\n"
    assert not is_mountpoint(volume)
