"""A small transformer that learns to continue a text, letter by letter.

    horovodrun -np 2 python language_model.py

It shows what larger trainings need: gradients accumulated over several backward passes,
clipping, a learning-rate schedule, and a checkpoint written by rank 0 only.
"""
import argparse
import pathlib

import torch
import torch.nn as nn
import torch.nn.functional as F

import horovod.torch as hvd

CONTEXT, WIDTH, HEADS, LAYERS = 48, 64, 4, 2


class LanguageModel(nn.Module):
    def __init__(self, letters):
        super().__init__()
        self.letter = nn.Embedding(letters, WIDTH)
        self.place = nn.Parameter(torch.zeros(CONTEXT, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0,
                                           batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, letters)

    def forward(self, x):
        n = x.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(n)
        return self.head(self.layers(self.letter(x) + self.place[:n], mask, is_causal=True))


def batches(data, size, generator):
    """Pieces of the text and the same pieces one letter on, for ever."""
    while True:
        at = torch.randint(0, len(data) - CONTEXT - 1, (size,), generator=generator)
        x = torch.stack([data[i:i + CONTEXT] for i in at])
        y = torch.stack([data[i + 1:i + CONTEXT + 1] for i in at])
        yield x, y


def continue_text(model, alphabet, start, letters):
    """What the model thinks comes next."""
    text = start
    with torch.no_grad():
        for _ in range(letters):
            x = torch.tensor([[alphabet.index(c) for c in text[-CONTEXT:]]])
            text += alphabet[int(model(x)[0, -1].argmax())]
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=8, help="per rank and backward pass")
    parser.add_argument("--passes", type=int, default=2, help="backward passes per step")
    parser.add_argument("--checkpoint", help="file that rank 0 writes at the end")
    args = parser.parse_args()

    hvd.init()
    torch.manual_seed(0)

    text = (pathlib.Path(__file__).parent / "text.txt").read_text()
    alphabet = sorted(set(text))
    data = torch.tensor([alphabet.index(c) for c in text])
    # Every rank draws other pieces of the text.
    stream = batches(data, args.batch, torch.Generator().manual_seed(1 + hvd.rank()))

    model = LanguageModel(len(alphabet))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(),
                                         backward_passes_per_step=args.passes)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    first = last = 0.0
    for step in range(args.steps):
        optimizer.zero_grad()
        total = torch.zeros(())
        for _ in range(args.passes):
            x, y = next(stream)
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten()) / args.passes
            loss.backward()
            total += loss.detach()
        # Clipping needs the averaged gradients: complete their reduction first.
        optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            optimizer.step()
        scheduler.step()
        if step % 20 == 0 or step == args.steps - 1:
            last = hvd.allreduce(total, name="loss").item()
            first = first or last
            if hvd.rank() == 0:
                print(f"step {step + 1:4d}  loss {last:.3f}", flush=True)

    assert last < first, "the model has learned nothing"
    if hvd.rank() == 0:
        print(repr(continue_text(model.eval(), alphabet, "The light", 40)))
        if args.checkpoint:
            torch.save(model.state_dict(), args.checkpoint)


if __name__ == "__main__":
    main()
