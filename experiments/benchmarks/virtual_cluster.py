#!/usr/bin/env python3
"""Ring against parameter server on a virtual cluster of 1 Gbit/s links, held against the formulas.

    experiments/benchmarks/virtual_cluster.py [--psring build/release/bin/psring] [--steps 5] [--realtime] [--out results.md]

33 MB of gradients whose computing takes 2 ms (a recorded workload made for it), all ranks beginning every step together,
so that a step is one exchange: from the first rank's begin to the last rank's end, the median over steps and --repeats.
Figures are *measured*; formulas are *derived* from the link rate that psring measured before each run, with a burst
of the shaper at full speed a phase (experiments/README.md). Needs namespaces (./run doctor); run it on a quiet machine, or
with --realtime (chrt --rr, as root), where what others do meanwhile makes no run invalid.
Exit code 1 where a figure is outside of its tolerance or a run was not valid.
"""
import argparse
import collections
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

TENSORS, TENSOR_BYTES = 33, 1_000_000
M = TENSORS * TENSOR_BYTES
WORKLOAD = "# batch: 1\n# device: none\n# forward_ms: 1\n# backward_ms: 1\nname,bytes,ready_ms\n" + "".join(
    f"t{i},{TENSOR_BYTES},0\n" for i in range(TENSORS))

# name, strategy's flags, formula in units of M/B for N workers, phases in which a burst passes
RING = ("ring", ["--strategy", "ring"], lambda n: 2 * (n - 1) / n, 1)
SERIAL = ["--strategy", "ps-sync", "--ps_schedule", "serial", "--server_placement"]
# Replies begin when a bucket is complete, so buckets are small.
PIPELINED = ["--strategy", "ps-sync", "--ps_schedule", "pipelined", "--bucket_mb", "1", "--server_placement"]
CASES = {
    "dedicated, serial": (SERIAL + ["dedicated"], lambda n: 2 * n, 2),
    "rank 0, serial": (SERIAL + ["rank0"], lambda n: 2 * (n - 1), 2),
    "dedicated, pipelined": (PIPELINED + ["dedicated"], lambda n: n, 1),
    "rank 0, pipelined": (PIPELINED + ["rank0"], lambda n: n - 1, 1),
}
# case, workers, what it should be over ring, tolerance of that
EXPECTED = [("dedicated, serial", 4, 16 / 3, .05), ("dedicated, serial", 2, 4.0, .05), ("rank 0, serial", 4, 4.0, .05),
            ("dedicated, pipelined", 4, 8 / 3, .10), ("dedicated, pipelined", 2, 2.0, .10), ("rank 0, pipelined", 4, 2.0, .10)]
FORMULA_TOLERANCE, WIRE_TOLERANCE = .05, .04

Run = collections.namedtuple("Run", "exchange_s wire_over_payload bytes_per_s latency_s add burst valid note")


# TCP's connections need some steps until they carry what their links do.
WARMUP_STEPS = 5


def run(command, folder, flags, workers, steps, name):
    out = folder / name
    command = [*command, "train", "--workload", str(folder / "33mb.csv"), "--workers", str(workers), "--link", "1gbit",
               "--shaping", "netns", "--align_steps", "--steps", str(steps), "--warmup_steps", str(WARMUP_STEPS), "--out", str(out), *flags]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    by_step = collections.defaultdict(list)
    for line in (out / "steps.jsonl").read_text().splitlines():
        record = json.loads(line)
        if not record["warmup"]:
            by_step[record["step"]] += record["buckets"]
    exchanges = [(max(b["end_ns"] for b in buckets) - min(b["begin_ns"] for b in buckets)) / 1e9
                 for buckets in by_step.values()]
    figures = json.loads((out / "summary.json").read_text())[0]["figures"]
    link = json.loads((out / "manifest.json").read_text())["link"]
    wires = link["wires"]
    return Run(exchanges, figures["wire_tx_bytes_per_worker"] / figures["payload_tx_bytes_per_worker"],
               wires["mb_per_s"] * 1e6, wires["latency_us"] / 1e6, 1e-9 / wires["add_gb_per_s"], link["burst_bytes"],
               figures["valid"], figures["note"] or "")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--psring", default="build/release/bin/psring")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--realtime", action="store_true", help="ahead of all other processes, as root")
    parser.add_argument("--out", help="also write the table to this file")
    options = parser.parse_args()
    command = (["chrt", "--rr", "1"] if options.realtime else []) + [str(pathlib.Path(options.psring).resolve())]

    wanted = {(name, workers) for name, workers, _, _ in EXPECTED}
    wanted |= {("ring", workers) for _, workers in wanted}
    runs = collections.defaultdict(list)
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        (folder / "33mb.csv").write_text(WORKLOAD)
        for repeat in range(options.repeats):
            for name, workers in sorted(wanted):
                flags = RING[1] if name == "ring" else CASES[name][0]
                print(f"round {repeat + 1}/{options.repeats}: {name} x {workers}", file=sys.stderr)
                runs[name, workers].append(run(command, folder, flags, workers, options.steps,
                                               f"{name}-{workers}-{repeat}".replace(" ", "").replace(",", "-")))

    failures, lines = [], []

    def check(ok, text):
        if not ok:
            failures.append(text)
        return "" if ok else " **outside**"

    lines += ["| case | workers | exchange, ms (m) | formula, ms (d) | off | wire bytes / payload (m) |", "|---|---|---|---|---|---|"]
    measured = {}
    for (name, workers), of_case in sorted(runs.items()):
        factor, phases = (RING[2], RING[3]) if name == "ring" else CASES[name][1:]
        for one in of_case:
            why = [part for part in one.note.split("; ") if not (options.realtime and part.startswith("other programs used"))]
            check(one.valid or not why, f"{name} x {workers}: not valid: {'; '.join(why)}")
        seconds = measured[name, workers] = statistics.median(s for one in of_case for s in one.exchange_s)
        rate = statistics.median(one.bytes_per_s for one in of_case)
        formula = (factor(workers) * M - phases * of_case[0].burst) / rate
        # A pipelined server's last bucket comes back when all has been pushed.
        if "pipelined" in name:
            formula += factor(workers) * TENSOR_BYTES / rate
        wire = statistics.median(one.wire_over_payload for one in of_case)
        off = seconds / formula - 1
        mark = check(abs(off) <= FORMULA_TOLERANCE, f"{name} x {workers}: {off:+.1%} from its formula")
        wire_mark = check(abs(wire - 1) <= WIRE_TOLERANCE, f"{name} x {workers}: wire bytes {wire:.3f} of payload")
        lines.append(f"| {name} | {workers} | {seconds * 1e3:.1f} | {formula * 1e3:.1f} | {off:+.1%}{mark} | {wire:.4f}{wire_mark} |")
    lines += ["", "| over ring | workers | measured | theory | off |", "|---|---|---|---|---|"]
    for name, workers, theory, tolerance in EXPECTED:
        ratio = measured[name, workers] / measured["ring", workers]
        mark = check(abs(ratio / theory - 1) <= tolerance, f"{name} x {workers}: {ratio:.2f} times ring, not {theory:.2f}")
        lines.append(f"| {name} | {workers} | {ratio:.2f} | {theory:.2f} | {ratio / theory - 1:+.1%}{mark} |")
    text = "\n".join(lines)
    print(text)
    if options.out:
        pathlib.Path(options.out).write_text(text + "\n")
    for failure in failures:
        print(f"outside: {failure}", file=sys.stderr)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
