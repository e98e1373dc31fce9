"""The training of the soak test: counts the samples that the model has seen.

    python soak_train.py DIRECTORY

The counts are a part of the model, so that they are committed, restored and synced with it: a
sample whose gradient was lost is not counted, one whose gradient counts twice is counted twice.
What is wrong goes to DIRECTORY/wrong; DIRECTORY/stop ends the training after the epoch.
"""
import os
import sys

import torch

import horovod.torch as hvd

SAMPLES, BATCH = 480, 12        # what is left is always a multiple of 12: no sample is padding
directory = sys.argv[1]
PLACE = f"{os.environ['HOROVOD_HOSTNAME']} {os.environ['HOROVOD_LOCAL_RANK']}"


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.register_buffer("seen", torch.zeros(SAMPLES, dtype=torch.int64))

    def forward(self, x):
        return self.linear(x)


def wrong(text):
    with open(os.path.join(directory, "wrong"), "a") as file:
        file.write(f"{text}\n")
    sys.exit(3)


def note(text):
    with open(os.path.join(directory, "journal"), "a") as file:
        file.write(f"{text}\n")


def check_equal(model):
    """The weights have the same bits on all ranks."""
    bits = torch.cat([t.detach().reshape(-1).contiguous().view(torch.uint8)
                      for t in model.state_dict().values()]).to(torch.int64)
    sums = torch.stack([bits.sum(), (bits * torch.arange(len(bits))).sum()])
    both = hvd.allreduce(torch.cat([sums, -sums]), name="bits", op=hvd.Max)
    if not bool((both[:2] == -both[2:]).all()):
        wrong(f"rank {hvd.rank()}: weights differ after a reset")


def main():
    hvd.init()
    torch.manual_seed(os.getpid())
    dataset = torch.arange(SAMPLES)
    sampler = hvd.elastic.ElasticSampler(dataset)
    loader = torch.utils.data.DataLoader(dataset, batch_size=BATCH, sampler=sampler)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    features = torch.randn(SAMPLES, 8, generator=torch.Generator().manual_seed(1))

    @hvd.elastic.run
    def train(state):
        check_equal(model)
        note(f"enter {hvd.rank()} {hvd.size()} {os.getpid()} {PLACE}")
        while True:
            for samples in loader:
                optimizer.zero_grad()
                model(features[samples]).pow(2).mean().backward()
                optimizer.step()
                counts = torch.zeros(SAMPLES, dtype=torch.int64).index_add_(
                    0, samples, torch.ones(len(samples), dtype=torch.int64))
                model.seen += hvd.allreduce(counts, name="counts", op=hvd.Sum)
                sampler.record_batch(0, len(samples))
                state.commit()
            state.epoch += 1
            if not bool((model.seen == state.epoch).all()):
                wrong(f"epoch {state.epoch}: samples {(model.seen != state.epoch).nonzero()}, "
                      f"seen {model.seen[model.seen != state.epoch]}")
            sampler.set_epoch(state.epoch)
            over = torch.tensor([os.path.exists(os.path.join(directory, "stop"))]).int()
            if hvd.allreduce(over, name="over", op=hvd.Max).item():
                return
            state.commit()

    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0)
    train(state)
    note(f"done {hvd.rank()} {hvd.size()} {state.epoch} {state._commits}")


main()
