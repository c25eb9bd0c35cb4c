#!/usr/bin/env python3
"""bfloat16 against float32 on a CPU: speed of training, and the accuracy it reaches.

    ./run build && experiments/benchmarks/bfloat16.py [--rounds 5] [--seeds 3] [--models cnn,mlp]

The speed part runs every contender once per round, so that disturbances affect all alike; the ratio is the median of the
rounds' ratios. The accuracy part trains with the same seeds in both precisions. Prints and writes
(experiments/results/bfloat16.md) both, the spread, and how much processor time others took.
"""
import argparse
import datetime
import os
import statistics
import sys

import runs

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


def speed(model, arguments):
    return float(runs.train(["--model", model, "--steps", str(STEPS[model]), "--warmup_steps", "10", "--no_eval",
                             "--lr", "0.02"] + arguments)["samples_per_s"])


def accuracy(model, seed, arguments):
    return float(runs.train(["--model", model, "--epochs", str(EPOCHS[model]), "--schedule", "linear", "--seed", str(seed)]
                            + arguments)["test_accuracy"])


def speed_table(model, rounds):
    contenders = {name: lambda arguments=arguments: speed(model, arguments) for name, arguments in CONTENDERS.items()}
    results, others = runs.take_turns(contenders, rounds, model)
    lines = [f"## {model}", "", others, "",
             "| contender | samples/s | times float32 (paired median) |", "|---|---|---|"]
    for name, values in results.items():
        base = results["single, float32" if name.startswith("single") else "ring x 2 over TCP, float32"]
        ratio = statistics.median(a / b for a, b in zip(values, base))
        lines.append(f"| {name} | {runs.spread(values)} | {'' if values is base else f'{ratio:.2f}'} |")
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
    cpu, text = runs.cpu()
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
    runs.write_result("bfloat16.md", text)


if __name__ == "__main__":
    main()
