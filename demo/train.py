"""Train a tiny model on a folder of pictures with torchvision. It knows a path, and no aisfs.

python -m demo.train mnt/train.tar.d
"""

import sys
import warnings

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import Compose, Resize, ToTensor

SIDE = 64
BATCH = 16
WORKER_SECONDS = 40


def tiny_model(classes: int) -> nn.Module:
    """Build a network that learns something within a few batches."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=2, padding=2),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(16 * 4 * 4, max(classes, 2)),  # with one output there is nothing to learn
    )


def train_epoch(model: nn.Module, folder: ImageFolder, workers: int) -> list[float]:
    """See every picture once.

    Returns:
        The loss of each batch.
    """
    order = torch.Generator().manual_seed(workers)
    batches = DataLoader(
        folder,
        batch_size=BATCH,
        shuffle=True,
        num_workers=workers,
        generator=order,
        timeout=WORKER_SECONDS if workers else 0,  # workers that cannot deliver are an error
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    losses = []
    for images, labels in batches:
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main(directory: str) -> None:
    """Train two epochs, the second with worker processes."""
    # Two workers are the point here; on a machine with one core torch would advise against it.
    warnings.filterwarnings("ignore", "This DataLoader will create 2 worker processes", UserWarning)
    torch.manual_seed(0)
    folder = ImageFolder(directory, Compose([Resize((SIDE, SIDE)), ToTensor()]))
    print(f"ImageFolder: {len(folder)} pictures, classes: {' '.join(folder.classes)}")
    model = tiny_model(len(folder.classes))
    for epoch, workers in enumerate((0, 2), start=1):
        losses = train_epoch(model, folder, workers)
        printed = " ".join(f"{loss:.2f}" for loss in losses)
        print(f"epoch {epoch}, num_workers={workers}, loss of each batch: {printed}")


if __name__ == "__main__":
    main(sys.argv[1])
