#!/usr/bin/env python3
"""What psring's strategies learn: test accuracy on Fashion-MNIST after equal samples, over several seeds.

    ./run build && experiments/benchmarks/accuracy.py [--only mlp|async|cnn]

Prints and writes experiments/results/accuracy.md. Takes about 10 minutes on two cores.
"""
import argparse
import datetime
import statistics
import sys

import runs

# section, strategy, workers, model, epochs, seeds, more flags
CASES = [
    ("mlp", "single", 1, "mlp", 3, 3, []),
    ("mlp", "ring", 2, "mlp", 3, 3, []),
    ("mlp", "ring", 4, "mlp", 3, 3, []),
    ("mlp", "ps-sync", 2, "mlp", 3, 3, []),
    ("mlp", "ps-sync", 4, "mlp", 3, 3, []),
    ("async", "ps-async", 4, "mlp", 3, 10, []),
    ("cnn", "single", 1, "cnn", 1, 3, []),
    ("cnn", "ring", 2, "cnn", 1, 3, []),
]


def accuracy(strategy, workers, model, epochs, seed, more):
    return float(runs.train(["--strategy", strategy, "--workers", str(workers), "--model", model, "--epochs", str(epochs),
                             "--schedule", "linear", "--seed", str(seed), *more])["test_accuracy"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["mlp", "async", "cnn"])
    args = parser.parse_args()
    lines = ["# What the strategies learn", "",
             f"Measured {datetime.date.today()}: test accuracy on Fashion-MNIST, batch 128 a worker, linear decay to 0, each "
             "strategy's default learning rate and momentum. Made by experiments/benchmarks/accuracy.py.", "",
             "| model | epochs | strategy | workers | seeds | accuracy: mean | lowest | highest |",
             "|---|---|---|---|---|---|---|---|"]
    for section, strategy, workers, model, epochs, seeds, more in CASES:
        if args.only and section != args.only:
            continue
        values = []
        for seed in range(1, seeds + 1):
            values.append(accuracy(strategy, workers, model, epochs, seed, more))
            print(f"{strategy} x{workers} {model} seed {seed}: {values[-1]:.4f}", file=sys.stderr)
        lines.append(f"| {model} | {epochs} | {strategy} | {workers} | {seeds} | {statistics.mean(values):.4f} | "
                     f"{min(values):.4f} | {max(values):.4f} |")
        print(lines[-1], flush=True)
    if not args.only:
        runs.write_result("accuracy.md", "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
