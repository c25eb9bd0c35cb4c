#!/usr/bin/env python3
"""Whether simulated time is like real time: live trainings, and the same on a virtual clock with the times of each.

    ./run build && experiments/benchmarks/virtual_clock.py [--workers 2,3] [--repeats 8] [--epochs 0.5] [--only ps-async]

Every strategy is trained live once a seed, with one straggler. Each of these trainings is then simulated with the times
that its own steps took (--clock virtual --like). Held against each other: samples/s and mean staleness, which must agree
within 5% on average, and test accuracy, whose simulated mean must lie within the spread of the live seeds (of fewer than
eight it may be narrow by chance). Prints and writes experiments/results/virtual_clock.md; exit code 1 where something is
off. About 10 minutes on two cores; others on
the machine do no harm but to speed, since what they cost is in the times.
"""
import argparse
import datetime
import json
import os
import statistics
import sys
import tempfile

import runs

STRATEGIES = ["ps-sync", "ps-ssp:2", "ps-async", "ps-backup:1", "ring"]
STRAGGLER = "1:2"
ALLOWED = .05


def figures(run):
    row = runs.summary_row(run)
    with open(os.path.join(run, "summary.json")) as f:
        workers = json.load(f)[0]["workers"]["figures"]
    return {"samples_per_s": float(row["samples_per_s"]), "accuracy": float(row["test_accuracy"]),
            "staleness": float(row["staleness_mean"]) if row["staleness_mean"] else None,
            "dropped": float(row["dropped_gradients"]) if row["dropped_gradients"] else None,
            "foreign": float(row["foreign_cpu_pct"]),
            "steps": [worker["steps"] for worker in workers]}


def pair(strategy, workers, epochs, seed, model):
    """One training, live and simulated."""
    flags = ["--strategy", strategy, "--workers", str(workers), "--model", model, "--epochs", str(epochs),
             "--schedule", "linear", "--seed", str(seed)]
    with tempfile.TemporaryDirectory() as live_folder, tempfile.TemporaryDirectory() as virtual_folder:
        live, virtual = os.path.join(live_folder, "run"), os.path.join(virtual_folder, "run")
        runs.train_into(live, [*flags, "--straggler", STRAGGLER, "--transport", "tcp"])
        runs.train_into(virtual, [*flags, "--clock", "virtual", "--like", live])
        return figures(live), figures(virtual)


def mean(trainings, key):
    values = [run[key] for run in trainings]
    return None if values[0] is None else statistics.mean(values)


def off(live, virtual):
    return 0 if not live else virtual / live - 1


def table(workers, args):
    """The lines of one number of workers, and which strategies are off."""
    lines = [f"## {workers} workers", "",
             "| strategy | samples/s live | virtual | off | staleness live | virtual | off | dropped live | virtual | "
             "accuracy live (lowest to highest) | virtual (mean) | agrees |", "|" + "---|" * 12]
    failed, foreign = [], 0
    for strategy in STRATEGIES:
        if args.only and strategy != args.only:
            continue
        if strategy.startswith("ps-backup") and workers < 3:
            continue  # of two, one alone would train
        live, virtual = [], []
        for seed in range(1, args.repeats + 1):
            one, other = pair(strategy, workers, args.epochs, seed, args.model)
            live.append(one)
            virtual.append(other)
            print(f"{strategy} seed {seed}: live {one}\n{'':{len(strategy)}} virtual {other}", file=sys.stderr, flush=True)
        speed = mean(live, "samples_per_s"), mean(virtual, "samples_per_s")
        stale = mean(live, "staleness"), mean(virtual, "staleness")
        dropped = mean(live, "dropped"), mean(virtual, "dropped")
        accuracies = [run["accuracy"] for run in live]
        learnt = mean(virtual, "accuracy")
        foreign = max(foreign, *(run["foreign"] for run in live))
        good = (abs(off(*speed)) <= ALLOWED and (stale[0] is None or abs(off(*stale)) <= ALLOWED)
                and min(accuracies) <= learnt <= max(accuracies))
        if not good:
            failed.append(f"{strategy} x {workers}")
        text = lambda value, form: "" if value is None else format(value, form)
        lines.append(f"| {strategy} | {speed[0]:,.0f} | {speed[1]:,.0f} | {off(*speed):+.1%} | {text(stale[0], '.3f')} | "
                     f"{text(stale[1], '.3f')} | {'' if not stale[0] else format(off(*stale), '+.1%')} | "
                     f"{text(dropped[0], '.0f')} | {text(dropped[1], '.0f')} | {statistics.mean(accuracies):.4f} "
                     f"({min(accuracies):.4f} to {max(accuracies):.4f}) | {learnt:.4f} | {'yes' if good else 'NO'} |")
        print(lines[-1], flush=True)
    return [*lines, "", f"Others used {foreign:.0f}% of the machine at most."], failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", default="2,3")
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--epochs", type=float, default=.5)
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--only", choices=STRATEGIES)
    args = parser.parse_args()
    lines = ["# Simulated time beside real time", "",
             f"{datetime.date.today()}: {args.model}, Fashion-MNIST, workers over TCP, --straggler {STRAGGLER}, "
             f"{args.epochs:g} epochs, {args.repeats} seeds each; live (*measured*), and on a virtual clock with the times of "
             "each live training (*simulated* in time, accuracy *measured*). Made by experiments/benchmarks/virtual_clock.py."]
    failed = []
    for workers in map(int, args.workers.split(",")):
        rows, wrong = table(workers, args)
        lines += ["", *rows]
        failed += wrong
    if not args.only:
        runs.write_result("virtual_clock.md", "\n".join(lines) + "\n")
    if failed:
        sys.exit(f"off: {', '.join(failed)}")


if __name__ == "__main__":
    main()
