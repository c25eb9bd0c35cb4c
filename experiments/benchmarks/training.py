#!/usr/bin/env python3
"""Compares the training speed of psring and PyTorch in samples/s: one process, and two with shared memory and with TCP.

    ./run build && experiments/benchmarks/training.py [--rounds 5] [--models mlp,cnn]

Every contender runs once per round. Prints the tables and writes experiments/results/training_MODEL.md. If --python has no
torch, only psring is measured. PyTorch runs twice: unchanged, and with glibc's malloc set not to return memory to the
system, which makes it faster.
"""
import json
import os
import subprocess
import sys

import runs

PEER = runs.ROOT / "experiments/benchmarks/pytorch_peer.py"
TUNED = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "4294967296", "MALLOC_TOP_PAD_": "67108864"}
STEPS = {"mlp": 300, "cnn": 30}


def run_psring(common, strategy, workers, transport="auto"):
    return float(runs.train([*common, "--strategy", strategy, "--workers", workers, "--no_eval", "--lr", "0.02",
                             "--transport", transport])["samples_per_s"])


def run_torch(python, common, workers, env):
    output = runs.run([python, PEER, *common, "--workers", workers], timeout=600, env={**os.environ, **env})
    return json.loads(output.strip().splitlines()[-1])["samples_per_s"]


def contenders(python, model):
    """{name: function that returns samples/s}"""
    common = ["--model", model, "--steps", STEPS[model], "--warmup_steps", "10"]
    ours = {
        "psring single, 1 process": lambda: run_psring(common, "single", 1),
        "psring none, 2 processes": lambda: run_psring(common, "none", 2),
        "psring ring over shared memory, 2 processes": lambda: run_psring(common, "ring", 2, "shm"),
        "psring ring over TCP, 2 processes": lambda: run_psring(common, "ring", 2, "tcp"),
    }
    pytorch = {
        "PyTorch, 1 process": lambda: run_torch(python, common, 1, {}),
        "PyTorch, 1 process, malloc tuned": lambda: run_torch(python, common, 1, TUNED),
        "PyTorch DDP over gloo, 2 processes": lambda: run_torch(python, common, 2, {}),
        "PyTorch DDP over gloo, 2 processes, malloc tuned": lambda: run_torch(python, common, 2, TUNED),
    }
    return {**ours, **(pytorch if python else {})}


def torch_version(python):
    """Returns PyTorch's version, or "" if `python` has no torch."""
    if not python:
        return ""
    probe = subprocess.run([python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True)
    if probe.returncode:
        print("PyTorch not found: only psring is measured", file=sys.stderr)
    return "" if probe.returncode else probe.stdout.strip()


def main():
    parser = runs.flags(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", default="mlp,cnn")
    parser.add_argument("--python", default="/usr/bin/python3", help="an interpreter with torch; empty: only psring")
    args = parser.parse_args()
    version = torch_version(args.python)
    for model in args.models.split(","):
        results, others = runs.interleave(contenders(version and args.python, model), args.rounds, model)
        rows = []
        for name, values in results.items():
            ours = "single, 1 process" if "1 process" in name else "ring over shared memory, 2 processes"
            ratio = f"{runs.paired_ratio(results['psring ' + ours], values):.2f}" if name.startswith("PyTorch") else ""
            rows.append([name, runs.spread(values), ratio])
        runs.write_result(f"training_{model}.md", [
            "# Training speed beside PyTorch", "",
            f"{runs.measured_on()}, no GPU; PyTorch {version or 'absent'}; batch 128 per process, one thread per process, "
            f"momentum SGD, Fashion-MNIST; {args.rounds} interleaved rounds; samples/s as median (lowest to highest). "
            "Written by experiments/benchmarks/training.py.", "",
            f"## {model}", "", others, "", *runs.table("contender | samples/s | psring / it (paired median)", rows)])


if __name__ == "__main__":
    main()
