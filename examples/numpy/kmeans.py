"""k-means over points that are spread over the ranks; numpy only.

    horovodrun -np 4 python examples/numpy/kmeans.py

Each rank has points of its own, not equally many.  A step sends two small arrays: sums and counts
of the points that are nearest to each centre.
"""
import argparse

import numpy as np

import horovod.numpy as hvd


def own_points(count, centres, seed):
    """What a file of this rank would hold."""
    random = np.random.default_rng(seed + hvd.rank())
    return centres[random.integers(len(centres), size=count)] + random.normal(0, 0.1, (count, 2))


def nearest(points, centres):
    return np.argmin(((points[:, None] - centres) ** 2).sum(axis=2), axis=1)


def step(points, centres):
    """(better centres, mean squared distance), the same on all ranks."""
    owner = nearest(points, centres)
    sums = np.zeros_like(centres)
    np.add.at(sums, owner, points)
    counts = np.bincount(owner, minlength=len(centres)).astype(float)
    distance = np.array([((points - centres[owner]) ** 2).sum(), len(points)])
    hvd.grouped_allreduce_([sums, counts, distance], op=hvd.Sum, name="step")
    moved = np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], centres)
    return moved, distance[0] / distance[1]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--clusters", type=int, default=4)
    parser.add_argument("--points", type=int, default=20000, help="of each rank, about")
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()

    hvd.init()
    truth = hvd.broadcast_object(
        np.random.default_rng(7).uniform(-5, 5, (args.clusters, 2)) if hvd.rank() == 0 else None)
    points = own_points(args.points + 100 * hvd.rank(), truth, seed=1)

    # First centres: far from each other, among a few points of each rank.
    seen = hvd.allgather(points[:50], name="seen")
    centres = seen[:1]
    while len(centres) < args.clusters:
        far = ((seen[:, None] - centres) ** 2).sum(axis=2).min(axis=1).argmax()
        centres = np.concatenate([centres, seen[far:far + 1]])

    for i in range(args.steps):
        before, (centres, distance) = centres, step(points, centres)
        if np.allclose(before, centres):
            break
    if hvd.rank() == 0:
        found = np.abs(truth[:, None] - centres).sum(axis=2).min(axis=1).max()
        print(f"{i + 1} steps, mean squared distance {distance:.4f}, "
              f"largest error of a centre {found:.4f}")
    assert len({c.tobytes() for c in hvd.allgather_object(centres)}) == 1


if __name__ == "__main__":
    main()
