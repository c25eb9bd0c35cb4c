#!/usr/bin/env python3
"""PyTorch's part of the training benchmark: the same networks, batch and optimizer, one thread per process.

Prints one JSON line: {"samples_per_s": ..., "loss": mean of the last tenth of the steps, "peak_memory_mb": of rank 0,
"torch": version}; of a text, the samples are its tokens, of words the targets. --workers above 1 uses gloo, one process per worker,
and as --layout says DistributedDataParallel, fully_shard of each half block (FSDP2), or, for transformers, parallelize_module of
their linear layers (tensor parallelism: all workers compute the same batch). With --device cuda, one process trains on a GPU, with all data in its memory. --precision has
psring's meaning: float32 without tf32, tf32 in products and convolutions, or bfloat16 by autocast. Without files in --data_dir,
the images are random; without Debian's bible-kjv, the text is artificial. Started by training.py; requires PyTorch.
"""
import contextlib
import json
import os
import pathlib
import re
import sys
import tempfile
import time

# torch.set_num_threads does not limit the threads of OpenBLAS.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import runs
import samples
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from pytorch_models import Dlrm, Gpt, SkipGram, cnn, mlp, resnet18
from torch import nn
from torch.nn import functional

GPT = {"gpt-nano": (4, 4, 128, 64), "gpt-mini": (6, 6, 384, 256)}  # layers, heads, width, context
WITH_TABLES = ("dlrm-small", "skipgram")
LAYOUTS = ("dp", "fsdp", "tp")
FLAGS = {"model": "mlp", "workers": 1, "layout": ("dp", "dp, fsdp or tp"), "batch": 128, "steps": 100, "warmup_steps": 10,
         "width": (1024, "of the mlp's hidden layers"), "precision": ("float32", "float32, tf32 or bfloat16"), "device": "cpu",
         "fused": (False, "the fused optimizer; DDP's gradients are views of its buckets"),
         "compile": (False, "torch.compile for the network and the loss"), "channels_last": False,
         "optimizer": ("momentum", "momentum, adamw, or sgd for models with tables, whose gradients are sparse"),
         "rows": (1000000, "of each table of dlrm-small"),
         "joined_tables": (False, "one table instead of eight of dlrm-small"),
         "test": (False, "of a text: also print the loss of its last 2%% after training"), "lr": 0.02, "seed": 1,
         "data_dir": "/usr/share/datasets/fashion-mnist"}


def load(args):
    """The network, its inputs and their labels."""
    name, make = args.model, {"mlp": lambda: mlp(args.width, args.width), "cnn": cnn, "resnet18": resnet18}
    if name == "dlrm-small":
        data = samples.clicks(args.rows, seed=args.seed)
        model = Dlrm(args.rows, args.joined_tables)
    elif name == "skipgram":
        *data, words = samples.pairs_of_words(samples.bible(), args.seed)
        model = SkipGram(words)
    elif name in GPT:
        data, _, symbols = text(GPT[name][-1])
        model = Gpt(symbols, *GPT[name])
    else:
        try:
            data = samples.pictures(args.data_dir)
        except FileNotFoundError:
            data = torch.randn(60000, 1, 28, 28).numpy(), torch.randint(10, (60000,)).numpy()
        model = make[name]()
    *inputs, labels = map(torch.from_numpy, data)
    return model, inputs, labels


def text(context):
    """The King James Bible: the windows of the first 98%, those of the rest, the number of symbols."""
    numbers, symbols = samples.tokens(samples.bible())
    first = len(numbers) * 98 // 100
    return samples.windows(numbers[:first], context), samples.windows(numbers[first:], context), symbols


class Task:
    """A rank's model, data and gradients."""

    def __init__(self, rank, args):
        torch.manual_seed(args.seed)
        self.rank, self.args = rank, args
        layout = {"memory_format": torch.channels_last} if args.channels_last else {}
        model, inputs, labels = load(args)
        self.model = model.to(args.device, **layout)
        self.inputs, self.labels = [part.to(args.device).contiguous(**layout) for part in inputs], labels.to(args.device)
        first, each = (0, 1) if args.layout == "tp" else (rank, args.workers)
        self.order = torch.randperm(len(labels))[first::each].to(args.device)
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
        inputs, labels = map(torch.from_numpy, text(GPT[self.args.model][-1])[1])
        with torch.no_grad():
            sums = [self.eager_loss(y, x).item() * y.numel() for x, y in zip(inputs.split(64), labels.split(64))]
        return sum(sums) / labels.numel()

    def samples_per_step(self):
        return self.args.batch * (1 if self.args.layout == "tp" else self.args.workers) * self.labels[0].numel()

    def make_optimizers(self):
        fused = {"fused": True} if self.args.fused else {}  # old versions do not know the argument
        named = list(self.model.named_parameters())
        if self.args.optimizer == "sgd":  # the fused one does not accept the sparse gradients of tables
            groups = [([p for name, p in named if is_table(name) == table], flags) for table, flags in ((False, fused), (True, {}))]
            return [torch.optim.SGD(params, lr=self.args.lr, **flags) for params, flags in groups if params]
        if self.args.optimizer == "momentum":
            return [torch.optim.SGD(self.model.parameters(), lr=self.args.lr, momentum=0.9, **fused)]
        # The fused optimizer does not accept divided and whole tensors together.
        kinds = {hasattr(p, "device_mesh"): [] for _, p in named}
        for _, p in named:
            kinds[hasattr(p, "device_mesh")].append(p)
        return [torch.optim.AdamW([{"params": [p for p in of_kind if p.dim() > 1], "weight_decay": 0.1},
                                   {"params": [p for p in of_kind if p.dim() == 1], "weight_decay": 0}], lr=self.args.lr, **fused)
                for of_kind in kinds.values()]

    def train(self):
        """Returns the seconds of the steps after warm-up, until the last rank has ended."""
        optimizers = self.make_optimizers()

        def take(steps):
            for i in steps:
                for optimizer in optimizers:
                    optimizer.zero_grad()
                self.backward(i)
                for optimizer in optimizers:
                    optimizer.step()
            if dist.is_initialized():
                dist.barrier()
            if self.args.device != "cpu":
                torch.cuda.synchronize()
            return time.monotonic()

        begin = take(range(self.args.warmup_steps))
        return take(range(self.args.warmup_steps, self.args.warmup_steps + self.args.steps)) - begin

    def final_loss(self):
        last = self.losses[-max(1, len(self.losses) // 10):]
        return torch.stack(last).mean().item()


class DividedAttention(nn.Module):
    """Attention with a part of the heads of `whole`; its queries, keys and values are layers of their own."""

    def __init__(self, whole, ranks):
        super().__init__()
        width = whole.c_proj.in_features
        self.heads, self.c_proj = whole.heads // ranks, whole.c_proj
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        for i, layer in enumerate((self.query, self.key, self.value)):
            layer.weight.data, layer.bias.data = (
                part.data.chunk(3)[i].clone() for part in (whole.c_attn.weight, whole.c_attn.bias))

    def forward(self, x):
        batch, context, _ = x.shape
        q, k, v = (layer(x).view(batch, context, self.heads, -1).transpose(1, 2)
                   for layer in (self.query, self.key, self.value))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(batch, context, -1))


def divided(model, args):
    """The model as --layout says."""
    if args.layout == "dp":
        return nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=args.fused)
    from torch.distributed.device_mesh import init_device_mesh
    mesh = init_device_mesh("cpu", (args.workers,))
    blocks = model.transformer["h"]
    if args.layout == "fsdp":
        from torch.distributed.fsdp import fully_shard
        for block in blocks:
            fully_shard(block.attn, mesh=mesh)
            fully_shard(block.mlp, mesh=mesh)
        return fully_shard(model, mesh=mesh)
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    for block in blocks:
        block.attn = DividedAttention(block.attn, args.workers)
        plan = {f"attn.{name}": ColwiseParallel() for name in ("query", "key", "value")}
        plan |= {"attn.c_proj": RowwiseParallel(), "mlp.c_fc": ColwiseParallel(), "mlp.c_proj": RowwiseParallel()}
        parallelize_module(block, mesh, plan)
    return model


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
        task.model = divided(task.model, args)
    if args.compile:
        task.compile()
    seconds = task.train()
    if rank == 0:
        print(json.dumps({"samples_per_s": args.steps * task.samples_per_step() / seconds, "loss": task.final_loss(),
                          "peak_memory_mb": peak_memory_mb(),
                          **({"test_loss": task.test_loss()} if args.test else {}), "torch": torch.__version__}), flush=True)


def main():
    parser = runs.flags(__doc__, **FLAGS)
    args = parser.parse_args()
    if args.model not in ("mlp", "cnn", "resnet18", *GPT, *WITH_TABLES):
        parser.error(f"--model: mlp, cnn, resnet18, {', '.join((*GPT, *WITH_TABLES))}")
    if args.optimizer not in ("momentum", "adamw", "sgd") or args.precision not in ("float32", "tf32", "bfloat16"):
        parser.error("--optimizer is momentum, adamw or sgd, --precision float32, tf32 or bfloat16")
    if (args.optimizer == "sgd") != (args.model in WITH_TABLES):
        parser.error("--optimizer sgd is for models with tables, and the only one for them")
    if args.layout not in LAYOUTS or (args.layout != "dp" and (args.model not in GPT or args.workers == 1)):
        parser.error(f"--layout is {', '.join(LAYOUTS)}; fsdp and tp need --workers and --model {' or '.join(GPT)}")
    if args.workers > 1 and args.device != "cpu":
        parser.error("--workers above 1 uses gloo between CPUs; omit --device")
    if args.workers == 1:
        train(0, args, "")
    else:
        with tempfile.TemporaryDirectory() as folder:  # not a port, which another program may take first
            mp.spawn(train, (args, os.path.join(folder, "store")), nprocs=args.workers)


if __name__ == "__main__":
    sys.exit(main())
