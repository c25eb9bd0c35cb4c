#!/usr/bin/env python3
"""Measures what --tls auto costs and writes experiments/results/tls.md.

    ./run build && experiments/benchmarks/tls.py [--rounds 5]

With and without encryption, alternating: a ring all-reduce over TCP, rounds of a parameter server over gRPC, and a training of one
step, from the start of psring to its end. The first round of each is a warm-up. Takes about 2 minutes.
"""
import pathlib
import sys
import tempfile
import time

import runs

PLAIN, ENCRYPTED = "without", "with --tls auto"
CHOICES = {PLAIN: [], ENCRYPTED: ["--tls", "auto"]}


def bench(args, *flags):
    """Returns the bus bandwidth in GB/s."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "run"
        runs.run([args.psring, "bench", *flags, "--transport", "tcp", "--sizes", str(args.bytes), "--workers", str(args.workers),
                  "-n", str(args.iterations), "--rounds", "1", "--out", out])
        (row,) = runs.read_json(out, "bench.json")["results"]
        return row["out_of_place"]["bus_bw"]


def start(args, *flags):
    """Returns the time of a training of one step in ms."""
    with tempfile.TemporaryDirectory() as folder:
        begin = time.monotonic()
        runs.run([args.psring, "train", *flags, "--transport", "tcp", "--model", "mlp-small", "--data", "synthetic", "--steps",
                  "1", "--no_eval", "--workers", str(args.workers), "--out", pathlib.Path(folder) / "run"])
        return 1e3 * (time.monotonic() - begin)


def measurements():
    """{name: (unit, format, function)}"""
    ring = ["--collective", "all_reduce", "--backend", "native", "--algorithm", "ring"]
    server = ["--collective", "ps_push_pull"]
    return {
        "ring all-reduce over TCP": ("GB/s of bus bandwidth", ".2f", lambda args, tls: bench(args, *ring, *tls)),
        "round of a parameter server over gRPC": ("GB/s of bus bandwidth", ".2f", lambda args, tls: bench(args, *server, *tls)),
        "training of one step, ring": ("ms", ".0f", lambda args, tls: start(args, "--strategy", "ring", *tls)),
        "training of one step, ps-sync": ("ms", ".0f", lambda args, tls: start(args, "--strategy", "ps-sync", *tls)),
    }


def measure(args):
    """Returns (rows of the table, sentences about other processes)."""
    rows, notes = [], []
    for name, (unit, form, function) in measurements().items():
        contenders = {choice: lambda tls=tls: function(args, tls) for choice, tls in CHOICES.items()}
        results, others = runs.interleave(contenders, args.rounds, name)
        rows.append([name, unit, *(runs.spread(results[choice], form) for choice in CHOICES),
                     f"{runs.paired_ratio(results[ENCRYPTED], results[PLAIN]):.2f}"])
        notes.append(f"{name}: {others}")
    return rows, notes


def main():
    parser = runs.flags(__doc__)
    parser.add_argument("--psring", default=runs.PSRING)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=20, help="of a collective")
    parser.add_argument("--bytes", type=int, default=25 << 20, help="of a gradient")
    parser.add_argument("--out", type=pathlib.Path, default=runs.RESULTS, help="folder for the result")
    args = parser.parse_args()
    if args.rounds < 1 or args.iterations < 1:
        parser.error("--rounds and --iterations must be at least 1")
    rows, notes = measure(args)
    runs.write_result("tls.md", [
        "# Encrypted connections", "",
        f"{runs.measured_on()}. All *measured*. Written by experiments/benchmarks/tls.py.", "",
        f"{args.workers} workers on one machine, {args.bytes} B; medians of {args.rounds} interleaved rounds (lowest to highest). "
        "Workers, server and the threads that encrypt share the cores of this machine; the loss between separate machines "
        "was not measured.", "",
        *runs.table(f"what | unit | {PLAIN} | {ENCRYPTED} | with / without (paired median)", rows), "",
        *(f"* {note}" for note in notes)], args.out)


if __name__ == "__main__":
    sys.exit(main())
