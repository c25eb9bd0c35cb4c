#!/usr/bin/env python3
"""psring's predictions held against measurements on a virtual cluster.

    experiments/benchmarks/prediction.py [--psring build/release/bin/psring] [--cases 10mb,vgg16] [--minutes 15]
                                         [--quick] [--realtime] [--list] [--out experiments/results/prediction.md]

`psring compare --predict` runs every case (a model, a link, a number of workers: one comparison of several strategies) and
simulates it beside; this script collects the rows. Exchanges of 1, 10 and 100 MB at 1 Gbit/s, with 2 to 5 workers: ring,
star, direct, halving-doubling, one and two dedicated servers; then ResNet-50 at 1 Gbit/s and 200 Mbit/s and VGG-16 at
1 Gbit/s (recorded layer times), ring and a server on rank 0. All ranks begin every step together.

Cases stand in the order in which a part of them says most; the whole takes about 15 minutes on a quiet machine. What is
done is kept in --state, so that it goes on where it was ended; --again forgets it. Measured steps are means. The first
steps are left out, because TCP's connections need a few seconds until they carry what their links do (cubic's window
grows slowly where ACKs stand in line behind payload), and what is predicted is what comes after.

--realtime runs the processes ahead of all others (chrt --rr, as root), for a machine that is not quiet: rows beside which
others used more than a quarter of the processors then count, and are marked ~. The verdict is the last line; exit code 1
where the median error is not below 5%, a case's not below 12%, a case was left out, or a run was not valid. Needs
namespaces (./run doctor).
"""
import argparse
import collections
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

MEDIAN_BELOW, WORST_BELOW = .05, .12
MOST_FOREIGN_PCT = 25  # psring's own limit
MOST_TRIES = 3
REALTIME = ["chrt", "--rr", "1"]
TENSORS = 20
STRATEGIES = "ring,star,direct,halving-doubling,ps-sync"

Case = collections.namedtuple("Case", "name workers megabytes link_mbit strategies flags warmup steps")


def exchange(megabytes, workers):
    return Case(f"{megabytes}mb-{workers}", workers, megabytes, 1000, STRATEGIES,
                ["--servers", "1,2", "--server_placement", "dedicated"], *{1: (20, 60), 10: (16, 8), 100: (4, 2)}[megabytes])


def replay(name, megabytes, link_mbit, workers, steps):
    return Case(f"{name}-{link_mbit}mbit-{workers}", workers, megabytes, link_mbit, "ring,ps-sync", ["--workload", name], 1, steps)


CASES = [
    exchange(10, 4), exchange(100, 4), exchange(1, 4), replay("resnet50", 102, 1000, 4, 3),
    exchange(10, 2), exchange(1, 5), replay("vgg16", 553, 1000, 2, 2), exchange(100, 3),
    replay("resnet50", 102, 200, 2, 2), exchange(10, 3), exchange(10, 5), exchange(1, 2), exchange(1, 3), exchange(100, 2),
    replay("resnet50", 102, 1000, 2, 3), exchange(100, 5), replay("vgg16", 553, 1000, 4, 1), replay("resnet50", 102, 200, 4, 1),
]


HEAD = """# Prediction beside measurement, on the virtual cluster

Links of 1 Gbit/s where a case does not say otherwise. A step is the mean of all workers' own, which begin it together.

    """


def expected_s(case, steps):
    """By theory, roughly: a launch each, steps with warm-up."""
    exchange_s = 8 * case.megabytes / (.956 * case.link_mbit)
    n = case.workers
    in_exchanges = [2 * (n - 1) / n, n - 1] if case.strategies == "ring,ps-sync" else [2 * (n - 1) / n] * 3 + [n - 1, n, n / 2]
    return 8 + 2 * (1 + len(in_exchanges)) + (steps + case.warmup) * exchange_s * sum(in_exchanges)


def run(psring, folder, case, steps, ahead):
    out = folder / case.name
    flags = list(case.flags)
    if "--workload" not in flags:
        workload = folder / f"{case.megabytes}mb.csv"
        workload.write_text("# batch: 1\n# device: none\n# forward_ms: 1\n# backward_ms: 1\nname,bytes,ready_ms\n" + "".join(
            f"t{i},{case.megabytes * 1_000_000 // TENSORS},0\n" for i in range(TENSORS)))
        flags += ["--workload", str(workload)]
    command = [*ahead, psring, "compare", "--predict", "--strategies", case.strategies, "--workers", str(case.workers),
               "--link", f"{case.link_mbit}mbit", "--shaping", "netns", "--align_steps", "--repeats", "1", "--steps", str(steps),
               "--warmup_steps", str(case.warmup), "--out", str(out), *flags]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    rows = []
    for row in json.loads((out / "summary.json").read_text()):
        figures, prediction = row["figures"], row.get("prediction", {})
        if "step_ms" not in prediction:
            continue
        rows.append({"case": case.name, "strategy": figures["strategy"], "workers": figures["workers"],
                     "servers": figures["servers"], "measured_ms": figures["step_ms"], "predicted_ms": prediction["step_ms"],
                     "residual": prediction["residual"], "valid": figures["valid"], "note": figures["note"] or "",
                     "shared": bool(ahead) and figures["foreign_cpu_pct"] > MOST_FOREIGN_PCT})
    return rows


def largest_parts(residual):
    names = ["computing", "waiting", "update", "congestion", "scheduling", "unexplained"]
    parts = sorted(((residual[name + "_ms"], name) for name in names), key=lambda part: -abs(part[0]))
    return ", ".join(f"{name} {ms:+.1f}" for ms, name in parts[:2] if abs(ms) >= .05)


def why_not_valid(row):
    """Empty where it is valid; at a priority above all others' it does not matter what these do."""
    reasons = row["note"].split("; ")
    if row["shared"]:
        reasons = [reason for reason in reasons if not reason.startswith("other programs used")]
    return "" if row["valid"] else "; ".join(reasons)


def report(rows):
    lines = ["| case | strategy | workers | servers | step, ms (m) | predicted, ms (s) | off (d) | of it, ms (d) |",
             "|---|---|---|---|---|---|---|---|"]
    problems = []
    for row in rows:
        off = row["measured_ms"] / row["predicted_ms"] - 1
        mark = ""
        if abs(off) >= WORST_BELOW:
            mark = " **outside**"
            problems.append(f"{row['case']}, {row['strategy']}: {off:+.1%} from its prediction")
        if row["shared"]:
            mark += " ~"
        if why := why_not_valid(row):
            mark += " !"
            problem = f"{row['case']}: not valid: {why}"  # of all its rows
            if problem not in problems:
                problems.append(problem)
        lines.append(f"| {row['case'].rsplit('-', 1)[0]} | {row['strategy']} | {row['workers']} | {row['servers'] or ''} | "
                     f"{row['measured_ms']:.1f} | {row['predicted_ms']:.1f} | {off:+.1%}{mark} | {largest_parts(row['residual'])} |")
    errors = [abs(row["measured_ms"] / row["predicted_ms"] - 1) for row in rows]
    median = statistics.median(errors)
    if median >= MEDIAN_BELOW:
        problems.append(f"the median error is {median:.1%}")
    lines += ["", "m measured, s simulated, d derived; ~ others used more than a quarter of the processors meanwhile, "
              "which took nothing from processes of a higher priority; ! not valid."]
    return "\n".join(lines), problems, (f"{len(rows)} rows: median error {median:.1%} (to be below {MEDIAN_BELOW:.0%}), "
                                        f"worst {max(errors):.1%} (to be below {WORST_BELOW:.0%})")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--psring", default="build/release/bin/psring")
    parser.add_argument("--cases", default="", help="parts of names, with commas: only cases that hold one of them")
    parser.add_argument("--minutes", type=float, default=0, help="start no case that would end later than this")
    parser.add_argument("--quick", action="store_true", help="the first four cases with two steps each: about two minutes")
    parser.add_argument("--realtime", action="store_true", help="ahead of all other processes, as root")
    parser.add_argument("--list", action="store_true", help="name the cases and how long each takes, and do nothing")
    parser.add_argument("--state", default="runs/prediction.jsonl", help="where rows are kept meanwhile")
    parser.add_argument("--again", action="store_true", help="forget what --state holds")
    parser.add_argument("--out", help="also write the table to this file")
    options = parser.parse_args()

    wanted = [part for part in options.cases.split(",") if part]
    cases = [case for case in CASES if not wanted or any(part in case.name for part in wanted)]
    if not cases:
        sys.exit(f"no case holds '{options.cases}'; there are: {', '.join(case.name for case in CASES)}")
    if options.quick:
        cases = [case._replace(steps=min(2, case.steps)) for case in cases[:4]]
    if options.list:
        for case in cases:
            print(f"{case.name:20s} about {expected_s(case, case.steps):.0f} s")
        print(f"all of it: about {sum(expected_s(case, case.steps) for case in cases) / 60:.0f} minutes")
        return
    psring = str(pathlib.Path(options.psring).resolve())
    state = pathlib.Path(options.state)
    state.parent.mkdir(parents=True, exist_ok=True)
    if options.again or not state.exists():
        state.write_text("")
    rows = [json.loads(line) for line in state.read_text().splitlines()]
    done = {row["case"] for row in rows}
    begin = time.monotonic()
    left_out = []
    with tempfile.TemporaryDirectory() as temporary:
        for case in cases:
            if case.name in done:
                continue
            if options.minutes and time.monotonic() - begin + expected_s(case, case.steps) > 60 * options.minutes:
                left_out.append(case.name)
                continue
            print(f"{time.monotonic() - begin:5.0f} s  {case.name}, about {expected_s(case, case.steps):.0f} s", file=sys.stderr)
            # What a moment of somebody else's has spoilt is measured again.
            for attempt in range(MOST_TRIES):
                folder = pathlib.Path(temporary) / str(attempt)
                folder.mkdir(exist_ok=True)
                fresh = run(psring, folder, case, case.steps, REALTIME if options.realtime else [])
                if not any(why_not_valid(row) for row in fresh):
                    break
                print(f"      again: {why_not_valid(fresh[0])}", file=sys.stderr)
            with state.open("a") as file:
                file.writelines(json.dumps(row) + "\n" for row in fresh)
            rows += fresh
    names = [case.name for case in cases]
    rows = sorted((row for row in rows if row["case"] in names), key=lambda row: names.index(row["case"]))
    if not rows:
        sys.exit("nothing was measured; give it more --minutes")
    text, problems, verdict = report(rows)
    problems += [f"{name}: left out for lack of time" for name in left_out]
    verdict = f"**{'Not held' if problems else 'Held'}**: {verdict}." + "".join(f"\n* {problem}" for problem in problems)
    if options.out:
        pathlib.Path(options.out).write_text(HEAD + " ".join(sys.argv) + "\n\n" + text + "\n\n" + verdict + "\n")
    print(text)
    print(f"\n{verdict}")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
