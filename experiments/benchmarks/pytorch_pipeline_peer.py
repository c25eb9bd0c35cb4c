#!/usr/bin/env python3
"""PyTorch's part of the pipeline benchmark: a transformer cut into stages by torch.distributed.pipelining, over gloo.

Prints one JSON line: {"samples_per_s": tokens, "loss": mean of the last tenth of the steps, "peak_memory_mb": of the largest rank,
"torch": version}. --program gpipe or 1f1b: one process per stage, with one computing thread each, and equally many blocks. The
first and the last stage have the embedding, and add its gradients. --program single: one process without stages, which adds
the gradients of as many micro-batches. Started by pipeline.py; requires PyTorch from 2.15.
"""
import json
import os
import sys
import tempfile

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import pytorch_peer
import runs
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed import pipelining
from torch.nn import functional

SCHEDULES = {"gpipe": pipelining.ScheduleGPipe, "1f1b": pipelining.Schedule1F1B}
FLAGS = {**pytorch_peer.FLAGS, "model": "gpt-nano", "batch": (4, "of a micro-batch"), "optimizer": "adamw", "lr": 0.001,
         "program": ("single", f"single, {', '.join(SCHEDULES)}"), "stages": 2, "micro_batches": 8}


class Stage(nn.Module):
    """Blocks `first` to `end` of a Gpt, the first stage with its embedding, the last with the loss's inputs."""

    def __init__(self, gpt, first, end):
        super().__init__()
        whole = gpt.transformer
        self.begins, self.ends = first == 0, end == len(whole["h"])
        names = ["wte", "wpe"] * self.begins + ["wte", "ln_f"] * self.ends
        self.transformer = nn.ModuleDict({name: whole[name] for name in dict.fromkeys(names)})
        self.transformer["h"] = nn.ModuleList(whole["h"][first:end])

    def forward(self, x):
        t = self.transformer
        if self.begins:
            x = t["wte"](x) + t["wpe"].weight
        for block in t["h"]:
            x = block(x)
        return functional.linear(t["ln_f"](x), t["wte"].weight).flatten(0, 1) if self.ends else x


class Part(pytorch_peer.Task):
    """A rank's stage. All ranks draw the same samples."""

    def __init__(self, rank, args):
        super().__init__(0, args)
        layers, _, width, context = pytorch_peer.GPT[args.model]
        stages = 1 if args.program == "single" else args.stages
        classes = self.model.transformer["wte"].num_embeddings
        self.is_first, self.is_last = rank == 0, rank == stages - 1
        self.model = Stage(self.model, rank * layers // stages, (rank + 1) * layers // stages)
        self.tied = dist.new_group([0, stages - 1]) if stages > 1 else None
        self.shared = self.model.transformer["wte"].weight if rank in (0, stages - 1) else None
        if args.compile:
            self.model, self.criterion = torch.compile(self.model), torch.compile(self.criterion)
        if stages > 1:
            boundary = torch.zeros(args.batch, context, width, requires_grad=True)
            out = torch.zeros(args.batch * context, classes, requires_grad=True) if self.is_last else boundary
            stage = pipelining.PipelineStage(self.model, rank, stages, torch.device("cpu"),
                                             input_args=boundary if rank else self.inputs[0][:args.batch], output_args=out)
            # The loss is already divided by the number of micro-batches.
            self.schedule = SCHEDULES[args.program](stage, args.micro_batches, loss_fn=self.loss_of_part, scale_grads=False)

    def loss_of_part(self, output, labels):
        return self.criterion(output, labels.flatten()) / self.args.micro_batches

    def backward(self, i):
        """Leaves the gradient of the micro-batches of step i in the parameters."""
        count = self.args.batch * self.args.micro_batches
        first = i * count % (len(self.order) - count)
        index = self.order[first:first + count]
        losses = []
        if self.tied is None:
            for part in index.split(self.args.batch):
                losses.append(self.loss_of_part(self.model(self.inputs[0][part]), self.labels[part]))
                losses[-1].backward()
        else:
            inputs = [self.inputs[0][index]] if self.is_first else []
            target = {"target": self.labels[index], "losses": losses} if self.is_last else {}
            self.schedule.step(*inputs, **target, return_outputs=False)
            if self.shared is not None:
                dist.all_reduce(self.shared.grad, group=self.tied)
        if self.is_last:
            self.losses.append(torch.stack([loss.detach() for loss in losses]).sum())

    def samples_per_step(self):
        return super().samples_per_step() * self.args.micro_batches


def train(rank, args, store):
    torch.set_num_threads(1)
    stages = 1 if args.program == "single" else args.stages
    if stages > 1:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=stages)
    pytorch_peer.set_precision(args)
    part = Part(rank, args)
    seconds = part.train()
    memory = torch.tensor(pytorch_peer.peak_memory_mb())
    if stages > 1:
        dist.all_reduce(memory, op=dist.ReduceOp.MAX)
    if part.is_last:
        print(json.dumps({"samples_per_s": args.steps * part.samples_per_step() / seconds, "loss": part.final_loss(),
                          "peak_memory_mb": memory.item(), "torch": torch.__version__}), flush=True)
    if stages > 1:
        dist.barrier()
        dist.destroy_process_group()


def main():
    parser = runs.flags(__doc__, **FLAGS)
    args = parser.parse_args()
    if args.model not in pytorch_peer.GPT or args.optimizer == "sgd" or args.workers > 1 or args.device != "cpu":
        parser.error(f"--model: {', '.join(pytorch_peer.GPT)}, with --optimizer adamw or momentum, one replica, on CPUs")
    if args.program not in ("single", *SCHEDULES):
        parser.error(f"--program: single, {', '.join(SCHEDULES)}")
    if args.program == "single":
        train(0, args, "")
    else:
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(train, (args, os.path.join(folder, "store")), nprocs=args.stages)


if __name__ == "__main__":
    sys.exit(main())
