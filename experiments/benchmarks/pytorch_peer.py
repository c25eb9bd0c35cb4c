#!/usr/bin/env python3
"""PyTorch's part of the training benchmark: the same networks, batch and optimizer, one thread per process.

Prints one JSON line: {"samples_per_s": ..., "loss": mean of the last tenth of the steps, "peak_memory_mb": of rank 0,
"torch": version}; of a text, the samples are its tokens, of words the targets. --workers above 1 uses DistributedDataParallel
over gloo, one process per worker. With --device cuda, one process trains on a GPU, with all data in its memory. --precision has
psring's meaning: float32 without tf32, tf32 in products and convolutions, or bfloat16 by autocast. Without files in --data_dir,
the images are random; without Debian's bible-kjv, the text is artificial. Started by training.py; requires PyTorch.
"""
import argparse
import contextlib
import json
import os
import pathlib
import re
import socket
import sys
import tempfile
import time

# torch.set_num_threads does not limit the threads of OpenBLAS.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import torch
import pytorch_data
import torch.distributed as dist
import torch.multiprocessing as mp
from pytorch_models import Dlrm, Gpt, SkipGram, cnn, mlp, resnet18
from torch import nn

GPT = {"gpt-nano": (4, 4, 128, 64), "gpt-mini": (6, 6, 384, 256)}  # layers, heads, width, context
WITH_TABLES = ("dlrm-small", "skipgram")


def load(args):
    """The network, its inputs and their labels."""
    name, width = args.model, args.width
    if name == "dlrm-small":
        return Dlrm(args.rows, args.joined_tables), *pytorch_data.clicks(args.rows, alpha=1.05)
    if name == "skipgram":
        inputs, labels, words = pytorch_data.pairs_of_words()
        return SkipGram(words), inputs, labels
    if name in GPT:
        inputs, labels = pytorch_data.text(GPT[name][-1])[0]
        return Gpt(pytorch_data.SYMBOLS, *GPT[name]), (inputs,), labels
    images, labels = pytorch_data.pictures(args.data_dir, 60000)
    return {"mlp": lambda: mlp(width, width), "cnn": cnn, "resnet18": resnet18}[name](), (images,), labels


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Both:
    """Two optimizers: PyTorch's fused one does not accept the sparse gradients of tables."""

    def __init__(self, *optimizers):
        self.optimizers = optimizers

    def zero_grad(self):
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def step(self):
        for optimizer in self.optimizers:
            optimizer.step()


class Task:
    """A rank's model, data and gradients."""

    def __init__(self, rank, args):
        torch.manual_seed(args.seed)
        self.rank, self.args = rank, args
        layout = {"memory_format": torch.channels_last} if args.channels_last else {}
        model, inputs, labels = load(args)
        self.model = model.to(args.device, **layout)
        self.inputs, self.labels = [part.to(args.device).contiguous(**layout) for part in inputs], labels.to(args.device)
        self.order = torch.randperm(len(labels))[rank::args.workers].to(args.device)
        self.losses = []
        self.loss_of = self.eager_loss
        self.criterion = nn.BCEWithLogitsLoss() if args.model == "skipgram" else nn.CrossEntropyLoss()

    def eager_loss(self, labels, *inputs):
        return self.criterion(self.model(*inputs), labels.flatten())

    def compile(self):
        self.loss_of = torch.compile(self.eager_loss)

    def backward(self, i):
        """Leaves the gradient of batch i in the parameters."""
        first = i * self.args.batch % (len(self.order) - self.args.batch)
        index = self.order[first:first + self.args.batch]
        with precision(self.args):
            loss = self.loss_of(self.labels[index], *(part[index] for part in self.inputs))
        loss.backward()
        self.losses.append(loss.detach())

    def test_loss(self):
        """Per token of the text's last 2%."""
        inputs, labels = pytorch_data.text(GPT[self.args.model][-1])[1]
        with torch.no_grad():
            sums = [self.eager_loss(y, x).item() * y.numel() for x, y in zip(inputs.split(64), labels.split(64))]
        return sum(sums) / labels.numel()

    def samples_per_step(self):
        return self.args.batch * self.args.workers * self.labels[0].numel()

    def make_optimizer(self):
        fused = {"fused": True} if self.args.fused else {}  # old versions do not know the argument
        if self.args.optimizer == "sgd":
            dense = [p for name, p in self.model.named_parameters() if not is_table(name)]
            tables = [p for name, p in self.model.named_parameters() if is_table(name)]
            plain = torch.optim.SGD(tables, lr=self.args.lr)
            return Both(torch.optim.SGD(dense, lr=self.args.lr, **fused), plain) if dense else plain
        if self.args.optimizer == "momentum":
            return torch.optim.SGD(self.model.parameters(), lr=self.args.lr, momentum=0.9, **fused)
        groups = [{"params": [p for p in self.model.parameters() if p.dim() > 1], "weight_decay": 0.1},
                  {"params": [p for p in self.model.parameters() if p.dim() == 1], "weight_decay": 0}]
        return torch.optim.AdamW(groups, lr=self.args.lr, **fused)

    def final_loss(self):
        last = self.losses[-max(1, len(self.losses) // 10):]
        return torch.stack(last).mean().item()


def is_table(name):
    return re.search(r"(tables\.\d+|words|targets)\.weight$", name) is not None


def peak_memory_mb():
    """Of this process, in MiB, as psring measures its own."""
    return int(re.search(r"VmHWM:\s*(\d+)", pathlib.Path("/proc/self/status").read_text())[1]) / 1024


def precision(args):
    if args.precision == "bfloat16":
        return torch.autocast(torch.device(args.device).type, dtype=torch.bfloat16)
    return contextlib.nullcontext()


def set_precision(args):
    # PyTorch's default for convolutions is tf32.
    torch.set_float32_matmul_precision("high" if args.precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = args.precision == "tf32"


def train(rank, args, store):
    torch.set_num_threads(1)
    if args.workers > 1:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=args.workers)
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
                          "peak_memory_mb": peak_memory_mb(),
                          **({"test_loss": task.test_loss()} if args.test else {}), "torch": torch.__version__}), flush=True)


def flags(doc):
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=["mlp", "cnn", "resnet18", *GPT, *WITH_TABLES], default="mlp")
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
    parser.add_argument("--optimizer", choices=["momentum", "adamw", "sgd"], default="momentum",
                        help="sgd is for models with tables, whose gradients are sparse")
    parser.add_argument("--rows", type=int, default=1000000, help="of each table of dlrm-small")
    parser.add_argument("--joined_tables", action="store_true", help="one table instead of eight of dlrm-small")
    parser.add_argument("--test", action="store_true", help="of a text: also print the loss of its last 2%% after training")
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data_dir", default="/usr/share/datasets/fashion-mnist")
    return parser


def main():
    parser = flags(__doc__)
    args = parser.parse_args()
    if (args.optimizer == "sgd") != (args.model in WITH_TABLES):
        parser.error("--optimizer sgd is for models with tables, and the only one for them")
    if args.workers > 1 and args.device != "cpu":
        parser.error("--workers above 1 uses gloo between CPUs; omit --device")
    if args.workers == 1:
        train(0, args, "")
    else:
        with tempfile.TemporaryDirectory() as folder:  # not a port, which another program may take first
            mp.spawn(train, (args, os.path.join(folder, "store")), nprocs=args.workers)


if __name__ == "__main__":
    sys.exit(main())
