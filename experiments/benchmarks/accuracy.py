#!/usr/bin/env python3
"""Measures each strategy's test accuracy on Fashion-MNIST after equal numbers of samples, over several seeds.

    ./run build && experiments/benchmarks/accuracy.py [--only mlp|async|cnn]

Prints the table and writes experiments/results/accuracy.md (without --only). Takes about 10 minutes on two cores.
"""
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

if __name__ == "__main__":
    args = runs.parse(__doc__, only=["mlp", "async", "cnn"])
    table = runs.table("model | epochs | strategy | workers | seeds | accuracy: mean | lowest | highest", [
        [model, epochs, strategy, workers, seeds, *runs.mean_and_range(runs.accuracies(
            ["--strategy", strategy, "--workers", workers, "--model", model, "--epochs", epochs], seeds,
            f"{strategy} x{workers} {model}"))]
        for section, strategy, workers, model, epochs, seeds in CASES if args.only in (None, section)])
    if args.only:
        print("\n".join(table))
    else:
        runs.write_result("accuracy.md", [
            "# Test accuracy of each strategy", "",
            f"{runs.measured_on()}: test accuracy on Fashion-MNIST, batch 128 per worker, each strategy's "
            "default learning rate (with linear decay to 0) and momentum. Written by experiments/benchmarks/accuracy.py.", "",
            *table])
