#!/usr/bin/env python3
"""Measures what --tls auto costs and writes experiments/results/tls.md.

    ./run build && experiments/benchmarks/tls.py [--rounds 5]

With and without encryption, alternating: a ring all-reduce over TCP, rounds of a parameter server over gRPC, and a training of one
step, from the start of psring to its end. The first round of each is a warm-up. Takes about 2 minutes.
"""
import pathlib
import tempfile
import time

import runs

PLAIN, ENCRYPTED = "without", "with --tls auto"
CHOICES = {PLAIN: [], ENCRYPTED: ["--tls", "auto"]}


def bandwidth(args, flags):
    """The bus bandwidth in GB/s."""
    (row,), _ = runs.bench(args.psring, [*flags, "--transport", "tcp", "--sizes", args.bytes, "--workers", args.workers, "-n",
                                         args.iterations, "--rounds", 1])
    return row["out_of_place"]["bus_bw"]


def start(args, flags):
    """The time of a training of one step in ms."""
    with tempfile.TemporaryDirectory() as folder:
        begin = time.monotonic()
        runs.run([args.psring, "train", *flags, "--transport", "tcp", "--model", "mlp-small", "--data", "synthetic", "--steps",
                  "1", "--no_eval", "--workers", args.workers, "--out", pathlib.Path(folder) / "run"])
        return 1e3 * (time.monotonic() - begin)


# name, unit, format, function, flags
MEASUREMENTS = [
    ("ring all-reduce over TCP", "GB/s of bus bandwidth", ".2f", bandwidth,
     ["--collective", "all_reduce", "--backend", "native", "--algorithm", "ring"]),
    ("round of a parameter server over gRPC", "GB/s of bus bandwidth", ".2f", bandwidth, ["--collective", "ps_push_pull"]),
    ("training of one step, ring", "ms", ".0f", start, ["--strategy", "ring"]),
    ("training of one step, ps-sync", "ms", ".0f", start, ["--strategy", "ps-sync"]),
]

if __name__ == "__main__":
    args = runs.parse(__doc__, psring=runs.PSRING, workers=2, rounds=5, iterations=(20, "of a collective"),
                      bytes=(25 << 20, "of a gradient"), out=runs.RESULTS)
    rows, notes = [], []
    for name, unit, form, function, flags in MEASUREMENTS:
        results, others = runs.interleave({choice: lambda tls=tls: function(args, [*flags, *tls]) for choice, tls in CHOICES.items()},
                                          args.rounds, name)
        rows.append([name, unit, *(runs.spread(results[choice], form) for choice in CHOICES),
                     f"{runs.paired_ratio(results[ENCRYPTED], results[PLAIN]):.2f}"])
        notes.append(f"* {name}: {others}")
    runs.write_result("tls.md", [
        "# Encrypted connections", "",
        f"{runs.measured_on()}. All *measured*. Written by experiments/benchmarks/tls.py.", "",
        f"{args.workers} workers on one machine, {args.bytes} B; medians of {args.rounds} interleaved rounds (lowest to highest). "
        "Workers, server and the threads that encrypt share the cores of this machine; the loss between separate machines "
        "was not measured.", "",
        *runs.table(f"what | unit | {PLAIN} | {ENCRYPTED} | with / without (paired median)", rows), "", *notes], args.out)
