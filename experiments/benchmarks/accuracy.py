#!/usr/bin/env python3
"""Measures each strategy's test accuracy on Fashion-MNIST after equal numbers of samples, over several seeds.

    ./run build && experiments/benchmarks/accuracy.py [--only mlp|async|cnn]

Prints the table and writes experiments/results/accuracy.md (without --only). Takes about 10 minutes on two cores.
"""
import statistics

import runs

# section, strategy, workers, model, epochs, seeds
CASES = [
    ("mlp", "single", 1, "mlp", 3, 3),
    ("mlp", "ring", 2, "mlp", 3, 3),
    ("mlp", "ring", 4, "mlp", 3, 3),
    ("mlp", "ps-sync", 2, "mlp", 3, 3),
    ("mlp", "ps-sync", 4, "mlp", 3, 3),
    ("async", "ps-async", 4, "mlp", 3, 10),
    ("cnn", "single", 1, "cnn", 1, 3),
    ("cnn", "ring", 2, "cnn", 1, 3),
]


def main():
    parser = runs.flags(__doc__)
    parser.add_argument("--only", choices=["mlp", "async", "cnn"])
    args = parser.parse_args()
    rows = []
    for section, strategy, workers, model, epochs, seeds in CASES:
        if args.only in (None, section):
            values = runs.accuracies(["--strategy", strategy, "--workers", workers, "--model", model, "--epochs", epochs],
                                     seeds, f"{strategy} x{workers} {model}")
            rows.append([model, epochs, strategy, workers, seeds,
                         *(f"{figure(values):.4f}" for figure in (statistics.mean, min, max))])
    table = runs.table("model | epochs | strategy | workers | seeds | accuracy: mean | lowest | highest", rows)
    if args.only:
        print("\n".join(table))
        return
    runs.write_result("accuracy.md", [
        "# Test accuracy of each strategy", "",
        f"{runs.measured_on()}: test accuracy on Fashion-MNIST, batch 128 per worker, each strategy's "
        "default learning rate (with linear decay to 0) and momentum. Written by experiments/benchmarks/accuracy.py.", "", *table])


if __name__ == "__main__":
    main()
