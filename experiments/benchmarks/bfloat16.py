#!/usr/bin/env python3
"""bfloat16 against float32 on a CPU: speed of training, and the accuracy it reaches.

    ./run build && experiments/benchmarks/bfloat16.py [--rounds 5] [--seeds 3] [--models cnn,mlp]

Every round of the speed part runs every contender once, in turn, so that whatever else the machine does hits all alike; the
ratio is the median of the rounds' ratios. The accuracy part trains with the same seeds in both precisions. Prints and writes
(experiments/results/bfloat16.md) both, the spread, and how much processor time others took.
"""
import argparse
import csv
import datetime
import os
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
STEPS = {"mlp": 300, "mlp-small": 600, "cnn": 30}
EPOCHS = {"mlp": 3, "mlp-small": 3, "cnn": 1}
CONTENDERS = {
    "single, float32": ["--strategy", "single"],
    "single, bfloat16": ["--strategy", "single", "--precision", "bfloat16"],
    "ring x 2 over TCP, float32": ["--strategy", "ring", "--workers", "2", "--transport", "tcp"],
    "ring x 2 over TCP, bfloat16 on the wire": ["--strategy", "ring", "--workers", "2", "--transport", "tcp",
                                                "--wire", "bfloat16"],
    "ring x 2 over TCP, bfloat16 and on the wire": ["--strategy", "ring", "--workers", "2", "--transport", "tcp",
                                                    "--precision", "bfloat16", "--wire", "bfloat16"],
}


def cpu_ticks():
    with open("/proc/stat") as f:
        fields = [int(x) for x in f.readline().split()[1:9]]
    return sum(fields), sum(fields) - fields[3] - fields[4]


def psring(arguments):
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "run")
        done = subprocess.run([os.path.join(ROOT, "build/release/bin/psring"), "train", "--out", out] + arguments,
                              capture_output=True, text=True, timeout=3600)
        if done.returncode:
            sys.exit(f"psring failed: {done.stderr}")
        with open(os.path.join(out, "summary.csv")) as f:
            return next(csv.DictReader(f))


def speed(model, arguments):
    return float(psring(["--model", model, "--steps", str(STEPS[model]), "--warmup_steps", "10", "--no_eval",
                         "--lr", "0.02"] + arguments)["samples_per_s"])


def accuracy(model, seed, arguments):
    return float(psring(["--model", model, "--epochs", str(EPOCHS[model]), "--schedule", "linear", "--seed", str(seed)]
                        + arguments)["test_accuracy"])


def speed_table(model, rounds):
    results = {name: [] for name in CONTENDERS}
    total0, busy0 = cpu_ticks()
    own0 = sum(os.times()[2:4])
    for round_index in range(rounds + 1):  # the first warms up and is not counted
        for name, arguments in CONTENDERS.items():
            value = speed(model, arguments)
            if round_index:
                results[name].append(value)
            print(f"{model} round {round_index}: {name}: {value:,.0f}", file=sys.stderr)
    total1, busy1 = cpu_ticks()
    own = (sum(os.times()[2:4]) - own0) * os.sysconf("SC_CLK_TCK")
    foreign = 100 * max(0.0, (busy1 - busy0 - own)) / (total1 - total0)
    lines = [f"## {model}", "", f"Processor time of others during the run: {foreign:.1f}%.", "",
             "| contender | samples/s | times float32 (paired median) |", "|---|---|---|"]
    for name, values in results.items():
        base = results["single, float32" if name.startswith("single") else "ring x 2 over TCP, float32"]
        ratio = statistics.median(a / b for a, b in zip(values, base))
        lines.append(f"| {name} | {statistics.median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f}) "
                     f"| {'' if values is base else f'{ratio:.2f}'} |")
    return lines + [""]


def accuracy_table(model, seeds):
    lines = [f"Test accuracy after {EPOCHS[model]} epoch(s), linear decay, seeds 1 to {seeds}:", "",
             "| contender | mean | each seed | minus float32 |", "|---|---|---|---|"]
    base = {}
    for name, arguments in CONTENDERS.items():
        reached = []
        for seed in range(1, seeds + 1):
            reached.append(accuracy(model, seed, arguments))
            print(f"{model} seed {seed}: {name}: {reached[-1]:.4f}", file=sys.stderr)
        kind = name.split(",")[0]
        base.setdefault(kind, statistics.mean(reached))
        difference = statistics.mean(reached) - base[kind]
        lines.append(f"| {name} | {statistics.mean(reached):.4f} | {', '.join(f'{a:.4f}' for a in reached)} "
                     f"| {difference:+.4f} |")
    return lines + [""]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--models", default="cnn,mlp")
    args = parser.parse_args()
    with open("/proc/cpuinfo") as f:
        text = f.read()
    cpu = next((line.split(":")[1].strip() for line in text.splitlines() if line.startswith("model name")), "unknown")
    native = "avx512_bf16" in text
    lines = ["# bfloat16 against float32", "",
             f"Measured {datetime.date.today()} on {cpu}, {os.cpu_count()} cores, "
             f"{'with' if native else 'WITHOUT'} AVX512-BF16; batch 128 a worker, one thread a process, momentum SGD, "
             f"Fashion-MNIST; {args.rounds} interleaved rounds; samples/s as median (lowest to highest). Made by "
             "experiments/benchmarks/bfloat16.py.", ""]
    for model in args.models.split(","):
        lines += speed_table(model, args.rounds) if args.rounds else [f"## {model}", ""]
        lines += accuracy_table(model, args.seeds) if args.seeds else []
    text = "\n".join(lines)
    print(text)
    folder = os.path.join(ROOT, "experiments", "results")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "bfloat16.md"), "w") as f:
        f.write(text)


if __name__ == "__main__":
    main()
