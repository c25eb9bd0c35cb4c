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
import pathlib
import statistics
import sys

import runs

MEDIAN_BELOW, WORST_BELOW = .05, .12
MOST_FOREIGN_PCT = 25
TENSORS = 20
STRATEGIES = "ring,star,direct,halving-doubling,ps-sync"

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

HEAD = """# Prediction compared with measurement, on the virtual cluster

Links of 1 Gbit/s unless a case names another rate. A step is the mean over all workers, which begin it together.

    """


def measure(options, folder, case):
    flags = case.flags
    if case.megabytes:
        workload = folder / "workload.csv"
        runs.write_workload(workload, case.megabytes, TENSORS)
        flags = [*flags, "--workload", workload]
    out = folder / "run"
    runs.run([*runs.psring_command(options), "compare", "--predict", "--strategies", case.strategies, "--workers", case.workers,
              "--link", f"{case.link_mbit}mbit", "--shaping", "netns", "--align_steps", "--repeats", "1", "--steps", case.steps,
              "--warmup_steps", case.warmup, "--time_budget", "2h", "--out", out, *flags])
    rows = []
    for row in runs.read_json(out, "summary.json"):
        figures, prediction = row["figures"], row.get("prediction", {})
        if "step_ms" not in prediction:
            continue
        shared = options.realtime and figures["foreign_cpu_pct"] > MOST_FOREIGN_PCT
        rows.append({"case": case.name, "strategy": figures["strategy"], "workers": figures["workers"],
                     "servers": figures["servers"], "measured_ms": figures["step_ms"], "predicted_ms": prediction["step_ms"],
                     "residual": prediction["residual"], "shared": shared,
                     "not_valid": runs.why_not_valid(figures["valid"], figures["note"] or "", shared)})
    return rows


def largest_parts(residual):
    names = ["computing", "waiting", "update", "congestion", "scheduling", "unexplained"]
    parts = sorted(((residual[name + "_ms"], name) for name in names), key=lambda part: -abs(part[0]))
    return ", ".join(f"{name} {ms:+.1f}" for ms, name in parts[:2] if abs(ms) >= .05)


def report(rows):
    cells, problems, errors = [], [], []
    for row in rows:
        off = row["measured_ms"] / row["predicted_ms"] - 1
        errors.append(abs(off))
        mark = ""
        if abs(off) >= WORST_BELOW:
            mark = " **outside**"
            problems.append(f"{row['case']}, {row['strategy']}: {off:+.1%} from its prediction")
        if row["shared"]:
            mark += " ~"
        if row["not_valid"]:
            mark += " !"
            problems.append(f"{row['case']}: not valid: {row['not_valid']}")
        cells.append([row["case"].rsplit("-", 1)[0], row["strategy"], row["workers"], row["servers"] or "",
                      f"{row['measured_ms']:.1f}", f"{row['predicted_ms']:.1f}", f"{off:+.1%}{mark}",
                      largest_parts(row["residual"])])
    median = statistics.median(errors)
    if median >= MEDIAN_BELOW:
        problems.append(f"the median error is {median:.1%}")
    lines = [*runs.table("case | strategy | workers | servers | step, ms (m) | predicted, ms (s) | off (d) | largest parts of the difference, ms (d)",
                         cells), "",
             "m measured, s simulated, d derived; ~ other programs used more than a quarter of the processors, but psring's "
             "processes had priority; ! not valid."]
    return "\n".join(lines), list(dict.fromkeys(problems)), (
        f"{len(rows)} rows, median error {median:.1%} (limit {MEDIAN_BELOW:.0%}), worst {max(errors):.1%} "
        f"(limit {WORST_BELOW:.0%})")


def main():
    parser = runs.virtual_cluster_flags(__doc__)
    parser.add_argument("--cases", default="", help="parts of names, separated by commas: only cases that contain one")
    options = parser.parse_args()
    wanted = options.cases.split(",")
    cases = [case for case in CASES if any(part in case.name for part in wanted)]
    if not cases:
        sys.exit(f"no case contains '{options.cases}'; there are: {', '.join(case.name for case in CASES)}")
    rows = []
    for case in cases:
        print(case.name, file=sys.stderr)
        rows += runs.measure_again_if_disturbed(lambda folder, case=case: measure(options, folder, case))
        text, problems, verdict = report(rows)
        verdict = f"**{'Not within' if problems else 'Within'} the limits**: {verdict}." + "".join(f"\n* {one}" for one in problems)
        if options.out:  # updated after each case
            pathlib.Path(options.out).write_text(
                HEAD + " ".join(sys.argv) + f"\n\n{runs.measured_on()}.\n\n{text}\n\n{verdict}\n")
    print(f"{text}\n\n{verdict}")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
