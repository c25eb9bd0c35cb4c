#!/usr/bin/env python3
"""Training speed of psring beside PyTorch, in one run: samples/s of one process and of two that reduce over
shared memory and over TCP.

    ./run build && experiments/benchmarks/training.py [--rounds 5] [--models mlp,cnn]

Every round runs every contender once, so that disturbances affect all alike. Prints and writes
(experiments/results/training_MODEL.md) medians, the spread, the paired ratios, and how much processor time others took.
PyTorch is optional: without it only psring's rows appear. Give the same Python that has torch, e.g. /usr/bin/python3.
PyTorch is run twice: as it comes, and with malloc kept from returning memory (glibc's tunables), which helps it.
"""
import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys

import runs

PEER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pytorch_peer.py")
TUNED = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "4294967296", "MALLOC_TOP_PAD_": "67108864"}
STEPS = {"mlp": 300, "cnn": 30}


def run_psring(model, strategy, workers, transport="auto"):
    return float(runs.train(["--strategy", strategy, "--workers", str(workers), "--model", model, "--steps",
                             str(STEPS[model]), "--warmup_steps", "10", "--no_eval", "--lr", "0.02", "--transport", transport]
                            )["samples_per_s"])


def run_torch(python, model, workers, env):
    done = subprocess.run([python, PEER, "--model", model, "--workers", str(workers), "--steps", str(STEPS[model]),
                           "--warmup_steps", "10"], capture_output=True, text=True, timeout=600,
                          env={**os.environ, **env})
    if done.returncode:
        sys.exit(f"PyTorch failed: {done.stderr}")
    return json.loads(done.stdout.strip().splitlines()[-1])["samples_per_s"]


def contenders(python, model):
    rows = {
        "psring single, 1 process": lambda: run_psring(model, "single", 1),
        "psring none, 2 processes": lambda: run_psring(model, "none", 2),
        "psring ring over shared memory, 2 processes": lambda: run_psring(model, "ring", 2, "shm"),
        "psring ring over TCP, 2 processes": lambda: run_psring(model, "ring", 2, "tcp"),
    }
    if python:
        rows["PyTorch, 1 process"] = lambda: run_torch(python, model, 1, {})
        rows["PyTorch, 1 process, malloc tuned"] = lambda: run_torch(python, model, 1, TUNED)
        rows["PyTorch DDP over gloo, 2 processes"] = lambda: run_torch(python, model, 2, {})
        rows["PyTorch DDP over gloo, 2 processes, malloc tuned"] = lambda: run_torch(python, model, 2, TUNED)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", default="mlp,cnn")
    parser.add_argument("--python", default="/usr/bin/python3", help="an interpreter that has torch; empty: leave it out")
    args = parser.parse_args()
    python = args.python
    version = ""
    if python:
        probe = subprocess.run([python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True)
        version = probe.stdout.strip()
        if probe.returncode:
            print("PyTorch not found: only psring is measured", file=sys.stderr)
            python = ""
    cpu, _ = runs.cpu()
    head = ["# Training speed beside PyTorch", "",
             f"Measured {datetime.date.today()} on {cpu}, {os.cpu_count()} cores, no GPU; PyTorch {version or 'absent'}; "
             f"batch 128 a process, one thread a process, momentum SGD, Fashion-MNIST; {args.rounds} interleaved rounds; "
             "samples/s as median (lowest to highest). Made by experiments/benchmarks/training.py.", ""]
    for model in args.models.split(","):
        results, others = runs.take_turns(contenders(python, model), args.rounds, model)
        lines = head + [f"## {model}", "", others, "",
                  "| contender | samples/s | psring / it (paired median) |", "|---|---|---|"]
        for name, values in results.items():
            ours = None
            if name.startswith("PyTorch, 1"):
                ours = results["psring single, 1 process"]
            elif name.startswith("PyTorch DDP"):
                ours = results["psring ring over shared memory, 2 processes"]
            ratio = f"{statistics.median(a / b for a, b in zip(ours, values)):.2f}" if ours else ""
            lines.append(f"| {name} | {runs.spread(values)} | {ratio} |")
        text = "\n".join(lines) + "\n"
        print(text)
        runs.write_result(f"training_{model}.md", text)


if __name__ == "__main__":
    main()
