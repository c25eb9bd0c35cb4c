#!/usr/bin/env python3
"""Compares measured exchanges with parameter servers with the theory of the actual buckets and with the simulator.

    experiments/benchmarks/theory_check.py [--psring build/release/bin/psring] [--cases "serial;rank0, 5"] [--link 100mbit]
                                           [--realtime] [--out experiments/results/theory_check.md]

The workload has equal buckets, 3 MB in total, and computes for 2 ms, so a step is one exchange; the last case replays
ResNet-50 at 1 Gbit/s. All workers begin every step together, as theory assumes. `psring compare --predict` measures, derives and
simulates every row. The script compares the exchange (communication minus waiting for other workers) with theory, and the step
with the simulator.

At 100 Mbit/s, two cores are enough for four workers and two servers. With --realtime, rows are valid even if other programs
used the processors; these rows are marked ~. Exit code 1 if a row differs by more than 5% from theory or from the simulator,
or a run is not valid. Requires network namespaces (./run doctor).
"""
import collections
import sys

import runs

TOLERANCE = .05
MEGABYTES = 3

Case = collections.namedtuple("Case", "schedule placement buckets workers servers")  # servers: "" is compare's default
CASES = [
    Case("pipelined", "rank0", 1, "2,4", "1"),
    Case("pipelined", "rank0", 2, "2,4", "1"),
    Case("pipelined", "rank0", 5, "2,4", "1"),
    Case("pipelined", "dedicated", 5, "4", "1,2"),
    Case("pipelined", "colocated", 2, "4", ""),
    Case("serial", "rank0", 5, "2,4", "1"),
    Case("serial", "dedicated", 1, "4", "1"),
    Case("serial", "dedicated", 5, "4", "1,2"),
    Case("serial", "colocated", 5, "4", ""),
    Case("serial", "dedicated", 0, "4", "1"),  # ResNet-50
]

HEAD = ["# Theory of the actual buckets compared with measurement", "",
        "One exchange with synchronous parameter servers: theory for the list of buckets",
        "([derivation](../../trainer/strategies/table/server_exchange.cc)), and the simulator's step. Equal buckets, 3 MB in all, unless a row says ResNet-50."]


def name_of(case):
    return f"{case.schedule}, {case.placement}, {case.buckets or 'ResNet-50'}"


def measure(options, folder, case):
    workload = ["--workload", "resnet50", "--link", "1gbit"]
    if case.buckets:
        runs.write_workload(folder / "workload.csv", MEGABYTES, case.buckets)
        # So that every tensor is a bucket.
        workload = ["--workload", folder / "workload.csv", "--link", options.link, "--bucket_mb", ".1"]
    rows = runs.compare(options, folder, [
        "--predict", "--strategies", "ps-sync", "--workers", case.workers, *(["--servers", case.servers] if case.servers else []),
        "--server_placement", case.placement, "--ps_schedule", case.schedule, *workload, "--steps", 4, "--warmup_steps", 2,
        "--align_steps", "--no_eval"])
    rows = [{**row, "case": case} for row in rows if row["strategy"] == "ps-sync"]
    for row in rows:
        if "step_ms" not in row["prediction"]:
            sys.exit(f"{name_of(case)}: not simulated: {row['note']}")
    return rows


def report(rows):
    cells, problems = [], []
    for row in rows:
        case, exchange_ms = row["case"], row["comm_busy_ms"] - (row["wait_ms"] or 0)
        cell = [case.schedule, case.placement, row["servers"], case.buckets or "ResNet-50", row["workers"]]
        for measured, other, whose in ((exchange_ms, row["predicted_comm_ms"], "theory"),
                                       (row["step_ms"], row["prediction"]["step_ms"], "the simulator")):
            off, mark = measured / other - 1, ""
            if abs(off) > TOLERANCE:
                mark = " **outside**"
                problems.append(f"{name_of(case)}, {row['workers']} workers, {row['servers']} servers: {off:+.1%} from {whose}")
            cell += [f"{measured:.1f}", f"{other:.1f}", f"{off:+.1%}{mark}"]
        if row["not_valid"]:
            problems.append(f"{name_of(case)}: not valid: {row['not_valid']}")
        cell[-1] += " ~" * row["shared"] + " !" * bool(row["not_valid"])
        cells.append(cell)
    return [*runs.table("schedule | placement | servers | buckets | workers | exchange, ms (m) | theory, ms (d) | off (d) | "
                        "step, ms (m) | simulated, ms (s) | off (d)", cells), "",
            "m measured, d derived, s simulated; ~ other programs used more than a quarter of the processors, but psring's "
            "processes had priority; ! not valid."], problems


if __name__ == "__main__":
    options = runs.parse(__doc__, psring=runs.PSRING, realtime=False, out=(str, runs.ALSO_TO), cases=(
        "", "parts of names (schedule, placement, buckets), separated by ;"), link=(
            "100mbit", "rate of the links, except of ResNet-50"))
    runs.measure_cases(options, {name_of(case): case for case in CASES}, ";",
                       lambda folder, case: measure(options, folder, case), report, HEAD)
