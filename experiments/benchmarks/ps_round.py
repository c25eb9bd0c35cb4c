#!/usr/bin/env python3
"""Measures rounds of parameter servers and writes experiments/results/ps_round.md.

    ./run build && experiments/benchmarks/ps_round.py [--rounds 8] [--torch_python torch/bin/python]
                                                      [--tensorflow_python tf/bin/python] [--ps_lite FOLDER]

A round: every worker pushes a gradient and receives the updated weights (plain SGD, one server in a process of its own). First
`psring bench` compares psring's rounds with the limits of the machine. Then rounds of psring, PyTorch's RPC, ps-lite and
TensorFlow's ParameterServerStrategy alternate; the first of each is a warm-up, and each checks its weights. TensorFlow's is
asynchronous: a worker does not wait for the others, and its server adds each gradient when it arrives. What is not installed is
omitted.
"""
import pathlib
import statistics
import sys
import tempfile

import peers
import runs

WARMUP = 3
WHOLE, PARTS = "ps-lite, one key", "ps-lite, keys of 4 MiB"


def bench(args, *flags):
    """Returns (rows of bench.json, manifest, lines about the limits) of a bench of the server's round."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "run"
        runs.run([args.psring, "bench", "--collective", "ps_push_pull", *flags, "--out", out])
        return runs.read_json(out, "bench.json")["results"], runs.read_json(out, "manifest.json")


def limits_section(args):
    flags = ["--sizes", args.limit_sizes, "--workers", args.workers, "--transport", "shm,tcp", "--limits", "-n",
             str(args.iterations * args.rounds), "--rounds", str(args.rounds)]
    results, manifest = bench(args, *flags)
    foreign = [row["foreign_cpu_pct"] for row in results]
    runs.require_quiet("psring bench", max(foreign))
    rows = [[row["workers"], row["transport"], row["size"], f"{row['out_of_place']['time']:.1f}",
             f"{row['out_of_place']['bus_bw']:.2f}", f"{row['percent_of_limit']:.1f}",
             f"{row['size'] / row['limit_bus_bw'] / 1e3:.1f}", row["buffers"]]  # busbw in GB/s
            for row in sorted(results, key=lambda row: (row["workers"], row["transport"], row["size"]))]
    return [
        "# Rounds of one parameter server", "",
        f"{runs.measured_on()}, revision {manifest['versions']['revision']}. All *measured*. Written by "
        "experiments/benchmarks/ps_round.py.", "", "## Compared with the limits of the machine", "",
        "    psring bench --collective ps_push_pull " + " ".join(flags), "",
        "Real rounds alternate with those that measure the limit, and weights are checked. Times are per call of the slowest "
        f"rank, the median over the iterations of all rounds. Over TCP, the limit is the same round "
        "over plain TCP; in shared memory, it is one pass that adds all gradients and writes the updated weights of every worker. "
        f"Other programs used at most {max(foreign):.0f}% of the processors.", "",
        *runs.table("workers | transport | size, B | time, us | busbw, GB/s | % of limit | limit, us | buffers", rows), ""]


def psring_round(args, workers, transport):
    (row,), _ = bench(args, "--sizes", str(args.bytes), "--workers", str(workers), "--transport", transport, "-n",
                      str(args.iterations), "-w", str(WARMUP), "--rounds", "1")
    return row["out_of_place"]["time"]


def contenders(args, workers, with_torch, with_tensorflow, ps_lite):
    """{name: function that returns the median time of a round in us}"""
    common = ["--workers", str(workers), "--round_bytes", str(args.bytes), "--steps", str(args.iterations), "--warmup_steps",
              str(WARMUP)]

    def median(result):
        return statistics.median(result["times_us"])

    found = {f"psring over {transport}": lambda transport=transport: psring_round(args, workers, transport)
             for transport in ("shm", "tcp")}
    if with_torch:
        found["PyTorch RPC"] = lambda: median(peers.torch(args, "pytorch_server_peer.py", *common))
    if ps_lite:
        for name, part in ((WHOLE, args.bytes), (PARTS, 4 << 20)):
            found[name] = lambda part=part: statistics.median(
                peers.ps_lite(ps_lite, workers, args.bytes, part, WARMUP, args.iterations))
    if with_tensorflow:
        found["TensorFlow (asynchronous)"] = lambda: median(peers.tensorflow(args, *common, "--steps_per_call", "2"))
    return found


def peers_section(args, versions, *programs):
    lines = ["## Compared with other parameter servers", "",
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


def main():
    parser = runs.flags(__doc__)
    parser.add_argument("--psring", default=runs.PSRING)
    parser.add_argument("--workers", default="1,2,4")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=8, help="of a round")
    parser.add_argument("--bytes", type=int, default=25 << 20, help="of a gradient, compared with other servers")
    parser.add_argument("--limit_sizes", default="25M,100M", help="of a gradient, compared with the limits")
    parser.add_argument("--ps_lite", default="", help="a folder with ps-lite, built")
    parser.add_argument("--out", type=pathlib.Path, default=runs.RESULTS, help="folder for the result")
    peers.add_flags(parser)
    args = parser.parse_args()
    if args.rounds < 1 or args.iterations < 1 or args.bytes < 4 or args.bytes % 4:
        parser.error("--rounds and --iterations must be at least 1, --bytes a multiple of 4")
    torch, tensorflow = peers.torch_version(args), peers.tensorflow_version(args)
    with tempfile.TemporaryDirectory() as folder:
        ps_lite = peers.build_ps_lite(args.ps_lite, folder)
        versions = (f"PyTorch {torch or 'absent'}, TensorFlow {tensorflow or 'absent'}, ps-lite "
                    f"{'built from the folder given with `--ps_lite`' if ps_lite else 'absent'}")
        lines = limits_section(args) + peers_section(args, versions, torch, tensorflow, ps_lite)
    runs.write_result("ps_round.md", lines, args.out)


if __name__ == "__main__":
    sys.exit(main())
