#!/usr/bin/env python3
"""Compares measured steps on a virtual cluster with the simulator, and exchanges with the theory of the actual buckets.

    experiments/benchmarks/prediction.py [--page prediction|theory_check] [--cases "10mb;vgg16"] [--realtime]
                                         [--out experiments/results/prediction.md]

`psring compare --predict` measures, derives and simulates the rows of each case, in which all ranks begin every step together.
The exchange is the communication minus waiting for other workers. Measured figures are means; the first steps do not count,
because TCP takes a few seconds to reach the links' rate.

prediction: exchanges of 1, 10 and 100 MB at 1 Gbit/s with 2 to 5 workers (ring, star, direct, halving-doubling, one and two
dedicated servers); ResNet-50 at 1 Gbit/s and 200 Mbit/s and VGG-16 at 1 Gbit/s (recorded layer times; ring, and a server on rank
0). All cases take about 15 minutes on a quiet machine.

theory_check: synchronous servers and equal buckets, 3 MB in total, at 100 Mbit/s, for which two cores are enough; and ResNet-50 at
1 Gbit/s.

With --realtime, rows are valid even if other programs used more than a quarter of the processors; these rows are marked ~. The
verdict is the last line. Exit code 1 if a figure is outside the page's limits, or a run is not valid. Requires network namespaces
(./run doctor).
"""
import statistics
import typing

import runs

TENSORS = 20
STRATEGIES = "ring,star,direct,halving-doubling,ps-sync"
PARTS = ["computing", "waiting", "update", "congestion", "scheduling", "unexplained"]


class Case(typing.NamedTuple):
    flags: list  # of compare
    megabytes: int = 0  # of a workload that is nearly one exchange; 0: the flags name one
    tensors: int = TENSORS


def case(strategies, workers, link_mbit, placement, steps, warmup, *flags, **workload):
    return Case(["--strategies", strategies, "--workers", workers, "--link", f"{link_mbit}mbit", "--server_placement", placement,
                 "--steps", steps, "--warmup_steps", warmup, *flags], **workload)


def exchange(megabytes, workers):
    warmup, steps = {1: (20, 60), 10: (16, 8), 100: (4, 2)}[megabytes]
    return f"{megabytes}mb-{workers}", case(STRATEGIES, workers, 1000, "dedicated", steps, warmup, "--servers", "1,2",
                                            megabytes=megabytes)


def replay(name, link_mbit, workers, steps):
    return f"{name}-{link_mbit}mbit-{workers}", case("ring,ps-sync", workers, link_mbit, "rank0", steps, 1, "--workload", name)


def server(schedule, placement, buckets, workers, servers=""):
    """`buckets`: 0 for those of ResNet-50. `servers`: "" for compare's default."""
    flags = ["--ps_schedule", schedule, "--no_eval", *(["--servers", servers] if servers else [])]
    name = f"{schedule}, {placement}, {buckets or 'ResNet-50'}"
    if not buckets:
        return name, case("ps-sync", workers, 1000, placement, 4, 2, *flags, "--workload", "resnet50")
    # Every tensor is a bucket.
    return name, case("ps-sync", workers, 100, placement, 4, 2, *flags, "--bucket_mb", ".1", megabytes=3, tensors=buckets)


class Page(typing.NamedTuple):
    cases: dict
    title: str
    text: str
    worst_below: float  # of the errors of steps, and of exchanges if they are compared
    median_below: float = 1
    with_theory: bool = False


PAGES = {
    "prediction": Page(dict([
        exchange(10, 4), exchange(100, 4), exchange(1, 4), replay("resnet50", 1000, 4, 3), exchange(10, 2), exchange(1, 5),
        replay("vgg16", 1000, 2, 2), exchange(100, 3), replay("resnet50", 200, 2, 2), exchange(10, 3), exchange(10, 5),
        exchange(1, 2), exchange(1, 3), exchange(100, 2), replay("resnet50", 1000, 2, 3), exchange(100, 5),
        replay("vgg16", 1000, 4, 1), replay("resnet50", 200, 4, 1)]),
        "Prediction compared with measurement, on the virtual cluster",
        "Links of 1 Gbit/s unless a case names another rate. A step is the mean over all workers, which begin it together.",
        worst_below=.12, median_below=.05),
    "theory_check": Page(dict([
        server("pipelined", "rank0", 1, "2,4", "1"), server("pipelined", "rank0", 2, "2,4", "1"),
        server("pipelined", "rank0", 5, "2,4", "1"), server("pipelined", "dedicated", 5, "4", "1,2"),
        server("pipelined", "colocated", 2, "4"), server("serial", "rank0", 5, "2,4", "1"),
        server("serial", "dedicated", 1, "4", "1"), server("serial", "dedicated", 5, "4", "1,2"),
        server("serial", "colocated", 5, "4"), server("serial", "dedicated", 0, "4", "1")]),
        "Theory of the actual buckets compared with measurement",
        "One exchange with synchronous parameter servers: theory for the list of buckets\n"
        "([derivation](../../trainer/strategies/table/server_exchange.h)), and the simulator's step. A case is the schedule, the "
        "placement\nand the number of equal buckets, 3 MB in all.",
        worst_below=.05, with_theory=True),
}


def measure(options, folder, name, case):
    flags = case.flags
    if case.megabytes:
        runs.write_workload(folder / "workload.csv", case.megabytes, case.tensors)
        flags = [*flags, "--workload", folder / "workload.csv"]
    rows = runs.compare(options, folder, ["--predict", "--align_steps", *flags])
    return [{**row, "case": name} for row in rows if "step_ms" in row["prediction"]]


def largest_parts(residual):
    parts = sorted(((residual[name + "_ms"], name) for name in PARTS), key=lambda part: -abs(part[0]))
    return ", ".join(f"{name} {ms:+.1f}" for ms, name in parts[:2] if abs(ms) >= .05)


def report(page, rows):
    cells, problems, errors = [], [], []
    for row in rows:
        compared = [(row["step_ms"], row["prediction"]["step_ms"], "its prediction")]
        if page.with_theory:
            compared.append((row["comm_busy_ms"] - (row["wait_ms"] or 0), row["predicted_comm_ms"], "theory"))
        cell = [row["case"], row["strategy"], row["workers"], row["servers"] or ""]
        for measured, other, whose in compared:
            off, mark = measured / other - 1, ""
            errors.append(abs(off))
            if abs(off) >= page.worst_below:
                mark = " **outside**"
                problems.append(f"{row['case']}, {row['strategy']} x {row['workers']}: {off:+.1%} from {whose}")
            cell += [f"{measured:.1f}", f"{other:.1f}", f"{off:+.1%}{mark}"]
        if row["not_valid"]:
            problems.append(f"{row['case']}: not valid: {row['not_valid']}")
        cell[-1] += " ~" * row["shared"] + " !" * bool(row["not_valid"])
        cells.append([*cell, largest_parts(row["prediction"]["residual"])])
    median = statistics.median(errors)
    if median >= page.median_below:
        problems.append(f"the median error is {median:.1%}")
    problems = list(dict.fromkeys(problems))
    theory = "exchange, ms (m) | theory, ms (d) | off (d) | " * page.with_theory
    return [*runs.table(f"case | strategy | workers | servers | step, ms (m) | simulated, ms (s) | off (d) | {theory}largest parts "
                        "of the step's difference, ms (d)", cells), "",
            "m measured, s simulated, d derived; ~ other programs used more than a quarter of the processors, but psring's "
            "processes had priority; ! not valid.", "",
            f"**{'Not within' if problems else 'Within'} the limits**: {len(rows)} rows, median error {median:.1%}, worst "
            f"{max(errors):.1%} (limit {page.worst_below:.0%}).", *(f"* {one}" for one in problems)], problems


if __name__ == "__main__":
    options = runs.parse(__doc__, psring=runs.PSRING, realtime=False, out=(str, runs.ALSO_TO), page="prediction", cases=(
        "", "parts of names, separated by ;: only cases that contain one"))
    if options.page not in PAGES:
        raise SystemExit(f"--page: one of {', '.join(PAGES)}")
    page = PAGES[options.page]
    runs.measure_cases(options, page.cases, lambda folder, name, case: measure(options, folder, name, case),
                       lambda rows: report(page, rows), [f"# {page.title}", "", page.text])
