#!/usr/bin/env python3
"""Compares measured exchanges by ring and parameter server on a virtual cluster of 1 Gbit/s links with the formulas.

    experiments/benchmarks/virtual_cluster.py [--psring build/release/bin/psring] [--steps 5] [--realtime] [--out results.md]

The workload has 33 MB of gradients and computes for 2 ms, and all ranks begin every step together, so a step is one exchange.
Its time is from the first rank's start to the last rank's end, the median over steps and --repeats. Times are *measured*;
formulas are *derived* from the link rate that psring measures before each run, minus one burst of the shaper at full speed per
phase (experiments/virtual_cluster.md). Requires network namespaces (./run doctor). Run it on a quiet machine, or with
--realtime; the load by other programs then does not invalidate a run. Exit code 1 if a figure is outside its tolerance or a run
is not valid.
"""
import collections
import json
import pathlib
import statistics
import sys
import tempfile

import runs

MEGABYTES, TENSORS = 33, 33
WARMUP_STEPS = 5  # until TCP reaches the links' rate

# name: flags of the strategy, formula in units of M/B for N workers, phases with a burst
SERVER = ["--strategy", "ps-sync", "--ps_schedule"]
# Small buckets, because weights leave when their bucket is complete.
PIPELINED = [*SERVER, "pipelined", "--bucket_mb", "1", "--server_placement"]
CASES = {
    "ring": (["--strategy", "ring"], lambda n: 2 * (n - 1) / n, 1),
    "dedicated, serial": ([*SERVER, "serial", "--server_placement", "dedicated"], lambda n: 2 * n, 2),
    "rank 0, serial": ([*SERVER, "serial", "--server_placement", "rank0"], lambda n: 2 * (n - 1), 2),
    "dedicated, pipelined": ([*PIPELINED, "dedicated"], lambda n: n, 1),
    "rank 0, pipelined": ([*PIPELINED, "rank0"], lambda n: n - 1, 1),
}
# case, workers, expected ratio to ring, tolerance
EXPECTED = [("dedicated, serial", 4, 16 / 3, .05), ("dedicated, serial", 2, 4.0, .05), ("rank 0, serial", 4, 4.0, .05),
            ("dedicated, pipelined", 4, 8 / 3, .10), ("dedicated, pipelined", 2, 2.0, .10), ("rank 0, pipelined", 4, 2.0, .10)]
FORMULA_TOLERANCE, WIRE_TOLERANCE = .05, .04

Run = collections.namedtuple("Run", "exchanges_s wire_over_payload bytes_per_s burst not_valid")


def train(command, folder, flags, workers, steps, realtime):
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        out = pathlib.Path(temporary) / "run"
        runs.run([*command, "train", "--workload", folder / "33mb.csv", "--workers", workers, "--link", "1gbit", "--shaping",
                  "netns", "--align_steps", "--steps", steps, "--warmup_steps", WARMUP_STEPS, "--out", out, *flags])
        by_step = collections.defaultdict(list)
        for record in map(json.loads, (out / "steps.jsonl").read_text().splitlines()):
            if not record["warmup"]:
                by_step[record["step"]] += record["buckets"]
        figures = runs.read_json(out, "summary.json")[0]["figures"]
        link = runs.read_json(out, "manifest.json")["link"]
    return Run([(max(b["end_ns"] for b in buckets) - min(b["begin_ns"] for b in buckets)) / 1e9 for buckets in by_step.values()],
               figures["wire_tx_bytes_per_worker"] / figures["payload_tx_bytes_per_worker"],
               link["wires"]["mb_per_s"] * 1e6, link["burst_bytes"], runs.why_not_valid(figures, realtime))


def measure(options):
    """Returns {(case, workers): runs}."""
    wanted = {(name, workers) for name, workers, _, _ in EXPECTED}
    wanted |= {("ring", workers) for _, workers in wanted}
    results = collections.defaultdict(list)
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        runs.write_workload(folder / "33mb.csv", MEGABYTES, TENSORS)
        for repeat in range(options.repeats):
            for name, workers in sorted(wanted):
                print(f"round {repeat + 1}/{options.repeats}: {name} x {workers}", file=sys.stderr)
                results[name, workers].append(train(runs.psring_command(options), folder, CASES[name][0], workers,
                                                    options.steps, options.realtime))
    return results


def report(results):
    """Returns the page's lines, and what is outside its tolerance or not valid."""
    failures, measured, exchanges, ratios = [], {}, [], []

    def check(ok, text):
        if not ok:
            failures.append(text)
        return "" if ok else " **outside**"

    for (name, workers), of_case in sorted(results.items()):
        _, factor, phases = CASES[name]
        for one in of_case:
            check(not one.not_valid, f"{name} x {workers}: not valid: {one.not_valid}")
        seconds = measured[name, workers] = statistics.median(s for one in of_case for s in one.exchanges_s)
        rate = statistics.median(one.bytes_per_s for one in of_case)
        units = factor(workers) * (1 + ("pipelined" in name) / TENSORS)  # the last pull follows all pushes
        formula = (units * MEGABYTES * 1e6 - phases * of_case[0].burst) / rate
        wire = statistics.median(one.wire_over_payload for one in of_case)
        off = seconds / formula - 1
        mark = check(abs(off) <= FORMULA_TOLERANCE, f"{name} x {workers}: {off:+.1%} from its formula")
        wire_mark = check(abs(wire - 1) <= WIRE_TOLERANCE, f"{name} x {workers}: wire bytes {wire:.3f} of payload")
        exchanges.append([name, workers, f"{seconds * 1e3:.1f}", f"{formula * 1e3:.1f}", f"{off:+.1%}{mark}",
                          f"{wire:.4f}{wire_mark}"])
    for name, workers, theory, tolerance in EXPECTED:
        ratio = measured[name, workers] / measured["ring", workers]
        mark = check(abs(ratio / theory - 1) <= tolerance, f"{name} x {workers}: {ratio:.2f} times ring, not {theory:.2f}")
        ratios.append([name, workers, f"{ratio:.2f}", f"{theory:.2f}", f"{ratio / theory - 1:+.1%}{mark}"])
    return [*runs.table("case | workers | exchange, ms (m) | formula, ms (d) | off | wire bytes / payload (m)", exchanges), "",
            *runs.table("time relative to the ring | workers | measured | theory | off", ratios)], failures


if __name__ == "__main__":
    options = runs.parse(__doc__, psring=runs.PSRING, realtime=False, out=(str, runs.ALSO_TO), steps=5, repeats=3)
    lines, failures = report(measure(options))
    if options.out:
        runs.write([f"{runs.measured_on()}.", "", *lines], options.out)
    runs.finish(lines, failures)
