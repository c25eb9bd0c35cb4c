#!/usr/bin/env python3
"""Compares psring's predictions with measurements on a virtual cluster.

    experiments/benchmarks/prediction.py [--psring build/release/bin/psring] [--cases 10mb,vgg16] [--realtime]
                                         [--out experiments/results/prediction.md]

For each case (a model, a link, a number of workers), `psring compare --predict` measures and simulates the steps. Cases:
exchanges of 1, 10 and 100 MB at 1 Gbit/s with 2 to 5 workers (ring, star, direct, halving-doubling, one and two dedicated
servers); ResNet-50 at 1 Gbit/s and 200 Mbit/s and VGG-16 at 1 Gbit/s (recorded layer times; ring, and a server on rank 0).
All ranks begin every step together. Measured steps are means. The first steps are not counted, because TCP takes a few
seconds to reach the links' rate.

All cases take about 15 minutes on a quiet machine. With --realtime, rows are valid even if other programs used more than a
quarter of the processors; these rows are marked ~. The verdict is the last line. Exit code 1 if the median error is not below
5%, a row's error is not below 12%, or a run is not valid. Requires network namespaces (./run doctor).
"""
import collections
import statistics

import runs

MEDIAN_BELOW, WORST_BELOW = .05, .12
TENSORS = 20
STRATEGIES = "ring,star,direct,halving-doubling,ps-sync"
PARTS = ["computing", "waiting", "update", "congestion", "scheduling", "unexplained"]

Case = collections.namedtuple("Case", "name workers megabytes link_mbit strategies flags warmup steps")  # megabytes: 0 with --workload


def exchange(megabytes, workers):
    return Case(f"{megabytes}mb-{workers}", workers, megabytes, 1000, STRATEGIES,
                ["--servers", "1,2", "--server_placement", "dedicated"], *{1: (20, 60), 10: (16, 8), 100: (4, 2)}[megabytes])


def replay(name, link_mbit, workers, steps):
    return Case(f"{name}-{link_mbit}mbit-{workers}", workers, 0, link_mbit, "ring,ps-sync",
                ["--workload", name, "--server_placement", "rank0"], 1, steps)


CASES = [
    exchange(10, 4), exchange(100, 4), exchange(1, 4), replay("resnet50", 1000, 4, 3),
    exchange(10, 2), exchange(1, 5), replay("vgg16", 1000, 2, 2), exchange(100, 3),
    replay("resnet50", 200, 2, 2), exchange(10, 3), exchange(10, 5), exchange(1, 2), exchange(1, 3), exchange(100, 2),
    replay("resnet50", 1000, 2, 3), exchange(100, 5), replay("vgg16", 1000, 4, 1), replay("resnet50", 200, 4, 1),
]

HEAD = ["# Prediction compared with measurement, on the virtual cluster", "",
        "Links of 1 Gbit/s unless a case names another rate. A step is the mean over all workers, which begin it together."]


def measure(options, folder, case):
    flags = case.flags
    if case.megabytes:
        runs.write_workload(folder / "workload.csv", case.megabytes, TENSORS)
        flags = [*flags, "--workload", folder / "workload.csv"]
    rows = runs.compare(options, folder, ["--predict", "--strategies", case.strategies, "--workers", case.workers, "--link",
                                          f"{case.link_mbit}mbit", "--align_steps", "--steps", case.steps, "--warmup_steps",
                                          case.warmup, *flags])
    return [{**row, "case": case.name} for row in rows if "step_ms" in row["prediction"]]


def largest_parts(residual):
    parts = sorted(((residual[name + "_ms"], name) for name in PARTS), key=lambda part: -abs(part[0]))
    return ", ".join(f"{name} {ms:+.1f}" for ms, name in parts[:2] if abs(ms) >= .05)


def report(rows):
    cells, problems, errors = [], [], []
    for row in rows:
        predicted, mark = row["prediction"]["step_ms"], ""
        off = row["step_ms"] / predicted - 1
        errors.append(abs(off))
        if abs(off) >= WORST_BELOW:
            mark = " **outside**"
            problems.append(f"{row['case']}, {row['strategy']}: {off:+.1%} from its prediction")
        if row["not_valid"]:
            problems.append(f"{row['case']}: not valid: {row['not_valid']}")
        cells.append([row["case"].rsplit("-", 1)[0], row["strategy"], row["workers"], row["servers"] or "", f"{row['step_ms']:.1f}",
                      f"{predicted:.1f}", f"{off:+.1%}{mark}" + " ~" * row["shared"] + " !" * bool(row["not_valid"]),
                      largest_parts(row["prediction"]["residual"])])
    median = statistics.median(errors)
    if median >= MEDIAN_BELOW:
        problems.append(f"the median error is {median:.1%}")
    problems = list(dict.fromkeys(problems))
    return [*runs.table("case | strategy | workers | servers | step, ms (m) | predicted, ms (s) | off (d) | largest parts of the "
                        "difference, ms (d)", cells), "",
            "m measured, s simulated, d derived; ~ other programs used more than a quarter of the processors, but psring's "
            "processes had priority; ! not valid.", "",
            f"**{'Not within' if problems else 'Within'} the limits**: {len(rows)} rows, median error {median:.1%} (limit "
            f"{MEDIAN_BELOW:.0%}), worst {max(errors):.1%} (limit {WORST_BELOW:.0%}).", *(f"* {one}" for one in problems)], problems


if __name__ == "__main__":
    options = runs.parse(__doc__, psring=runs.PSRING, realtime=False, out=(str, runs.ALSO_TO), cases=(
        "", "parts of names, separated by commas: only cases that contain one"))
    runs.measure_cases(options, {case.name: case for case in CASES}, ",",
                       lambda folder, case: measure(options, folder, case), report, HEAD)
