"""What the demo does: make shards, serve, mount, look around, train, write, unmount."""

import argparse
import shlex
import time
from pathlib import Path

from bench.interruptions import Interrupts
from demo.failures import DemoError, step
from demo.pictures import KINDS, MOST, class_name, draw_pictures, find_pictures, read_pictures
from demo.shards import Shards, put_shards, write_shards
from demo.shell import say
from demo.stage import BUCKET, Stage, stage

IMAGE = "sample_0000.image.jpg"
NEXT = """\
Next, your own cluster (or any folder of shards: aisfs mount ./shards MNT):
  export AIS_ENDPOINT=http://PROXY:51080
  .venv/bin/aisfs mount MNT                  every bucket, as MNT/PROVIDER/BUCKET
  .venv/bin/aisfs mount ais://BUCKET MNT     one bucket
  .venv/bin/aisfs umount MNT"""


def play_source(source: str, interruptions: Interrupts) -> None:
    """Mount what somebody else serves, look around in it, and unmount."""
    start = time.monotonic()
    with stage(interruptions) as place, step("looking around"):
        run = place.shell.run
        place.mount(shlex.quote(source), None)
        try:
            names = run("ls mnt | head -n 10").splitlines()
            if not names:
                raise DemoError(f"there is nothing in {source}")
            first = shlex.quote(f"mnt/{names[0]}")
            run(f"ls -l {first} | head -n 7")
            run(f"find {first} -type f | head -n 3 | xargs -d '\\n' -r md5sum")
            run("aisfs status mnt | head -n 16")
            place.unmount()
        except DemoError as error:
            said = place.what_the_mount_said()
            raise DemoError(f"{error}; the mount's log: {said}" if said else str(error)) from error
    say(f"\nShown in {time.monotonic() - start:.0f} s. Everything is cleaned up.")


def play(options: argparse.Namespace, interruptions: Interrupts) -> None:
    """Run the whole demo and print it."""
    if options.source is not None:
        play_source(options.source, interruptions)
        return
    start = time.monotonic()
    with stage(interruptions) as place:
        with step("making the shards"):
            shards = _make_shards(options, place.directory)
        with step("starting the server"):
            endpoint = place.start_server()
        with step("putting the shards into the bucket"):
            put_shards(endpoint, BUCKET, shards.all)
        say(f"# {len(shards.all)} shards put into ais://{BUCKET} (HTTP PUT)")
        try:
            _look_around(place, shards, endpoint)
            _show_classes(place, shards, endpoint)
            _write(place, endpoint)
            if not options.keep:
                place.unmount()
        except DemoError as error:
            said = place.what_the_mount_said()
            raise DemoError(f"{error}; the mount's log: {said}" if said else str(error)) from error
        if options.keep:
            place.keep()
        else:
            place.stop_server()
    say(
        f"\nShown in {time.monotonic() - start:.0f} s: {len(shards.all)} shards in a bucket, read as"
        " files (md5 equal), as folders, as classes\n"
        f"and by webdataset ({shards.pictures} samples), a model trained from a shard by ImageFolder,"
        " and a file written."
    )
    if not options.keep:
        say("Everything is cleaned up.")
    say(NEXT)


def _make_shards(options: argparse.Namespace, directory: Path) -> Shards:
    made = directory / "made"
    made.mkdir()
    if options.data is None:
        shards = write_shards(draw_pictures(options.pictures), made, classes=list(KINDS))
        say(f"# {shards.pictures} JPEGs drawn ({' '.join(shards.classes)}), written by webdataset:")
    else:
        found = find_pictures(options.data)
        paths = found[:MOST]
        classes = sorted({class_name(path) for path in paths})
        shards = write_shards(read_pictures(paths), made, classes=classes)
        skipped = len(paths) - shards.pictures
        note = f", {skipped} unreadable left out" if skipped else ""
        of = f" of {len(found):,}" if len(found) > MOST else ""
        say(f"# {shards.pictures}{of} pictures of {options.data}{note}, written by webdataset:")
        if of:
            say(f"# (a demo looks at {MOST}; `aisfs pack` packs all)")
        for folder in sorted({path.resolve().parent.name for path in paths} - {*classes}):
            say(f"# folder {folder}: class {class_name(Path(folder, 'x'))}")
        if len(classes) == 1:
            say("# (one folder is one class: training has nothing to tell apart)")
        say("# (trimap.png is a mask made up for the demo, a second part of each sample)")
    say(f"# {shards.pattern} with image.jpg, cls and trimap.png, train.tar with class folders")
    return shards


def _look_around(place: Stage, shards: Shards, endpoint: str) -> None:
    """Use the mount as a person would."""
    run = place.shell.run
    first = shards.samples[0].name
    with step("looking around"):
        place.mount(f"ais://{BUCKET}", endpoint)
        run("ls -l mnt")
        run(f"ls -l mnt/{first}.d | head -n 7")
        run(f"cp mnt/{first}.d/{IMAGE} .")
        run(
            f"""python -c 'from PIL import Image; i = Image.open("{IMAGE}"); print(i.format, i.size)'"""
        )
        _compare(run(f"md5sum mnt/{first} made/{first}"))
        run(f"python -m demo.count_samples 'mnt/{shards.pattern}'")
        run("ls mnt/train.tar.d")
        run("python -m demo.train mnt/train.tar.d")
        place.unmount()


def _show_classes(place: Stage, shards: Shards, endpoint: str) -> None:
    """Mount the samples as a folder for each label."""
    run = place.shell.run
    with step("showing the classes"):
        source = f"'ais://{BUCKET}/{shards.pattern}'"
        place.mount(source, endpoint, " --view class --classes made/classes.txt")
        run("ls mnt")
        run(f"ls mnt/{shards.classes[0]} | head -n 3")
        run("aisfs warm mnt 2>&1")
        run("aisfs status mnt | head -n 16")
        place.unmount()


def _write(place: Stage, endpoint: str) -> None:
    """Put a file into the bucket through a mount, and leave that mounted."""
    run = place.shell.run
    with step("writing"):
        place.mount(f"ais://{BUCKET}", endpoint, " --writable")
        run(f"cp {IMAGE} mnt/new.jpg")
        run(f"aisfs ls ais://{BUCKET} --endpoint {endpoint}")
        run(f"cmp {IMAGE} store/{BUCKET}/new.jpg && echo equal")


def _compare(sums: str) -> None:
    """Check that all lines of md5sum name the same sum."""
    different = {line.split()[0] for line in sums.splitlines()}
    if len(different) != 1:
        raise DemoError("the shard read through the mount differs from the one that was put")
    say("# equal")
