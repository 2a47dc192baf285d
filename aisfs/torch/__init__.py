"""For training with PyTorch, with a mount or without; nothing else in the package needs this one.

`sampler` deals out the shuffled samples of an epoch, `samples` is a data set of the samples in shards, `announcing` tells a mount
what a sampler draws.

    from aisfs.torch import ShardSamples, ShardWindowSampler

    dataset = ShardSamples("ais://pets/samples-{00..18}.tar", transform=decode)
    sampler = ShardWindowSampler(dataset, window=8)
    for epoch in range(90):
        sampler.set_epoch(epoch)
        for batch in DataLoader(dataset, batch_size=64, sampler=sampler, num_workers=8):
            ...
"""

from aisfs.torch.announcing import AnnouncedSampler, announce
from aisfs.torch.sampler import ShardWindowSampler, SpreadBatches
from aisfs.torch.samples import ShardSamples

__all__ = ["AnnouncedSampler", "ShardSamples", "ShardWindowSampler", "SpreadBatches", "announce"]
