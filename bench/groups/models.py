"""Loading a model from a cold mount over a shaped link, beside curl: by mmap, as its loaders do.

safetensors (and with it transformers and vLLM), GGUF and `torch.load(mmap=True)` map the file and copy
tensor by tensor. So the kernel asks for what a page fault needs and a little around it, and nothing
tells it what comes next. In order is the order of the file; at random, whole tensors are in any other.
"""

import json
import mmap
import multiprocessing
import random
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from bench.data import EmbeddedStore
from bench.engine import Contender, Reading, Row, measure
from bench.groups.link import GIGABIT, case_of, linked
from bench.groups.measures import curl_epoch, mount_epoch, reading
from bench.processes import NotMeasured
from bench.stage import Stage

UNIT = "MB/s"
CURL = "curl"
IN_ORDER, AT_RANDOM = "in order", "at random"
BY_MMAP = "file of the mount by mmap, {}, processes: {}"
PROCESSES = (1, 4)
BUCKET, KEY = "models", "model.safetensors"
_LARGEST = 8 << 20
"""Bytes of a matrix of attention: less than in most models, which makes random order harder."""
_SMALLEST = 8 << 10
"""Bytes of a norm: several of them fit what the kernel reads for one."""
_LAYER = (_SMALLEST, 1, 1, 1, 1, _SMALLEST, 2.7, 2.7, 2.7)
"""The tensors of a layer: bytes, or how many times a matrix of attention."""


@dataclass(frozen=True)
class Model:
    """A file of tensors, one after the other."""

    size: int
    tensors: tuple[tuple[int, int], ...]
    """Where each begins and ends."""

    def order(self, seed: int | None) -> list[tuple[int, int]]:
        """Return the tensors as they lie, or shuffled."""
        chosen = list(self.tensors)
        if seed is not None:
            random.Random(seed).shuffle(chosen)
        return chosen


def run(stage: Stage, progress: Callable[[str], None]) -> list[Row]:
    """Measure, on the embedded server whatever the endpoint."""
    settings = stage.settings
    gigabits, delay = settings.model_link
    rate, case = gigabits * GIGABIT, case_of(gigabits, delay)
    with stage.folder("model-store") as root:
        store = EmbeddedStore(root)
        progress(f"models: writing {settings.model_bytes / 1e6:,.0f} MB")
        model = write_model(store, settings.model_bytes)
        try:
            with linked(stage, store, root, rate, delay) as (place, note):
                rows = measure("models", _contenders(place, model, case), settings, progress)
        except NotMeasured as reason:
            progress(f"models · {case}: not measured: {reason}")
            contenders = _contenders(stage, model, case)
            rows = [
                Row("models", case, who.name, "cold", UNIT, who.baseline, reason=str(reason))
                for who in contenders
            ]
            note = ""
    return [replace(row, note=note) for row in rows]


def write_model(store: EmbeddedStore, size: int) -> Model:
    """Store a file of safetensors of about so many bytes."""
    matrix = min(_LARGEST, size // 64)
    sizes: list[int] = []
    while sum(sizes) < size:
        sizes += [part if part == _SMALLEST else int(part * matrix) for part in _LAYER]
    ends = [sum(sizes[: at + 1]) for at in range(len(sizes))]
    spans = list(zip([0, *ends], ends, strict=False))
    header = json.dumps({
        f"tensor.{at}": {"dtype": "U8", "shape": [stop - start], "data_offsets": [start, stop]}
        for at, (start, stop) in enumerate(spans)
    }).encode()  # fmt: skip
    header += b" " * (-len(header) % 8)
    first = 8 + len(header)
    piece = random.Random(size).randbytes(matrix)
    data = (piece * (ends[-1] // matrix + 1))[: ends[-1]]
    store.put(BUCKET, KEY, len(header).to_bytes(8, "little") + header + data)
    return Model(first + len(data), tuple((first + start, first + stop) for start, stop in spans))


def load(path: Path, model: Model, seed: int | None) -> int:
    """Copy all tensors to where a loader would have them; return how many bytes they have."""
    room = memoryview(bytearray(max(stop - start for start, stop in model.tensors)))
    done = 0
    with (
        path.open("rb", buffering=0) as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping,
        memoryview(mapping) as view,
    ):
        json.loads(mapping[8 : model.tensors[0][0]])  # they begin with where each tensor lies
        for start, stop in model.order(seed):
            room[: stop - start] = view[start:stop]
            done += stop - start
    return done


def _contenders(stage: Stage, model: Model, case: str) -> list[Contender]:
    def with_curl() -> dict[str, Reading]:
        counted = stage.measure(lambda: curl_epoch(stage.endpoint, BUCKET, [KEY], model.size))
        return {"cold": _reading(model, counted)}

    def on_mount(shuffled: bool, processes: int) -> dict[str, Reading]:
        with (
            stage.folder("cache") as cache,
            stage.mounted(BUCKET, cache=cache) as mount,
        ):
            stage.cool()
            path = mount.path / KEY
            load_all = partial(_load_all, path, model, shuffled, processes)
            counted = stage.measure(lambda: mount_epoch(load_all, stage.endpoint, mount), mount)
        return {"cold": _reading(model, counted)}

    return [
        Contender(case, CURL, UNIT, with_curl, ("cold",), baseline=True),
        *(
            Contender(
                case,
                BY_MMAP.format(order, processes),
                UNIT,
                partial(on_mount, order == AT_RANDOM, processes),
                ("cold",),
            )
            for processes in PROCESSES
            for order in (IN_ORDER, AT_RANDOM)
        ),
    ]


def _load_all(path: Path, model: Model, shuffled: bool, processes: int) -> None:
    """Load the model in each of some processes, at random in another order in each."""
    seeds = [number if shuffled else None for number in range(processes)]
    work = partial(load, path, model)
    if processes == 1:
        sizes = [work(seeds[0])]
    else:
        with ProcessPoolExecutor(processes, multiprocessing.get_context("fork")) as pool:
            sizes = list(pool.map(work, seeds))
    if sizes != processes * [model.tensors[-1][1] - model.tensors[0][0]]:
        raise NotMeasured(f"loaded {sizes} bytes")


def _reading(model: Model, counted: dict[str, float]) -> Reading:
    return reading(model.size / 1e6, {**counted, "stored": float(model.size)})
