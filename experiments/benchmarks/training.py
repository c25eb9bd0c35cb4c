#!/usr/bin/env python3
"""Training speed of psring beside PyTorch, in one run: samples/s of one process and of two that reduce over
shared memory and over TCP.

    ./run build && experiments/benchmarks/training.py [--rounds 5] [--models mlp,cnn]

Every round runs every contender once, in turn, so that whatever else the machine does hits all alike. Prints and writes
(experiments/results/training_MODEL.md) medians, the spread, the paired ratios, and how much processor time others took.
PyTorch is optional: without it only psring's rows appear. Give the same Python that has torch, e.g. /usr/bin/python3.
PyTorch is run twice: as it comes, and with malloc kept from returning memory (glibc's tunables), which helps it.
"""
import argparse
import csv
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PEER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pytorch_peer.py")
TUNED = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "4294967296", "MALLOC_TOP_PAD_": "67108864"}
STEPS = {"mlp": 300, "cnn": 30}


def cpu_ticks():
    with open("/proc/stat") as f:
        fields = [int(x) for x in f.readline().split()[1:9]]
    return sum(fields), sum(fields) - fields[3] - fields[4]


def run_psring(model, strategy, workers, transport="auto"):
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "run")
        done = subprocess.run([os.path.join(ROOT, "build/release/bin/psring"), "train", "--strategy", strategy,
                               "--workers", str(workers), "--model", model, "--steps", str(STEPS[model]),
                               "--warmup_steps", "10", "--no_eval", "--lr", "0.02", "--transport", transport,
                               "--out", out],
                              capture_output=True, text=True, timeout=600)
        if done.returncode:
            sys.exit(f"psring failed: {done.stderr}")
        with open(os.path.join(out, "summary.csv")) as f:
            return float(next(csv.DictReader(f))["samples_per_s"])


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
    with open("/proc/cpuinfo") as f:
        cpu = next((line.split(":")[1].strip() for line in f if line.startswith("model name")), "unknown")
    head = ["# Training speed beside PyTorch", "",
             f"Measured {datetime.date.today()} on {cpu}, {os.cpu_count()} cores, no GPU; PyTorch {version or 'absent'}; "
             f"batch 128 a process, one thread a process, momentum SGD, Fashion-MNIST; {args.rounds} interleaved rounds; "
             "samples/s as median (lowest to highest). Made by experiments/benchmarks/training.py.", ""]
    for model in args.models.split(","):
        rows = contenders(python, model)
        results = {name: [] for name in rows}
        total0, busy0 = cpu_ticks()
        own0 = sum(os.times()[2:4])
        for round_index in range(args.rounds + 1):  # the first warms up and is not counted
            for name, measure in rows.items():
                value = measure()
                if round_index:
                    results[name].append(value)
                print(f"{model} round {round_index}: {name}: {value:,.0f}", file=sys.stderr)
        total1, busy1 = cpu_ticks()
        own = (sum(os.times()[2:4]) - own0) * os.sysconf("SC_CLK_TCK")
        foreign = 100 * max(0.0, (busy1 - busy0 - own)) / (total1 - total0)
        lines = head + [f"## {model}", "", f"Processor time of others during the run: {foreign:.1f}%.", "",
                  "| contender | samples/s | psring / it (paired median) |", "|---|---|---|"]
        for name, values in results.items():
            ours = None
            if name.startswith("PyTorch, 1"):
                ours = results["psring single, 1 process"]
            elif name.startswith("PyTorch DDP"):
                ours = results["psring ring over shared memory, 2 processes"]
            ratio = f"{statistics.median(a / b for a, b in zip(ours, values)):.2f}" if ours else ""
            lines.append(f"| {name} | {statistics.median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f}) "
                         f"| {ratio} |")
        text = "\n".join(lines) + "\n"
        print(text)
        folder = os.path.join(ROOT, "experiments", "results")
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, f"training_{model}.md"), "w") as f:
            f.write(text)


if __name__ == "__main__":
    main()
