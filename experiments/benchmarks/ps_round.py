#!/usr/bin/env python3
"""Measures rounds of parameter servers and writes experiments/results/ps_round.md.

    ./run build && experiments/benchmarks/ps_round.py [--parts limits,peers] [--rounds 8] [--torch_python torch/bin/python]
                                                      [--tensorflow_python tf/bin/python] [--ps_lite FOLDER]

A round: every worker pushes a gradient and receives the updated weights (plain SGD, one server in a process of its own).

limits: `psring bench` compares psring's rounds with the limits of the machine.

peers: rounds of psring, PyTorch's RPC, ps-lite and TensorFlow's ParameterServerStrategy alternate; the first of each is a warm-up,
and each checks its weights. TensorFlow's is asynchronous: a worker does not wait for the others, and its server adds each gradient
when it arrives. What is not installed is omitted.

Other sections of the page are kept.
"""
import statistics
import tempfile

import peers
import runs

WARMUP = 3
LIMITS, PEERS = "Compared with the limits of the machine", "Compared with other parameter servers"  # headings
HEAD = ["# Rounds of one parameter server", "", "All *measured*. Written by experiments/benchmarks/ps_round.py, except the profile.",
        ""]
WHOLE, PARTS = "ps-lite, one key", "ps-lite, keys of 4 MiB"
BENCH = ["--collective", "ps_push_pull"]
WIRES = {("shm", "grpc"): "shared memory", ("tcp", "grpc"): "gRPC", ("tcp", "stream"): "stream"}


def limits_section(args):
    flags = [*BENCH, "--sizes", args.limit_sizes, "--workers", args.workers, "--transport", "shm,tcp", "--server_wire",
             "grpc,stream", "--limits", "-n",
             str(args.iterations * args.rounds), "--rounds", str(args.rounds)]
    results, manifest = runs.bench(args.psring, flags)
    foreign = max(row["foreign_cpu_pct"] for row in results)
    runs.require_quiet("psring bench", foreign)
    rows = [[row["workers"], WIRES[row["transport"], row["backend"]], row["size"], f"{row['out_of_place']['time']:.1f}",
             f"{row['out_of_place']['bus_bw']:.2f}", f"{row['percent_of_limit']:.1f}",
             f"{row['size'] / row['limit_bus_bw'] / 1e3:.1f}", row["buffers"]]  # busbw in GB/s
            for row in sorted(results, key=lambda row: (row["workers"], row["transport"], row["backend"], row["size"]))]
    return [
        f"## {LIMITS}", "", f"{runs.measured_on()}, revision {manifest['versions']['revision']}.", "",
        f"    psring bench {' '.join(flags)}", "",
        "Real rounds alternate with those that measure the limit, and weights are checked. Times are per call of the slowest "
        f"rank, the median over the iterations of all rounds. Over TCP, the limit is the same round "
        "over plain TCP; in shared memory, it is one pass that adds all gradients and writes the updated weights of every worker. "
        f"Other programs used at most {foreign:.0f}% of the processors.", "",
        *runs.table("workers | wire | size, B | time, us | busbw, GB/s | % of limit | limit, us | buffers", rows), ""]


def psring_round(args, workers, *flags):
    (row,), _ = runs.bench(args.psring, [*BENCH, *flags, "--sizes", args.bytes, "--workers", workers, "-n", args.iterations, "-w",
                                         WARMUP, "--rounds", 1])
    return row["out_of_place"]["time"]


def contenders(args, workers, with_torch, with_tensorflow, ps_lite):
    """{name: function that returns the median time of a round in us}"""
    common = ["--workers", workers, "--round_bytes", args.bytes, "--steps", args.iterations, "--warmup_steps", WARMUP]
    own = {"shm": ["--transport", "shm"], "tcp": ["--transport", "tcp"],
           "its stream": ["--transport", "tcp", "--server_wire", "stream"]}
    found = {f"psring over {name}": lambda flags=flags: psring_round(args, workers, *flags) for name, flags in own.items()}
    if with_torch:
        found["PyTorch RPC"] = lambda: statistics.median(peers.torch(args, "pytorch_server_peer.py", *common)["times_us"])
    if ps_lite:
        for name, part in ((WHOLE, args.bytes), (PARTS, 4 << 20)):
            found[name] = lambda part=part: statistics.median(
                peers.ps_lite(ps_lite, workers, args.bytes, part, WARMUP, args.iterations))
    if with_tensorflow:
        found["TensorFlow (asynchronous)"] = lambda: statistics.median(
            peers.tensorflow(args, *common, "--steps_per_call", 2)["times_us"])
    return found


def peers_section(args, versions, *programs):
    lines = [f"## {PEERS}", "", f"{runs.measured_on()}. {runs.congestion_control()}", "",
             f"{versions}. A gradient of {args.bytes} B, float32, one computing thread per process. Medians of "
             f"{args.iterations} iterations; {args.rounds} interleaved rounds; ms as median (lowest to highest).", ""]
    for workers in map(int, args.workers.split(",")):
        results, others = runs.interleave(contenders(args, workers, *programs), args.rounds, f"{workers} workers")
        rows = [[name, runs.spread([v / 1e3 for v in values], ".1f"),
                 *("" if name.startswith("psring") else f"{runs.paired_ratio(values, results[f'psring over {transport}']):.2f}"
                   for transport in ("shm", "tcp")), ", ".join(f"{v / 1e3:.1f}" for v in values)]
                for name, values in results.items()]
        lines += [f"### {workers} worker{'s' * (workers > 1)}", "", others, "",
                  *runs.table("server | ms | ratio to psring over shm (paired median) | ratio to psring over tcp | each round, ms",
                              rows), ""]
    return lines


def sections_of(text):
    """{heading: lines of the section} of a page."""
    sections, lines = {}, []
    for line in text.splitlines():
        if line.startswith("## "):
            lines = sections.setdefault(line[3:], [])
        lines.append(line)
    return sections


if __name__ == "__main__":
    parser = runs.flags(__doc__, psring=runs.PSRING, parts=("limits,peers", "sections to measure"), workers="1,2,4", rounds=8,
                        iterations=(8, "of a round"),
                        bytes=(25 << 20, "of a gradient, compared with other servers"),
                        limit_sizes=("25M,100M", "of a gradient, compared with the limits"),
                        ps_lite=("", "a folder with ps-lite, built"), out=runs.RESULTS)
    peers.add_flags(parser)
    args = parser.parse_args()
    if args.bytes < 4 or args.bytes % 4:
        parser.error("--bytes must be a multiple of 4")
    page = args.out / "ps_round.md"
    sections = sections_of(page.read_text()) if page.exists() else {}
    if "limits" in args.parts:
        sections[LIMITS] = limits_section(args)
    if "peers" in args.parts:
        torch, tensorflow = peers.torch_version(args), peers.tensorflow_version(args)
        with tempfile.TemporaryDirectory() as folder:
            ps_lite = peers.build_ps_lite(args.ps_lite, folder)
            versions = (f"PyTorch {torch or 'absent'}, TensorFlow {tensorflow or 'absent'}, ps-lite "
                        f"{'built from the folder given with `--ps_lite`' if ps_lite else 'absent'}")
            sections[PEERS] = peers_section(args, versions, torch, tensorflow, ps_lite)
    runs.write_result("ps_round.md", [*HEAD, *(line for section in sections.values() for line in section)], args.out)
