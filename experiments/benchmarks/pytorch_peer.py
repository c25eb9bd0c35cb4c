#!/usr/bin/env python3
"""PyTorch's part of the training benchmark: the same networks, batch and optimizer, one thread per process.

Prints one JSON line: {"samples_per_s": ..., "loss": ..., "torch": version}. --workers above 1 uses DistributedDataParallel
over gloo, one process per worker. With --device cuda, one process trains on a GPU, with all data in its memory. --precision has
psring's meaning: float32 without tf32, tf32 in products and convolutions, or bfloat16 by autocast. Without files in
--data_dir, the images are random. Started by training.py; requires PyTorch.
"""
import argparse
import contextlib
import gzip
import json
import os
import sys
import time

# torch.set_num_threads does not limit the threads of OpenBLAS.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn


def load(folder, count):
    if not os.path.exists(os.path.join(folder, "train-images-idx3-ubyte.gz")):
        return torch.randn(count, 1, 28, 28), torch.randint(10, (count,))
    with gzip.open(os.path.join(folder, "train-images-idx3-ubyte.gz")) as f:
        images = torch.frombuffer(bytearray(f.read(16 + count * 784)), dtype=torch.uint8)[16:].view(count, 1, 28, 28)
    with gzip.open(os.path.join(folder, "train-labels-idx1-ubyte.gz")) as f:
        labels = torch.frombuffer(bytearray(f.read(8 + count)), dtype=torch.uint8)[8:].long()
    return (images.float() / 255 - 0.2860) / 0.3530, labels


def make_model(name, width=1024):
    if name == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
                             nn.Linear(width, 10))
    return nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10))


def train(rank, args, port):
    torch.set_num_threads(1)
    if args.workers > 1:
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=args.workers)
    torch.manual_seed(args.seed)
    # PyTorch's default for convolutions is tf32.
    torch.set_float32_matmul_precision("high" if args.precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = args.precision == "tf32"
    in_precision = contextlib.nullcontext
    if args.precision == "bfloat16":
        def in_precision():
            return torch.autocast(torch.device(args.device).type, dtype=torch.bfloat16)
    model = make_model(args.model, args.width).to(args.device)
    if args.compile:
        model = torch.compile(model)
    if args.workers > 1:
        model = nn.parallel.DistributedDataParallel(model)
    images, labels = (t.to(args.device) for t in load(args.data_dir, 60000))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    order = torch.randperm(60000)[rank::args.workers].to(args.device)

    def finish():
        if args.device != "cpu":
            torch.cuda.synchronize()

    def step(i):
        first = i * args.batch % (len(order) - args.batch)
        index = order[first:first + args.batch]
        optimizer.zero_grad()
        with in_precision():
            loss = criterion(model(images[index]), labels[index])
        loss.backward()
        optimizer.step()
        return loss

    for i in range(args.warmup_steps):
        step(i)
    if args.workers > 1:
        dist.barrier()
    finish()
    begin = time.monotonic()
    for i in range(args.steps):
        loss = step(args.warmup_steps + i)
    if args.workers > 1:
        dist.barrier()
    finish()
    seconds = time.monotonic() - begin
    if rank == 0:
        print(json.dumps({"samples_per_s": args.steps * args.batch * args.workers / seconds, "loss": loss.item(),
                          "torch": torch.__version__}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=["mlp", "cnn"], default="mlp")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--warmup_steps", type=int, default=10)
    parser.add_argument("--width", type=int, default=1024, help="of the mlp's hidden layers")
    parser.add_argument("--precision", choices=["float32", "tf32", "bfloat16"], default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data_dir", default="/usr/share/datasets/fashion-mnist")
    args = parser.parse_args()
    if args.workers > 1 and args.device != "cpu":
        parser.error("--workers above 1 uses gloo between CPUs; omit --device")
    if args.workers == 1:
        train(0, args, 0)
        return
    import socket
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(train, (args, port), nprocs=args.workers)


if __name__ == "__main__":
    sys.exit(main())
