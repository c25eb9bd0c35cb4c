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
import pathlib
import sys

import runs

TOLERANCE = .05
MEGABYTES = 3
MOST_FOREIGN_PCT = 25

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

HEAD = """# Theory of the actual buckets compared with measurement

One exchange with synchronous parameter servers: theory for the list of buckets
([derivation](../../trainer/strategies/table/server_exchange.h)), and the simulator's step. Equal buckets, 3 MB in all, unless a row says ResNet-50.

    """


def name_of(case):
    return f"{case.schedule}, {case.placement}, {case.buckets or 'ResNet-50'}"


def measure(options, folder, case):
    workload, link, steps, flags = "resnet50", "1gbit", 4, []
    if case.buckets:
        workload, link, steps = folder / "workload.csv", options.link, 4
        runs.write_workload(workload, MEGABYTES, case.buckets)
        flags = ["--bucket_mb", ".1"]  # so that every tensor is a bucket
    out = folder / "run"
    runs.run([*runs.psring_command(options), "compare", "--predict", "--strategies", "ps-sync", "--workers", case.workers,
              *(["--servers", case.servers] if case.servers else []), "--server_placement", case.placement,
              "--ps_schedule", case.schedule, "--workload", workload, "--link", link, "--shaping", "netns", "--repeats", "1",
              "--steps", steps, "--warmup_steps", 2, "--align_steps", "--no_eval",
              "--time_budget", "2h", "--out", out, *flags])
    rows = []
    for row in runs.read_json(out, "summary.json"):
        figures, prediction = row["figures"], row.get("prediction", {})
        if figures["strategy"] != "ps-sync":
            continue
        if "step_ms" not in prediction:
            sys.exit(f"{name_of(case)}: not simulated: {figures['note']}")
        shared = options.realtime and figures["foreign_cpu_pct"] > MOST_FOREIGN_PCT
        rows.append({"case": case, "workers": figures["workers"], "servers": figures["servers"], "shared": shared,
                     "exchange_ms": figures["comm_busy_ms"] - (figures["wait_ms"] or 0),
                     "theory_ms": figures["predicted_comm_ms"], "step_ms": figures["step_ms"],
                     "simulated_ms": prediction["step_ms"],
                     "not_valid": runs.why_not_valid(figures["valid"], figures["note"] or "", shared)})
    return rows


def report(rows):
    cells, problems = [], []
    for row in rows:
        case = row["case"]
        cell = [case.schedule, case.placement, row["servers"], case.buckets or "ResNet-50", row["workers"]]
        for measured, other, whose in (("exchange_ms", "theory_ms", "theory"), ("step_ms", "simulated_ms", "the simulator")):
            off = row[measured] / row[other] - 1
            mark = ""
            if abs(off) > TOLERANCE:
                mark = " **outside**"
                problems.append(f"{name_of(case)}, {row['workers']} workers, {row['servers']} servers: {off:+.1%} from {whose}")
            cell += [f"{row[measured]:.1f}", f"{row[other]:.1f}", f"{off:+.1%}{mark}"]
        if row["not_valid"]:
            problems.append(f"{name_of(case)}: not valid: {row['not_valid']}")
        cell[-1] += " ~" * row["shared"] + " !" * bool(row["not_valid"])
        cells.append(cell)
    lines = runs.table("schedule | placement | servers | buckets | workers | exchange, ms (m) | theory, ms (d) | off (d) | "
                       "step, ms (m) | simulated, ms (s) | off (d)", cells)
    return "\n".join([*lines, "", "m measured, d derived, s simulated; ~ other programs used more than a quarter of the "
                      "processors, but psring's processes had priority; ! not valid."]), problems


def main():
    parser = runs.virtual_cluster_flags(__doc__)
    parser.add_argument("--cases", default="", help="parts of names (schedule, placement, buckets), separated by ;")
    parser.add_argument("--link", default="100mbit", help="rate of the links, except of ResNet-50")
    options = parser.parse_args()
    cases = [case for case in CASES if any(part in name_of(case) for part in options.cases.split(";"))]
    if not cases:
        sys.exit(f"no case contains '{options.cases}'; there are: {'; '.join(map(name_of, CASES))}")
    rows = []
    for case in cases:
        print(name_of(case), file=sys.stderr)
        rows += runs.measure_again_if_disturbed(lambda folder, case=case: measure(options, folder, case))
        text, problems = report(rows)
        if options.out:  # updated after each case
            command = " ".join([f"experiments/benchmarks/{pathlib.Path(sys.argv[0]).name}", *sys.argv[1:]])
            pathlib.Path(options.out).write_text(f"{HEAD}{command}\n\n{runs.measured_on()}.\n\n{text}\n")
    print(text)
    for problem in problems:
        print(f"outside: {problem}", file=sys.stderr)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
