"""A sampler that knows which samples of an epoch are done, also after the job changed.

An epoch is a list of samples in a fixed order.  What is done of it is a beginning of the list
(``processed_num``), and where ranks had batches of different sizes, single places beyond it
(``_beyond``).  What is left is dealt out to the ranks, one by one in turn, whenever the job has
changed (``reset``); ``_done`` counts what this rank has done of its share since.  All ranks
have done as much of theirs, unless a commit has found out otherwise (``_counts``).
"""
import math
import random
from typing import Any, Dict, Iterator, List, Optional, Set

import torch.utils.data

from horovod.torch import mpi_ops


class ElasticSampler(torch.utils.data.Sampler):
    """Deals out the samples of a dataset to the ranks, and those that are left again when
    the number of ranks has changed.

    Call ``record_batch`` after each batch, and ``set_epoch`` at the END of an epoch.  Give it
    to TorchState, which keeps it in step with the model.  Every sample is dealt out once per
    epoch; when the ranks do not divide the number of samples, some are dealt out again at the
    end, so that all ranks have equally many.
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
        self._beyond: List[int] = []                # places >= processed_num that are done
        self._places: List[int] = []                # of remaining_indices, if not in one row
        self._start = 0                             # processed_num when they were dealt out
        self._done = 0
        self._counts: Optional[List[int]] = None    # _done of all ranks, where they differ
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch: all samples are to be done again, in another order."""
        self.epoch = epoch
        self.processed_num = 0
        self._beyond = []
        self._deal()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Notes that every rank has done a batch of this size."""
        self.processed_num += batch_size * self.num_replicas
        self._done += batch_size
        self._counts = None

    def get_indices(self, batch_idx: int, batch_size: int) -> List[int]:
        """The samples of one batch of this rank."""
        start = batch_idx * batch_size
        return self.indices[start:start + batch_size]

    def reset(self) -> None:
        """Deals out what is left of the epoch among the ranks of now."""
        if self._counts is not None or self._beyond:
            self._merge()
        self._deal()

    def _deal(self) -> None:
        if self.num_replicas == 0 or mpi_ops.is_initialized():
            self.num_replicas, self.rank = mpi_ops.size(), mpi_ops.rank()
        everything = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(everything)
        if self._beyond:
            beyond = set(self._beyond)
            self._places = [place for place in range(self.processed_num, len(everything))
                            if place not in beyond]
            self.remaining_indices = [everything[place] for place in self._places]
        else:
            self._places = []
            self.remaining_indices = everything[self.processed_num:]
        self._start, self._done, self._counts = self.processed_num, 0, None
        self.num_samples = math.ceil(len(self.remaining_indices) / self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def _learn(self, counts: List[int]) -> None:
        """What each rank has done of its share."""
        self._counts = counts

    def _merge(self) -> None:
        """Makes ``processed_num`` and ``_beyond`` say what all ranks have done."""
        counts = self._counts or [self._done] * self.num_replicas
        left = len(self.remaining_indices)
        done = {self._place(rank + i * self.num_replicas) for rank, count in enumerate(counts)
                for i in range(count) if rank + i * self.num_replicas < left}
        done.update(self._beyond)
        self.processed_num = self._start
        while self.processed_num in done:
            self.processed_num += 1
        self._beyond = sorted(place for place in done if place >= self.processed_num)

    def _place(self, index: int) -> int:
        """Where the epoch has the sample of ``remaining_indices[index]``."""
        return self._places[index] if self._places else self._start + index

    def state_dict(self) -> Dict[str, Any]:
        state: Dict[str, Any] = dict(epoch=self.epoch, processed_num=self.processed_num)
        if self._counts is not None or self._beyond:
            kept = self.processed_num, self._beyond
            self._merge()
            state.update(processed_num=self.processed_num, beyond=self._beyond)
            self.processed_num, self._beyond = kept
        return state

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self._beyond = list(state_dict.get("beyond", ()))
        self._deal()

    def __iter__(self) -> Iterator[int]:
        padded = list(self.remaining_indices)
        while padded and len(padded) < self.total_size:
            padded += padded[:self.total_size - len(padded)]
        self.indices = padded[self.rank:self.total_size:self.num_replicas]
        return iter(self.indices)

    def __len__(self) -> int:
        return self.num_samples
