"""Steps of shards, divided matrices and divided sequences beside the walk of their programs: the part walk of sharding.py.

A case is trained, and then predicted from its own computing time: `psring predict --layouts LAYOUT --system none` walks the lowered
program with this time, in which exchanges take what the link's rate and latency give.
"""
import json
import pathlib
import sys
import tempfile
import typing

import pipeline
import runs

MOST_OFF, MOST_BYTES_OFF = .05, .02
SMALL, LARGE = 16 << 10, 2 << 20  # bytes of the exchanges to which the loopback is fitted


class Shape(typing.NamedTuple):
    """A transformer: as its tensors are, of float32."""
    blocks: int
    width: int
    heads: int
    context: int
    vocabulary: int = 73  # of the King James Bible

    def block(self):
        h = self.width
        matrices = [("mlp.c_proj", h, 4 * h * h), ("mlp.c_fc", 4 * h, 4 * h * h), ("ln_2", h, h), ("attn.c_proj", h, h * h),
                    ("attn.c_attn", 3 * h, 3 * h * h), ("ln_1", h, h)]  # biases and weights
        return [(f"{name}.{kind}", values) for name, *both in matrices for kind, values in zip(("bias", "weight"), both)]


MODELS = {"gpt-nano": Shape(4, 128, 4, 64), "gpt-mini": Shape(6, 384, 6, 256)}
BLOCKS, BLOCK_BYTES, BOUNDARY, TOKENS, BLOCK_MS = 8, 400_000, 32_768, 64, (4., 8.)  # of what is replayed


class Case(typing.NamedTuple):
    layout: str  # of predict --layouts
    flags: list  # of train, without the layout
    axes: dict  # of the layout: "dp", "tp", "cp"
    strategy: str = "ring"
    micro_batches: int = 2
    batch: int = 4  # of a micro-batch
    shape: Shape = None  # None: the units of its shards are all that counts
    kind: str = ""  # --context_parallel
    link: str = ""  # of a virtual cluster; else the loopback
    shares_cores: bool = False  # more processes than cores: no limits
    runs: int = 1  # of which the one with the median ratio counts

    def workers(self):
        return self.axes.get("dp", 1) * self.divides()

    def divides(self):
        return self.axes.get("tp", 1) * self.axes.get("cp", 1)


def layout_of(axes):
    return "x".join(f"{name}{ranks}" for name, ranks in axes.items())


def case(axes, flags, **more):
    return Case(layout_of(axes), flags, axes, **more)


def computed(axes, model="gpt-mini", context=0, steps=8, warmup_steps=2, **more):
    shape = MODELS[model]._replace(**({"context": context} if context else {}))
    flags = ["--model", model, "--optimizer", "sgd", "--schedule", "constant", "--steps", steps, "--warmup_steps", warmup_steps]
    flags += ["--context", context] if context else []
    return case(axes, flags, shape=shape if len(axes) > 1 or "dp" not in axes else None, **more)


def replayed(workers, strategy):
    return case({"dp": workers}, ["--workload", "WORKLOAD", "--steps", 30, "--warmup_steps", 5], strategy=strategy, link="1gbit")


def long(kind, ranks=2, **more):
    return computed({"cp": ranks}, context=4096, steps=2, warmup_steps=1, batch=ranks // 2, kind=kind, **more)


SHARDS = ("zero2", "fsdp")
CASES = {
    **{f"gpt-mini, dp2 {strategy}": computed({"dp": 2}, strategy=strategy) for strategy in SHARDS},
    **{f"replayed, dp{workers} {strategy}": replayed(workers, strategy) for workers in (4, 8) for strategy in SHARDS},
    "gpt-mini, tp2": computed({"tp": 2}, runs=5),
    "gpt-mini, tp2, 1 Gbit/s": computed({"tp": 2}, link="1gbit"),
    **{f"gpt-nano, {layout_of(axes)}, 1 Gbit/s": computed(axes, "gpt-nano", steps=30, warmup_steps=5, batch=12, link="1gbit",
                                                          shares_cores=True) for axes in ({"tp": 4}, {"dp": 2, "tp": 2})},
    **{f"gpt-mini, 4096 tokens, cp2 {kind}": long(kind) for kind in ("ring", "contiguous", "ulysses")},
    "gpt-mini, 4096 tokens, cp2 ring, 1 Gbit/s": long("ring", link="1gbit"),
    "gpt-mini, 4096 tokens, cp4 ring": long("ring", ranks=4, shares_cores=True),
    "gpt-nano, 1024 tokens, cp4 ring, 1 Gbit/s": computed({"cp": 4}, "gpt-nano", context=1024, batch=2, link="1gbit", kind="ring",
                                                          shares_cores=True)}


def transformer_text(shape, batch, forward, backward):
    """A workload with the tensors of `shape`, whose blocks take equally long: what embedding and logits take is little."""
    rows = [("transformer.ln_f.bias", shape.width, 0.), ("transformer.ln_f.weight", shape.width, 0.)]
    each, own = backward / shape.blocks, shape.block()
    for block in reversed(range(shape.blocks)):
        done = 0
        for name, values in own:
            done += values
            rows.append((f"transformer.h.{block}.{name}", values,
                         each * (shape.blocks - 1 - block + done / sum(size for _, size in own))))
    rows += [("transformer.wpe.weight", shape.context * shape.width, backward),
             ("transformer.wte.weight", shape.vocabulary * shape.width, backward)]
    return "\n".join([*header(batch, shape.context, 4 * shape.context * shape.width, shape.heads), f"# forward_ms: {forward:.6f}",
                      f"# backward_ms: {backward:.6f}", "name,bytes,ready_ms",
                      *(f"{name},{4 * values},{ready:.6f}" for name, values, ready in rows)]) + "\n"


def header(batch, tokens, boundary, heads):
    return [f"# batch: {batch}", "# device: none", f"# tokens_per_sample: {tokens}", f"# activation_bytes: {boundary}",
            f"# heads: {heads}"]


def units_text(units, batch, forward, backward):
    """A workload of the units that a rank has shards of, {elements} in the order of backward; time is proportional to them. If the
    last unit has a normalization only, its logits are products with the first one's matrix, which stays for the step."""
    lines, done = [], 0
    for i, elements in enumerate(units):
        done += elements
        lines.append(f"block.{len(units) - 1 - i}.weight,{4 * elements},{backward * done / sum(units):.6f}")
    return "\n".join([*header(batch, TOKENS, BOUNDARY, 8), f"# forward_ms: {forward:.6f}", f"# backward_ms: {backward:.6f}",
                      "name,bytes,ready_ms", *lines]) + "\n"


def passes_ms(row, results, of):
    """Of a micro-batch, what the whole model would compute: (forward, backward). row: of summary.csv, whose computing time is
    without waits; results: of the ranks, which say how it divides."""
    forward, backward = (sum(result["ddp"][name] for result in results) for name in ("forward_ms", "backward_ms"))
    whole = pipeline.number(row["compute_ms"]) / of.micro_batches * of.divides()
    return whole * forward / (forward + backward), whole * backward / (forward + backward)


def workload_of(row, results, of):
    forward, backward = passes_ms(row, results, of)
    if of.shape:
        return transformer_text(of.shape, of.batch, forward, backward)
    return units_text(results[0]["bucket_elements"], of.batch, forward, backward)


def fitted(small_us, large_us):
    """The loopback as a cluster, from the times of two all-reduces of two ranks: 2 latencies and their bytes at its rate."""
    rate = (LARGE - SMALL) / (large_us - small_us)  # bytes per us
    return {"link": f"{8 * rate:.0f}mbit", "latency_us": max(1, round((small_us - SMALL / rate) / 2)), "fraction": 1}


def loopback():
    rows, _ = runs.bench(runs.PSRING, ["--collective", "all_reduce", "--algorithm", "ring", "--transport", "tcp", "--workers", "2",
                                       "--sizes", f"{SMALL},{LARGE}"])
    us = {row["size"]: row["p50_us"] for row in rows}
    return fitted(us[SMALL], us[LARGE])


def train_flags(of, own):
    axes = [flag for name, ranks in of.axes.items() if name != "dp" for flag in (f"--{name}", ranks)]
    kind = ["--context_parallel", of.kind] if of.kind else []
    batch = [] if own in of.flags else ["--batch", of.batch]
    where = ["--link", of.link] if of.link else ["--transport", "tcp"]
    # One replica of divided matrices sends no gradients; the ranks of a sequence do.
    strategy = "single" if set(of.axes) == {"tp"} else of.strategy
    return [*of.flags, *batch, "--workers", of.workers(), *axes, *kind, "--micro_batches", of.micro_batches, "--strategy", strategy,
            *where, "--no_eval"]


def walk_flags(of, cluster, folder):
    each = of.axes.get("dp", 1) * of.micro_batches * of.batch // of.workers()  # of a worker: --batch of predict
    kind = ["--context_parallel", of.kind] if of.kind else []
    return ["--workload", folder / "measured.csv", "--layouts", of.layout, "--strategies", of.strategy, "--micro_batches",
            of.micro_batches, "--batch", each, *kind, "--cluster", cluster, "--memory", "1TB", "--system", "none", "--out",
            folder / "walk"]


def measure(folder, name, of):
    own, cluster = folder / "workload.csv", folder / "cluster.json"
    own.write_text(units_text([BLOCK_BYTES // 4] * BLOCKS, of.batch, *(BLOCKS * ms for ms in BLOCK_MS)))
    of = of._replace(flags=[own if flag == "WORKLOAD" else flag for flag in of.flags])
    runs.run([runs.PSRING, "train", *train_flags(of, own), "--out", folder / "run"])
    row = runs.read_csv(folder / "run", "summary.csv")[0]
    results = sorted((json.loads(path.read_text()) for path in (folder / "run").glob("records/training-1/*/result-rank*.json")),
                     key=lambda result: result["rank"])
    (folder / "measured.csv").write_text(workload_of(row, results, of))
    cluster.write_text(json.dumps(pipeline.VIRTUAL if of.link else loopback()))
    runs.run([runs.PSRING, "predict", *walk_flags(of, cluster, folder)])
    walk = runs.read_csv(folder / "walk", "layouts.csv")[0]
    number = pipeline.number
    return {"name": name, "step": number(row["step_ms"]), "walk": number(walk["step_ms"]),
            "waits": number(row["exposed_comm_ms"]), "waits_of_walk": number(walk["exposed_fraction"]) * number(walk["step_ms"]),
            "sent": number(row["payload_tx_bytes_per_worker"]), "counted": number(walk["sent_between_bytes"]),
            "foreign": number(row["foreign_cpu_pct"]), "shares_cores": of.shares_cores}


def report(rows):
    cells, problems = [], []
    for row in rows:
        longer, more = row["step"] / row["walk"] - 1, row["sent"] / row["counted"] - 1  # not a number: not measured
        wrong = [f"step {longer:+.1%}"] * (not abs(longer) <= MOST_OFF and not row["shares_cores"])
        wrong += [f"bytes {more:+.1%}"] * (not abs(more) <= MOST_BYTES_OFF)
        problems += [f"{row['name']}: {', '.join(wrong)}"] * bool(wrong)
        cells.append([row["name"] + " (c)" * row["shares_cores"], f"{row['step']:,.1f}", f"{row['walk']:,.1f}",
                      f"{row['step'] / row['walk']:.3f}",
                      f"{row['waits']:,.1f}", f"{row['waits_of_walk']:,.1f}", f"{row['sent']:,.0f}", f"{row['counted']:,.0f}",
                      f"{row['sent'] / row['counted']:.3f}", f"{row['foreign']:.0f}%" + " **outside**" * bool(wrong)])
    return [f"{runs.measured_on()}. A step is the mean over ranks. *walk*: `psring predict --layouts` of the lowered program with the "
            "run's own computing time, equal in all micro-batches, without loading and updates; of shards with the trainer's units. "
            "Exchanges take the time of the link: of the loopback as two all-reduces of `psring bench` give it after the run, of a "
            "virtual cluster 1 Gbit/s, of which 95% are usable. Of tp2 over the loopback, which varies, the run with the median ratio of "
            f"{CASES['gpt-mini, tp2'].runs}. Replayed: {BLOCKS} equal blocks of {BLOCK_MS[0]:.0f} and {BLOCK_MS[1]:.0f} ms and "
            f"{BLOCK_BYTES:,} bytes; a recording has no matrices or sequences to divide, so tp and cp compute. (c): more processes "
            "than cores, whose turns no walk knows. Two micro-batches, SGD, float32.", "",
            *runs.table("run | step, ms (m) | walk, ms (s) | ratio (d) | waits for bytes, ms (m) | of the walk (s) | bytes that a rank "
                        "sends (m) | of the walk (s) | ratio (d) | processor time of others", cells), "",
            f"Limits: steps within {MOST_OFF:.0%} (not of c), bytes within {MOST_BYTES_OFF:.0%}. "
            f"{'All are within.' if not problems else 'Outside: ' + '; '.join(problems) + '.'}"], problems


def lines(cases):
    """(lines of the section, problems). cases: of CASES."""
    rows = []
    for name, of in cases.items():
        tried = []
        for _ in range(of.runs):
            print(name, file=sys.stderr)
            with tempfile.TemporaryDirectory() as folder:
                tried.append(measure(pathlib.Path(folder), name, of))
            runs.require_quiet(name, tried[-1]["foreign"])
        rows.append(sorted(tried, key=lambda row: row["step"] / row["walk"])[len(tried) // 2])
    return report(rows)
