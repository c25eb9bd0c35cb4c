#!/usr/bin/env python3
"""Compares live trainings with the same trainings on a virtual clock.

    ./run build && experiments/benchmarks/virtual_clock.py [--workers 2,3] [--repeats 8] [--epochs 0.5] [--only ps-async]

Every strategy trains live once per seed, with one straggler. Each training is then simulated with the measured times of its
own steps (--clock virtual --like). The means of samples/s and of staleness must agree within 5%, and the simulated mean of
test accuracy must lie within the range of the live seeds (which may be narrow by chance for fewer than eight). Prints the
tables and writes experiments/results/virtual_clock.md (without --only). Exit code 1 if a strategy does not agree. Takes
about 10 minutes on two cores; other programs slow it down but do not distort it, because their effect is part of the times.
"""
import os
import statistics
import sys
import tempfile

import runs

STRATEGIES = ["ps-sync", "ps-ssp:2", "ps-async", "ps-backup:1", "ring"]
STRAGGLER = "1:2"
TOLERANCE = .05
COLUMNS = ["samples_per_s", "staleness_mean", "dropped_gradients", "test_accuracy", "foreign_cpu_pct"]


def pair(strategy, workers, args, seed):
    """Trains live and simulated, and returns the figures of both."""
    flags = ["--strategy", strategy, "--workers", workers, "--model", args.model, "--epochs", args.epochs, "--schedule",
             "linear", "--seed", seed]
    found = []
    with tempfile.TemporaryDirectory() as folder:
        live = os.path.join(folder, "live")
        for out, more in ((live, ["--straggler", STRAGGLER, "--transport", "tcp"]),
                          (os.path.join(folder, "virtual"), ["--clock", "virtual", "--like", live])):
            runs.run([runs.PSRING, "train", *flags, *more, "--out", out])
            row = runs.read_csv(out, "summary.csv")[0]
            found.append({name: float(row[name]) if row[name] else None for name in COLUMNS})
    print(f"{strategy} seed {seed}: live {found[0]}\nvirtual {found[1]}", file=sys.stderr, flush=True)
    return found


def compare(strategy, workers, args):
    """Returns a row of the table, whether the strategy agrees, and the highest CPU use by other programs in percent."""
    live, virtual = zip(*(pair(strategy, workers, args, seed) for seed in range(1, args.repeats + 1)))

    def figure(name, form):
        """Returns how far the simulated mean is off, and the cells: both means, and this. Blank if there is no such figure."""
        if live[0][name] is None:
            return 0, ["", "", ""]
        measured, simulated = (statistics.mean(one[name] for one in trainings) for trainings in (live, virtual))
        off = simulated / measured - 1 if measured else 0
        return off, [f"{measured:{form}}", f"{simulated:{form}}", f"{off:+.1%}" if measured else ""]

    speed_off, speed = figure("samples_per_s", ",.0f")
    stale_off, stale = figure("staleness_mean", ".3f")
    reached, learnt = [one["test_accuracy"] for one in live], statistics.mean(one["test_accuracy"] for one in virtual)
    agrees = abs(speed_off) <= TOLERANCE and abs(stale_off) <= TOLERANCE and min(reached) <= learnt <= max(reached)
    return [strategy, *speed, *stale, *figure("dropped_gradients", ".0f")[1][:2], runs.spread(reached, ".4f", statistics.mean),
            f"{learnt:.4f}", "yes" if agrees else "NO"], agrees, max(one["foreign_cpu_pct"] for one in live)


if __name__ == "__main__":
    args = runs.parse(__doc__, workers="2,3", repeats=8, epochs=.5, model="mlp", only=STRATEGIES)
    lines = ["# Simulated time compared with real time", "",
             f"{runs.measured_on()}: {args.model}, Fashion-MNIST, workers over TCP, --straggler {STRAGGLER}, "
             f"{args.epochs:g} epochs, {args.repeats} seeds each; live (*measured*), and on a virtual clock with the times of "
             "each live training (*simulated* in time, accuracy *measured*). Written by experiments/benchmarks/virtual_clock.py.", "",
             f"agrees: samples/s and staleness within {TOLERANCE:.0%}, and the virtual mean of the accuracy within the range of the "
             "live seeds."]
    failed = []
    for workers in map(int, args.workers.split(",")):
        # With two workers, a backup worker would leave only one.
        strategies = [one for one in STRATEGIES if args.only in (None, one) and (workers > 2 or one != "ps-backup:1")]
        if not strategies:
            continue
        rows, agree, foreign = zip(*(compare(strategy, workers, args) for strategy in strategies))
        failed += [f"{strategy} x {workers}" for strategy, agrees in zip(strategies, agree) if not agrees]
        lines += ["", f"## {workers} workers", "", *runs.table(
            "strategy | samples/s live | virtual | off | staleness live | virtual | off | dropped live | virtual | "
            "accuracy live (lowest to highest) | virtual (mean) | agrees", rows),
            "", f"Other programs used at most {max(foreign):.0f}% of the processors."]
    if args.only:
        print("\n".join(lines))
    else:
        runs.write_result("virtual_clock.md", lines)
    if failed:
        sys.exit(f"off: {', '.join(failed)}")
