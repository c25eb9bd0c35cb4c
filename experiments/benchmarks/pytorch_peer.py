#!/usr/bin/env python3
"""PyTorch's part of the training benchmark: the same networks, batch and optimizer, one thread per process.

Prints one JSON line: {"samples_per_s": ..., "loss": mean of the last tenth of the steps, "torch": version}. --workers above
1 uses DistributedDataParallel over gloo, one process per worker. With --device cuda, one process trains on a GPU, with all
data in its memory. --precision has psring's meaning: float32 without tf32, tf32 in products and convolutions, or bfloat16
by autocast. Without files in --data_dir, the images are random. Started by training.py; requires PyTorch.
"""
import argparse
import contextlib
import gzip
import json
import os
import socket
import sys
import time

# torch.set_num_threads does not limit the threads of OpenBLAS.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from pytorch_models import ResNet18
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
    if name == "resnet18":
        return ResNet18(10)
    if name == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
                             nn.Linear(width, 10))
    return nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10))


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Task:
    """A rank's model, data and gradients."""

    def __init__(self, rank, args):
        torch.manual_seed(args.seed)
        self.rank, self.args = rank, args
        layout = {"memory_format": torch.channels_last} if args.channels_last else {}
        self.model = make_model(args.model, args.width).to(args.device, **layout)
        images, self.labels = (t.to(args.device) for t in load(args.data_dir, 60000))
        self.images = images.contiguous(**layout)
        self.order = torch.randperm(60000)[rank::args.workers].to(args.device)
        self.losses = []
        self.loss_of = self.eager_loss
        self.criterion = nn.CrossEntropyLoss()

    def eager_loss(self, images, labels):
        return self.criterion(self.model(images), labels)

    def compile(self):
        self.loss_of = torch.compile(self.eager_loss)

    def backward(self, i):
        """Leaves the gradient of batch i in the parameters."""
        first = i * self.args.batch % (len(self.order) - self.args.batch)
        index = self.order[first:first + self.args.batch]
        with precision(self.args):
            loss = self.loss_of(self.images[index], self.labels[index])
        loss.backward()
        self.losses.append(loss.detach())

    def final_loss(self):
        last = self.losses[-max(1, len(self.losses) // 10):]
        return torch.stack(last).mean().item()


def precision(args):
    if args.precision == "bfloat16":
        return torch.autocast(torch.device(args.device).type, dtype=torch.bfloat16)
    return contextlib.nullcontext()


def set_precision(args):
    # PyTorch's default for convolutions is tf32.
    torch.set_float32_matmul_precision("high" if args.precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = args.precision == "tf32"


def train(rank, args, port):
    torch.set_num_threads(1)
    if args.workers > 1:
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=args.workers)
    set_precision(args)
    task = Task(rank, args)
    if args.workers > 1:
        task.model = nn.parallel.DistributedDataParallel(task.model, gradient_as_bucket_view=args.fused)
    if args.compile:
        task.compile()
    optimizer = torch.optim.SGD(task.model.parameters(), lr=args.lr, momentum=0.9,
                                **({"fused": True} if args.fused else {}))  # old versions do not know the argument

    def finish():
        if args.device != "cpu":
            torch.cuda.synchronize()

    def step(i):
        optimizer.zero_grad()
        task.backward(i)
        optimizer.step()

    for i in range(args.warmup_steps):
        step(i)
    if args.workers > 1:
        dist.barrier()
    finish()
    begin = time.monotonic()
    for i in range(args.steps):
        step(args.warmup_steps + i)
    if args.workers > 1:
        dist.barrier()
    finish()
    seconds = time.monotonic() - begin
    if rank == 0:
        print(json.dumps({"samples_per_s": args.steps * args.batch * args.workers / seconds, "loss": task.final_loss(),
                          "torch": torch.__version__}), flush=True)


def flags(doc):
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=["mlp", "cnn", "resnet18"], default="mlp")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--warmup_steps", type=int, default=10)
    parser.add_argument("--width", type=int, default=1024, help="of the mlp's hidden layers")
    parser.add_argument("--precision", choices=["float32", "tf32", "bfloat16"], default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--fused", action="store_true", help="the fused optimizer; DDP's gradients are views of its buckets")
    parser.add_argument("--compile", action="store_true", help="torch.compile for the network and the loss")
    parser.add_argument("--channels_last", action="store_true")
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data_dir", default="/usr/share/datasets/fashion-mnist")
    return parser


def main():
    parser = flags(__doc__)
    args = parser.parse_args()
    if args.workers > 1 and args.device != "cpu":
        parser.error("--workers above 1 uses gloo between CPUs; omit --device")
    if args.workers == 1:
        train(0, args, 0)
    else:
        mp.spawn(train, (args, free_port()), nprocs=args.workers)


if __name__ == "__main__":
    sys.exit(main())
