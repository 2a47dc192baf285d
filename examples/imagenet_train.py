"""Train an image classifier on shards or on class folders; both are paths on a mount.

    python examples/imagenet_train.py --shards '/mnt/in/imagenet-train-{000000..000146}.tar'
    python examples/imagenet_train.py --imagenet /mnt/in/train --window 8
    torchrun --nproc-per-node 8 examples/imagenet_train.py --imagenet /mnt/in/train --window 8

Shards hold samples of a `jpg`, `jpeg` or `image.jpg` and a `cls`, as webdataset writes them.
"""

import argparse
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from itertools import islice

import torch
import webdataset
from torch import distributed, nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision import models
from torchvision.datasets import ImageFolder
from torchvision.transforms import Compose, Resize, ToTensor

from aisfs.torch import ShardWindowSampler

IMAGE = "jpg;jpeg;image.jpg"


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    data = parser.add_mutually_exclusive_group(required=True)
    data.add_argument("--shards", help="paths of shards, with a brace range")
    data.add_argument("--imagenet", help="a directory of class folders")
    parser.add_argument("--window", type=int, help="shuffle within so many shards (--imagenet)")
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--arch", default="resnet18", help="a model of torchvision")
    parser.add_argument("--size", type=int, default=224, help="side of the pictures, in pixels")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--steps", type=int, help="batches of an epoch; default: all")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    return parser.parse_args()


def shard_batches(options: argparse.Namespace, transform: Compose) -> Iterable[list[torch.Tensor]]:
    """Stream shards: each process reads shards of its own."""
    samples = webdataset.WebDataset(
        options.shards, shardshuffle=100, detshuffle=True, seed=0,
        nodesplitter=webdataset.split_by_node,
    )  # fmt: skip
    samples = samples.shuffle(1000).decode("pil").to_tuple(IMAGE, "cls").map_tuple(transform)
    batches = samples.batched(options.batch_size)
    return webdataset.WebLoader(batches, batch_size=None, num_workers=options.workers)


class FolderBatches:
    """Read class folders: each process reads samples of its own, reshuffled in each epoch."""

    def __init__(self, options: argparse.Namespace, transform: Compose) -> None:
        folder = ImageFolder(options.imagenet, transform)
        world, rank = world_and_rank()
        self._sampler = (
            ShardWindowSampler(folder, window=options.window)
            if options.window
            else DistributedSampler(folder, num_replicas=world, rank=rank)
        )
        self._loader = DataLoader(
            folder, options.batch_size, sampler=self._sampler, num_workers=options.workers
        )
        self._epoch = -1

    def __iter__(self) -> Iterator[list[torch.Tensor]]:
        self._epoch += 1
        self._sampler.set_epoch(self._epoch)
        return iter(self._loader)


def world_and_rank() -> tuple[int, int]:
    """Return the number of training processes and the index of this one."""
    if not distributed.is_initialized():
        return 1, 0
    return distributed.get_world_size(), distributed.get_rank()


def train_epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[list[torch.Tensor]],
    device: torch.device,
) -> tuple[int, float]:
    """Return the number of samples this process saw, and the mean loss of a batch."""
    losses, seen = [], 0
    for images, labels in batches:
        labels = torch.as_tensor(labels, device=device)
        loss = nn.functional.cross_entropy(model(images.to(device)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        seen += len(labels)
    return seen, sum(losses) / max(1, len(losses))


def main() -> None:
    """Train."""
    options = parse()
    torch.manual_seed(0)
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    if "RANK" in os.environ:  # torchrun sets it
        distributed.init_process_group("gloo" if device.type == "cpu" else "nccl")
    world, rank = world_and_rank()
    transform = Compose([Resize((options.size, options.size)), ToTensor()])
    batches = (
        shard_batches(options, transform) if options.shards else FolderBatches(options, transform)
    )
    model: nn.Module = models.get_model(options.arch, num_classes=options.classes).to(device)
    if world > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for epoch in range(1, options.epochs + 1):
        # Shards differ in length: a process that is through waits for the others.
        with Join([model]) if world > 1 else nullcontext():
            seen, loss = train_epoch(model, optimizer, islice(batches, options.steps), device)
        # In one piece, so that lines of several processes do not mix.
        sys.stdout.write(
            f"epoch {epoch}, process {rank} of {world}: {seen} samples, loss {loss:.2f}\n"
        )
    if world > 1:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
