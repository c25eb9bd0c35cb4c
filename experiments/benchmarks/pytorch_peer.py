#!/usr/bin/env python3
"""PyTorch's part of the training benchmark: the same networks, batch and optimizer, one thread per process.

Prints one JSON line: {"samples_per_s": ..., "loss": mean of the last tenth of the steps, "torch": version}; of a text, the
samples are its tokens. --workers above 1 uses DistributedDataParallel over gloo, one process per worker. With --device cuda, one process trains on a GPU, with all
data in its memory. --precision has psring's meaning: float32 without tf32, tf32 in products and convolutions, or bfloat16
by autocast. Without files in --data_dir, the images are random; without Debian's bible-kjv, so is the text. Started by training.py; requires
PyTorch.
"""
import argparse
import contextlib
import gzip
import json
import os
import socket
import subprocess
import sys
import time

# torch.set_num_threads does not limit the threads of OpenBLAS.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from pytorch_models import Gpt, ResNet18
from torch import nn


def load(folder, count):
    if not os.path.exists(os.path.join(folder, "train-images-idx3-ubyte.gz")):
        return torch.randn(count, 1, 28, 28), torch.randint(10, (count,))
    with gzip.open(os.path.join(folder, "train-images-idx3-ubyte.gz")) as f:
        images = torch.frombuffer(bytearray(f.read(16 + count * 784)), dtype=torch.uint8)[16:].view(count, 1, 28, 28)
    with gzip.open(os.path.join(folder, "train-labels-idx1-ubyte.gz")) as f:
        labels = torch.frombuffer(bytearray(f.read(8 + count)), dtype=torch.uint8)[8:].long()
    return (images.float() / 255 - 0.2860) / 0.3530, labels


GPT = {"gpt-nano": (4, 4, 128, 64), "gpt-mini": (6, 6, 384, 256)}  # layers, heads, width, context
SYMBOLS = 73  # the different bytes of the King James Bible


def load_text(context):
    """The King James Bible in windows of `context` tokens, and the tokens that follow each of them: ((inputs, labels) of the
    first 98%, those of the rest)."""
    try:
        text = subprocess.run(["bible", "-f", "gen1:1-rev22:21"], capture_output=True, check=True, timeout=60).stdout
    except (OSError, subprocess.CalledProcessError):
        text = bytes(range(SYMBOLS)) * 60000
    number = {byte: i for i, byte in enumerate(sorted(set(text)))}
    tokens = torch.tensor([number[byte] for byte in text])
    first = len(tokens) * 98 // 100
    windows = [part.unfold(0, context + 1, context) for part in (tokens[:first], tokens[first:])]
    return [(part[:, :-1], part[:, 1:]) for part in windows]


def make_model(name, width=1024):
    if name == "resnet18":
        return ResNet18(10)
    if name in GPT:
        return Gpt(SYMBOLS, *GPT[name])
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
        inputs, labels = load_text(GPT[args.model][-1])[0] if args.model in GPT else load(args.data_dir, 60000)
        self.inputs, self.labels = inputs.to(args.device).contiguous(**layout), labels.to(args.device)
        self.order = torch.randperm(len(inputs))[rank::args.workers].to(args.device)
        self.losses = []
        self.loss_of = self.eager_loss
        self.criterion = nn.CrossEntropyLoss()

    def eager_loss(self, inputs, labels):
        return self.criterion(self.model(inputs), labels.flatten())

    def compile(self):
        self.loss_of = torch.compile(self.eager_loss)

    def backward(self, i):
        """Leaves the gradient of batch i in the parameters."""
        first = i * self.args.batch % (len(self.order) - self.args.batch)
        index = self.order[first:first + self.args.batch]
        with precision(self.args):
            loss = self.loss_of(self.inputs[index], self.labels[index])
        loss.backward()
        self.losses.append(loss.detach())

    def test_loss(self):
        """Per token of the text's last 2%."""
        inputs, labels = load_text(GPT[self.args.model][-1])[1]
        with torch.no_grad():
            sums = [self.eager_loss(x, y).item() * y.numel() for x, y in zip(inputs.split(64), labels.split(64))]
        return sum(sums) / labels.numel()

    def samples_per_step(self):
        return self.args.batch * self.args.workers * self.labels[0].numel()

    def make_optimizer(self):
        fused = {"fused": True} if self.args.fused else {}  # old versions do not know the argument
        if self.args.optimizer == "momentum":
            return torch.optim.SGD(self.model.parameters(), lr=self.args.lr, momentum=0.9, **fused)
        groups = [{"params": [p for p in self.model.parameters() if p.dim() > 1], "weight_decay": 0.1},
                  {"params": [p for p in self.model.parameters() if p.dim() == 1], "weight_decay": 0}]
        return torch.optim.AdamW(groups, lr=self.args.lr, **fused)

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
    optimizer = task.make_optimizer()

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
        print(json.dumps({"samples_per_s": args.steps * task.samples_per_step() / seconds, "loss": task.final_loss(),
                          **({"test_loss": task.test_loss()} if args.test else {}), "torch": torch.__version__}), flush=True)


def flags(doc):
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=["mlp", "cnn", "resnet18", *GPT], default="mlp")
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
    parser.add_argument("--optimizer", choices=["momentum", "adamw"], default="momentum")
    parser.add_argument("--test", action="store_true", help="of a text: also print the loss of its last 2%% after training")
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
