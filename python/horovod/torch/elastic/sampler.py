"""A sampler that knows which samples of an epoch are done, also after the job changed."""
import math
import random
from typing import Any, Dict, Iterator, List, Set

import torch.utils.data

from horovod.torch import mpi_ops


class ElasticSampler(torch.utils.data.Sampler):
    """Deals out the samples of a dataset to the ranks, and those that are left again when
    the number of ranks has changed.

    Call ``record_batch`` after each batch, and ``set_epoch`` at the END of an epoch.  Give it
    to TorchState, which keeps it in step with the model.
    """

    def __init__(self, dataset: Any, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.processed_indices: Set[int] = set()
        self.num_replicas = 0
        self.rank = 0
        self.remaining_indices: List[int] = []
        self.num_samples = 0
        self.total_size = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch: all samples are to be done again, in another order."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Notes that every rank has done a batch of this size."""
        self.processed_num += batch_size * self.num_replicas

    def get_indices(self, batch_idx: int, batch_size: int) -> List[int]:
        """The samples of one batch of this rank."""
        start = batch_idx * batch_size
        return self.indices[start:start + batch_size]

    def reset(self) -> None:
        """Deals out what is left of the epoch among the ranks of now."""
        self.num_replicas = mpi_ops.size()
        self.rank = mpi_ops.rank()
        everything = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(everything)
        self.remaining_indices = everything[self.processed_num:]
        self.num_samples = math.ceil(len(self.remaining_indices) / self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def state_dict(self) -> Dict[str, int]:
        return dict(epoch=self.epoch, processed_num=self.processed_num)

    def load_state_dict(self, state_dict: Dict[str, int]) -> None:
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def __iter__(self) -> Iterator[int]:
        padded = list(self.remaining_indices)
        while padded and len(padded) < self.total_size:
            padded += padded[:self.total_size - len(padded)]
        self.indices = padded[self.rank:self.total_size:self.num_replicas]
        return iter(self.indices)

    def __len__(self) -> int:
        return self.num_samples
