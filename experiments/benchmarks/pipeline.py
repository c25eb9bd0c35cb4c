#!/usr/bin/env python3
"""Compares psring's pipelines with PyTorch's torch.distributed.pipelining, and their steps with the simulated ones.

    ./run build && experiments/benchmarks/pipeline.py [--parts speed,walk] [--rounds 3] [--torch_python torch/bin/python]

speed: a transformer in two stages of equally many blocks, a process with one computing thread each, over TCP on the loopback;
gpipe and 1f1b; the same micro-batches, AdamW, float32. PyTorch (ScheduleGPipe, Schedule1F1B) is measured over Gloo at its best:
for each schedule the fastest of eager, the fused optimizer and torch.compile of the stages and the loss, then of the
allocators, each in two interleaved rounds. Beside them, what two processes compute at most: one process without stages, and two
that exchange nothing, each with as many micro-batches. All contenders alternate; the first round does not count.

walk: the mean step of runs, and the part of it in which a stage waits for others (bubble), beside those of the walk of their
program with the runs' own computing times: 2 processes that compute, and replayed computing with 4 and 8 on a virtual cluster
(network namespaces; root). Exit code 1 if a step is more than 5%, or a bubble more than .02, from the walk's, or bytes differ.

Writes the sections Setting, Speed, Causes and Walk of pipelines.md in --out; others are kept. If other programs used more than
5% of the processors, nothing is written and the exit code is 1, unless --any_load is given; the page states the load.
"""
import json
import pathlib
import re
import statistics
import sys
import tempfile
import typing

import peers
import runs
import training

PEER = "pytorch_pipeline_peer.py"
SCHEDULES = {"1f1b": "Schedule1F1B", "gpipe": "ScheduleGPipe"}
STAGES, TARGET = 2, 1.15
LAYERS_OF_A_BLOCK = 7  # of a transformer: two norms, four linear layers, attention
BLOCKS = {"gpt-nano": 4, "gpt-mini": 6}
MOST_OFF, MOST_BUBBLE_OFF = .05, .02
LOOPBACK = {"link": "40gbit", "latency_us": 20, "fraction": .95}  # what a message takes there is little
VIRTUAL = {"link": "1gbit", "latency_us": 50, "fraction": .95}
LOSS_BYTES = 16  # the last stage sends the step's score to each other one
PAGE, HEAD = "pipelines.md", "# Pipelines\n\nSections are written by experiments/benchmarks/pipeline.py.\n\n"


class Pipelines(training.Contenders):
    """Contenders of one global batch, and the last row of summary.csv of each of psring's."""

    def __init__(self, args):
        work = training.WORK[args.model]._replace(batch=args.batch, warmup_steps=args.warmup_steps, steps=args.steps)
        super().__init__(args, args.model, work)
        self.common += ["--micro_batches", str(args.micro_batches)]
        self.rows = {}

    def add(self, name, run, base=""):
        def kept():
            self.rows[name] = run()
            return self.rows[name]
        super().add(name, kept, base)

    def torch(self, program, code, env):
        return peers.torch(self.args, PEER, *self.common, "--program", program, *code, env=env)


def psring_name(program):
    return f"psring {program}, {STAGES} stages"


def contenders(args, with_torch):
    found = Pipelines(args)
    cut = 1 + LAYERS_OF_A_BLOCK * (BLOCKS[args.model] // STAGES)  # layer 0 is the embedding
    found.add_psring("psring single, 1 process", "single")
    found.add_psring("psring none, 2 processes", "none", "--workers", STAGES)
    for program in SCHEDULES:
        found.add_psring(psring_name(program), "single", "--workers", STAGES, "--pp", STAGES, "--program", program, "--cuts", cut,
                         "--transport", "tcp")
    if with_torch:
        for program, schedule in SCHEDULES.items():
            name, code, env = found.best_torch(program, f"{schedule}")
            if program == "1f1b":
                found.add_torch(f"PyTorch ({name}), 1 process", "psring single, 1 process", "single", code, env)
            found.add_torch(f"PyTorch {schedule} at its best ({name}), {STAGES} stages", psring_name(program), program, code, env)
    return found


def setting(args, found, versions, others):
    tokens = args.micro_batches * args.batch * (256 if args.model == "gpt-mini" else 64)
    return [f"{runs.measured_on()}, no GPU; {versions}; {args.model}, {args.micro_batches} micro-batches of {args.batch} samples "
            f"({tokens:,} tokens) per step, {found.steps} steps after {args.warmup_steps} of warm-up, {found.work.text}; {STAGES} "
            f"stages of {BLOCKS[args.model] // STAGES} blocks, the first with the embedding and the last with the tied output "
            "layer, a process and a core each, one computing thread per process. psring: TCP, PyTorch: Gloo, both on the loopback. "
            f"{runs.congestion_control()} {args.rounds} interleaved rounds after one that does not count. {others}"]


def table(found, results):
    return ["Tokens/s as median (lowest to highest); loss: mean of the last tenth of the steps; peak memory of the largest rank, "
            "MiB (VmHWM). All *measured*.", "", *found.table(results), *found.variants()]


def losses(found):
    """(A sentence, problems): psring's stages compute what one process does, and PyTorch's loss is alike."""
    one = found.loss["psring single, 1 process"]
    stages = max(abs(loss / one - 1) for name, loss in found.loss.items() if name.startswith("psring") and "stages" in name)
    text = f"The losses of psring's pipelines are within {stages:.1e} of one process's"
    problems = [] if stages < 1e-4 else ["the losses of psring's pipelines differ from one process's"]
    of_torch = [loss for name, loss in found.loss.items() if name.startswith("PyTorch")]
    if of_torch:
        off = max(abs(loss / one - 1) for loss in of_torch)
        same = max(of_torch) / min(of_torch) - 1
        text += (f", those of PyTorch, which draws other initial weights and samples, within {off:.1%} of it, and within "
                 f"{same:.1e} of each other")
        problems += [] if off < .1 else ["PyTorch's loss is not alike"]
    return text + ".", problems


def products_ms(args):
    """Of one micro-batch in one process, or None."""
    try:
        return json.loads(runs.run([runs.PSRING.with_name("step_limit"), args.model, args.batch, 2]))["limit_ms"]
    except (SystemExit, OSError) as failure:
        print(f"omitted: step_limit: {str(failure).strip().splitlines()[-1]}", file=sys.stderr)
        return None


def causes(args, found, results, products):
    """Where a step's time goes, as lines. products: see products_ms."""
    parts, single = args.micro_batches, "psring single, 1 process"
    tokens = parts * args.batch * (256 if args.model == "gpt-mini" else 64)
    step = {name: 1e3 * tokens / statistics.median(values) for name, values in results.items()}
    slower = STAGES * statistics.median(results[single]) / statistics.median(results["psring none, 2 processes"])
    filled = (parts + STAGES - 1) / (parts * STAGES)  # of one process's computing, with equal stages
    rows = []
    if products:
        rows.append(["only the matrix products of a process, in two equal stages (d)", f"{products * parts * filled:,.0f}"])
    rows += [["all of one process's computing, in two equal stages (d)", f"{step[single] * filled:,.0f}"],
             [f"the same, {slower:.2f} times as slow, as two processes at once are (d)", f"{step[single] * filled * slower:,.0f}"]]
    for name in (name for name in step if "PyTorch" in name and "1 process" in name):
        rows.append(["all of PyTorch's computing in one process, in two equal stages (d)", f"{step[name] * filled:,.0f}"])
    rows += [[f"{name} (m)", f"{ms:,.0f}"] for name, ms in step.items() if "stages" in name]
    lines = [*runs.table("what | a step, ms", rows), ""]
    for program in SCHEDULES:
        row = found.rows[psring_name(program)]
        lines.append(f"* **psring {program}**, last round, mean over both ranks: step {float(row['step_ms']):,.0f} ms, computing "
                     f"{float(row['compute_ms']):,.0f}, exposed messages {float(row['exposed_comm_ms']):.1f}, bubble "
                     f"{number(row['bubble_fraction']):.1%} of the step (simulated {number(row['predicted_bubble_fraction']):.1%}; "
                     f"equal stages have {(STAGES - 1) / (parts + STAGES - 1):.1%}).")
    for name in (name for name in results if "at its best" in name):
        ratio = runs.paired_ratio(results[found.base[name]], results[name])
        lines.append(f"* **{found.base[name]} is {ratio:.2f} times as fast as {name.split(' at its best')[0]}** (target {TARGET})"
                     f"{'.' if ratio >= TARGET else ': **missed**.'}")
        if ratio < TARGET and products:
            limit = step[name] / (products * parts * filled)
            lines[-1] += (f" The products alone, which nothing hides, allow at most {limit:.2f} times PyTorch's speed; the target "
                          f"leaves {step[name] / TARGET - products * parts * filled:,.0f} ms of a step for all else.")
    return lines


def number(text):
    return float(text or "nan")


def speed(args):
    version = peers.torch_version(args)
    found = contenders(args, version)
    results, others = runs.interleave(found.measure, args.rounds, args.model)
    text, problems = losses(found)
    save(args, "Setting", setting(args, found, f"PyTorch {version or 'absent'}", others))
    save(args, "Speed", [*table(found, results), "", text])
    save(args, "Causes", causes(args, found, results, products_ms(args)))
    return problems


class Case(typing.NamedTuple):
    flags: list  # of train
    stages: int
    micro_batches: int
    boundary: int  # bytes of a sample
    batch: int
    workers: int = 0  # 0: as many as stages
    program: str = "1f1b"
    network: dict = LOOPBACK  # a cluster of predict
    extra_bytes: int = 0  # that a rank sends per step besides activations and their gradients, mean over ranks

    def ranks(self):
        return self.workers or self.stages

    def replicas(self):
        return self.ranks() // self.stages

    def sent(self):
        """Bytes per step and rank, mean over ranks."""
        of_messages = 2 * self.micro_batches * self.boundary * self.batch + LOSS_BYTES
        return (self.stages - 1) * of_messages / self.stages + self.extra_bytes


REPLAYED_BLOCKS, REPLAYED_BYTES, REPLAYED_BATCH, REPLAYED_BOUNDARY = 8, 400_000, 4, 32_768


def replayed(stages, program, **more):
    return Case(["--workload", "WORKLOAD", "--link", "1gbit", "--steps", 30, "--warmup_steps", 5], stages, 2 * stages,
                REPLAYED_BOUNDARY, REPLAYED_BATCH, program=program, network=VIRTUAL, **more)


def computed(model, program, batch, width, context=1, **more):
    flags = ["--model", model, "--batch", batch, "--transport", "tcp", "--schedule", "constant"]
    return Case([*flags, "--steps", 40, "--warmup_steps", 5], STAGES, 8, 4 * width * context, batch, program=program, **more)


CASES = {
    **{f"mlp, pp2, {program}": computed("mlp", program, 128, 1024) for program in SCHEDULES},
    # Both ranks send the gradient of the embedding of 73 symbols to each other.
    **{f"gpt-nano, pp2, {program}": computed("gpt-nano", program, 12, 128, context=64, extra_bytes=73 * 128 * 4)
       for program in SCHEDULES},
    **{f"replayed, pp4, {program}": replayed(4, program) for program in SCHEDULES},
    "replayed, pp8, 1f1b": replayed(8, "1f1b"),
    # An all-reduce of two sends as many bytes as the stage's gradient has.
    "replayed, dp2xpp4, 1f1b": replayed(4, "1f1b", workers=8, extra_bytes=REPLAYED_BLOCKS * REPLAYED_BYTES // 4)}


def workload_text(batch, boundary, stages):
    """stages: (forward, backward, bytes) of each block, in the order of forward."""
    forward, backward = (sum(part) for part in list(zip(*stages))[:2])
    lines, ready = [], 0
    for i, (_, own, size) in reversed(list(enumerate(stages))):
        ready += own
        lines.append(f"block.{i}.weight,{size},{ready:.6f}")
    return "\n".join([f"# batch: {batch}", "# device: none", f"# activation_bytes: {boundary}", f"# forward_ms: {forward:.6f}",
                      f"# backward_ms: {backward:.6f}", "name,bytes,ready_ms", *lines]) + "\n"


def passes_of(results, case):
    """(forward, backward) of each stage in ms per micro-batch, means over replicas, with the stages' own sums, divided between both
    passes as in the whole model: psring predict divides them so. results: of the ranks, in their order."""
    sums = [[0., 0.] for _ in range(case.stages)]
    for result in results:
        of_stage = sums[result["rank"] // case.replicas()]  # the ranks of a stage are adjacent
        for i, name in enumerate(("forward_ms", "backward_ms")):
            of_stage[i] += result["ddp"][name] / (case.micro_batches * case.replicas())
    forward, backward = (sum(part) for part in zip(*sums))
    return [(sum(one) * forward / (forward + backward), sum(one) * backward / (forward + backward)) for one in sums]


def walk_case(folder, name, case):
    """A training, and the walk of its program with its own computing times."""
    own, run, walk, cluster = (folder / name for name in ("workload.csv", "run", "walk", "cluster.json"))
    own.write_text(workload_text(REPLAYED_BATCH, REPLAYED_BOUNDARY, [(4., 8., REPLAYED_BYTES)] * REPLAYED_BLOCKS))
    layout = ["--workers", case.ranks(), "--pp", case.stages, "--program", case.program, "--micro_batches", case.micro_batches]
    runs.run([runs.PSRING, "train", *(own if flag == "WORKLOAD" else flag for flag in case.flags), *layout, "--no_eval",
              "--strategy", "ring" if case.replicas() > 1 else "single", "--out", run])
    row = runs.read_csv(run, "summary.csv")[0]
    results = [json.loads(path.read_text()) for path in run.glob("records/training-1/*/result-rank*.json")]
    times = passes_of(sorted(results, key=lambda result: result["rank"]), case)
    # A shaped link passes its burst at full speed.
    burst = (json.loads((run / "manifest.json").read_text()).get("link") or {}).get("burst_bytes", 0)
    cluster.write_text(json.dumps({**case.network, "burst_bytes": burst}))
    size = REPLAYED_BYTES * REPLAYED_BLOCKS // case.stages
    (folder / "measured.csv").write_text(workload_text(case.batch, case.boundary, [(*both, size) for both in times]))
    runs.run([runs.PSRING, "predict", "--workload", folder / "measured.csv", *layout, "--cuts",
              ",".join(map(str, range(1, case.stages))), "--strategies", "ring", "--cluster", cluster, "--system",
              "none", "--out", walk])
    simulated = next(one for one in runs.read_csv(walk, "summary.csv") if "pp" in one["layout"])
    return [{"name": name, "step": number(row["step_ms"]), "walk": number(simulated["step_ms"]),
             "bubble": number(row["bubble_fraction"]), "simulated": number(row["predicted_bubble_fraction"]),
             "of_walk": number(simulated["predicted_bubble_fraction"]), "sent": number(row["payload_tx_bytes_per_worker"]),
             "counted": case.sent(), "foreign": number(row["foreign_cpu_pct"]), "not_valid": ""}]


def walk_report(rows):
    cells, problems = [], []
    for row in rows:
        longer, waits = row["step"] / row["walk"] - 1, row["bubble"] - row["simulated"]  # not a number: not measured
        wrong = [f"step {longer:+.1%}"] * (not abs(longer) <= MOST_OFF)
        wrong += [f"bubble {waits:+.3f}"] * (not abs(waits) <= MOST_BUBBLE_OFF)
        wrong += [f"{row['sent']:.0f} bytes"] * (abs(row["sent"] - row["counted"]) >= 1)
        problems += [f"{row['name']}: {', '.join(wrong)}"] * bool(wrong)
        cells.append([row["name"], f"{row['step']:.2f}", f"{row['walk']:.2f}", f"{longer:+.1%}",
                      f"{row['bubble']:.3f}", f"{row['simulated']:.3f}", f"{row['of_walk']:.3f}", f"{row['sent']:,.0f}",
                      f"{row['counted']:,.0f}", f"{row['foreign']:.0f}%" + " **outside**" * bool(wrong)])
    return [f"{runs.measured_on()}. A step is the mean over ranks. *walk*: `psring predict --pp` with the measured computing time "
            "of each stage, equal in all micro-batches, on links of the run's rate and burst, without loading and updates. "
            "*simulated*: the column predicted_bubble_fraction of the run: a walk with the times that forward, backward and "
            "messages took, as a part of the measured step. Replayed: "
            f"{REPLAYED_BLOCKS} equal blocks of 4 and 8 ms, on links of 1 Gbit/s.", "",
            *runs.table("run | step, ms (m) | walk, ms (s) | off (d) | bubble (m) | simulated (s) | of the walk (s) | bytes that a "
                        "rank sends (m) | counted (d) | processor time of others", cells), "",
            f"Limits: steps within {MOST_OFF:.0%}, bubbles within {MOST_BUBBLE_OFF}, bytes equal. "
            f"{'All are within.' if not problems else 'Outside: ' + '; '.join(problems) + '.'}"], problems


def walk(args):
    rows = []
    for name, case in CASES.items():
        if not re.search(args.cases, name):
            continue
        print(name, file=sys.stderr)
        with tempfile.TemporaryDirectory() as folder:
            rows += walk_case(pathlib.Path(folder), name, case)
        runs.require_quiet(name, rows[-1]["foreign"])
    if not rows:
        sys.exit(f"no case matches {args.cases}; there are: {'; '.join(CASES)}")
    lines, problems = walk_report(rows)
    save(args, "Walk", lines)
    return problems


def save(args, title, lines):
    runs.save_section(args.out / PAGE, HEAD, title, lines)


def main():
    parser = runs.flags(__doc__, rounds=3, parts=("speed,walk", "of speed, walk"), model="gpt-mini", batch=(4, "of a micro-batch"),
                        micro_batches=8, steps=3, warmup_steps=1, cases=(".", "of walk: those whose names match"), any_load=(
                            False, "write figures although other programs were busy"), out=runs.RESULTS)
    peers.add_flags(parser)
    args = parser.parse_args()
    parts = {"speed": speed, "walk": walk}
    if not set(args.parts.split(",")) <= set(parts) or args.model not in BLOCKS:
        parser.error(f"--parts: of {','.join(parts)}; --model: of {', '.join(BLOCKS)}")
    return runs.measure_parts(args, parts)


if __name__ == "__main__":
    sys.exit(main())
