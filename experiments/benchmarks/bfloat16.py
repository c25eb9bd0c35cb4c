#!/usr/bin/env python3
"""Compares bfloat16 with float32 on a CPU: training speed and accuracy.

    ./run build && experiments/benchmarks/bfloat16.py [--rounds 5] [--seeds 3] [--models cnn,mlp]

For speed, every contender runs once per round; the ratio is the median of the rounds' ratios. For accuracy, both precisions
train with the same seeds. Prints the tables and writes experiments/results/bfloat16.md.
"""
import statistics

import runs

STEPS = {"mlp": 300, "mlp-small": 600, "cnn": 30}
EPOCHS = {"mlp": 3, "mlp-small": 3, "cnn": 1}
RING = ["--strategy", "ring", "--workers", "2", "--transport", "tcp"]
CONTENDERS = {
    "single, float32": ["--strategy", "single"],
    "single, bfloat16": ["--strategy", "single", "--precision", "bfloat16"],
    "ring x 2 over TCP, float32": RING,
    "ring x 2 over TCP, float32, bfloat16 on the wire": [*RING, "--wire", "bfloat16"],
    "ring x 2 over TCP, bfloat16, also on the wire": [*RING, "--precision", "bfloat16", "--wire", "bfloat16"],
}


def speed_table(model, rounds):
    def speed(flags):
        return lambda: float(runs.train(["--model", model, "--steps", STEPS[model], "--warmup_steps", "10", "--no_eval", "--lr",
                                         "0.02", *flags])["samples_per_s"])

    results, others = runs.interleave({name: speed(flags) for name, flags in CONTENDERS.items()}, rounds, model)
    rows, base = [], {}
    for name, values in results.items():  # the first of each kind is float32
        first = base.setdefault(name.split(",")[0], values)
        rows.append([name, runs.spread(values), "" if values is first else f"{runs.paired_ratio(values, first):.2f}"])
    return [others, "", *runs.table("contender | samples/s | speed over float32's (paired median)", rows), ""]


def accuracy_table(model, seeds):
    rows, base = [], {}
    for name, flags in CONTENDERS.items():
        reached = runs.accuracies(["--model", model, "--epochs", EPOCHS[model], *flags], seeds, f"{model}, {name}")
        mean = statistics.mean(reached)
        difference = mean - base.setdefault(name.split(",")[0], mean)
        rows.append([name, f"{mean:.4f}", ", ".join(f"{a:.4f}" for a in reached), f"{difference:+.4f}"])
    return [f"Test accuracy after {EPOCHS[model]} epoch{'s' * (EPOCHS[model] > 1)} with linear decay of the learning rate, "
            f"{'one seed' if seeds == 1 else f'seeds 1 to {seeds}'}:", "",
            *runs.table("contender | mean | each seed | minus float32", rows), ""]


if __name__ == "__main__":
    args = runs.parse(__doc__, rounds=5, seeds=3, models="cnn,mlp")
    native = "with" if "avx512_bf16" in runs.cpu_info() else "WITHOUT"
    lines = ["# bfloat16 compared with float32", "",
             f"{runs.measured_on()}, {native} AVX512-BF16; batch 128 per worker, one thread per process, momentum SGD, "
             f"Fashion-MNIST; {args.rounds} interleaved rounds; samples/s as median (lowest to highest). Written by "
             "experiments/benchmarks/bfloat16.py.", ""]
    for model in args.models.split(","):
        lines += [f"## {model}", "", *(speed_table(model, args.rounds) if args.rounds else []),
                  *(accuracy_table(model, args.seeds) if args.seeds else [])]
    runs.write_result("bfloat16.md", lines)
