#!/usr/bin/env python3
"""Compares what models have learnt after the same samples, over several seeds.

    ./run build && experiments/benchmarks/accuracy.py [--pages accuracy,bfloat16,text_loss,staleness] [--seeds 3] [--rounds 5]
                                                      [--torch_python torch/bin/python]

accuracy: each strategy's test accuracy on Fashion-MNIST. Takes about 10 minutes on two cores.

bfloat16: test accuracy and training speed on a CPU, compared with float32. For speed, every contender runs once per round; the
ratio is the median of the rounds' ratios.

text_loss: the loss of gpt-nano per token of the King James Bible's last 2%, compared with PyTorch: batches of 12 windows of 64
tokens, AdamW with a constant learning rate of 0.001. One process of psring and of PyTorch, and psring's ps-async with 4 workers,
each of which takes a quarter of the steps. Without PyTorch, only psring. Takes about 20 minutes.

staleness: the loss of gpt-nano after as many updates of 12 samples by a pipeline of 4 stages without a flush and by ps-async. Each
contender trains with three learning rates and one seed, and then with its best rate and --seeds others. Takes about 7 minutes on
two cores, and writes a section of pipelines.md.

Prints the tables and writes experiments/results/PAGE.md.
"""
import statistics
import sys

import peers
import pipeline
import runs

# strategy, workers, model, epochs, seeds for each of --seeds
STRATEGIES = [("single", 1, "mlp", 3), ("ring", 2, "mlp", 3), ("ring", 4, "mlp", 3), ("ps-sync", 2, "mlp", 3),
              ("ps-sync", 4, "mlp", 3), ("ps-async", 4, "mlp", 3), ("single", 1, "cnn", 1), ("ring", 2, "cnn", 1)]
RING = ["--strategy", "ring", "--workers", "2", "--transport", "tcp"]
PRECISIONS = {
    "single, float32": ["--strategy", "single"],
    "single, bfloat16": ["--strategy", "single", "--precision", "bfloat16"],
    "ring x 2 over TCP, float32": RING,
    "ring x 2 over TCP, float32, bfloat16 on the wire": [*RING, "--wire", "bfloat16"],
    "ring x 2 over TCP, bfloat16, also on the wire": [*RING, "--precision", "bfloat16", "--wire", "bfloat16"],
}
SPEED_STEPS, EPOCHS = {"cnn": 30, "mlp": 300}, {"cnn": 1, "mlp": 3}
TEXT = ["--model", "gpt-nano", "--batch", 12, "--lr", 0.001]
STALE_RATES, TUNING_SEED = (.0002, .0007, .002, .006), 101
PIPEDREAM = "pipedream, 4 stages"
STALE_TITLE = "Two kinds of staleness"


def of_seeds(measure, seeds, label):
    values = []
    for seed in range(1, seeds + 1):
        values.append(measure("--seed", seed))
        print(f"{label} seed {seed}: {values[-1]:.4f}", file=sys.stderr)
    return values


def accuracies(flags, seeds, label):
    return of_seeds(lambda *seed: float(runs.train([*flags, "--schedule", "linear", *seed])["test_accuracy"]), seeds, label)


def mean_and_range(values):
    return [f"{figure(values):.4f}" for figure in (statistics.mean, min, max)]


def strategies(args):
    rows = []
    for strategy, workers, model, epochs in STRATEGIES:
        seeds = args.seeds if strategy != "ps-async" else 10 * args.seeds // 3  # these vary more
        flags = ["--strategy", strategy, "--workers", workers, "--model", model, "--epochs", epochs]
        rows.append([model, epochs, strategy, workers, seeds,
                     *mean_and_range(accuracies(flags, seeds, f"{strategy} x{workers} {model}"))])
    return ["# Test accuracy of each strategy", "",
            f"{runs.measured_on()}: test accuracy on Fashion-MNIST, batch 128 per worker, each strategy's default learning rate (with "
            "linear decay to 0) and momentum.", "",
            *runs.table("model | epochs | strategy | workers | seeds | accuracy: mean | lowest | highest", rows)]


def speeds(model, rounds):
    def speed(flags):
        return lambda: float(runs.train(["--model", model, "--steps", SPEED_STEPS[model], "--warmup_steps", "10", "--no_eval", "--lr",
                                         "0.02", *flags])["samples_per_s"])

    results, others = runs.interleave({name: speed(flags) for name, flags in PRECISIONS.items()}, rounds, model)
    rows, base = [], {}
    for name, values in results.items():  # the first of each kind is float32
        first = base.setdefault(name.split(",")[0], values)
        rows.append([name, runs.spread(values), "" if values is first else f"{runs.paired_ratio(values, first):.2f}"])
    return [others, "", *runs.table("contender | samples/s | speed over float32's (paired median)", rows), ""]


def precisions(args):
    native = "with" if "avx512_bf16" in runs.cpu_info() else "WITHOUT"
    lines = ["# bfloat16 compared with float32", "",
             f"{runs.measured_on()}, {native} AVX512-BF16; batch 128 per worker, one thread per process, momentum SGD, "
             f"Fashion-MNIST; {args.rounds} interleaved rounds; samples/s as median (lowest to highest)."]
    for model, epochs in EPOCHS.items():
        rows, base = [], {}
        speed = speeds(model, args.rounds)
        for name, flags in PRECISIONS.items():
            reached = accuracies(["--model", model, "--epochs", epochs, *flags], args.seeds, f"{model}, {name}")
            difference = statistics.mean(reached) - base.setdefault(name.split(",")[0], statistics.mean(reached))
            rows.append([name, *mean_and_range(reached), f"{difference:+.4f}"])
        lines += ["", f"## {model}", "", *speed, f"Test accuracy after {epochs} epoch{'s' * (epochs > 1)} with linear decay of the "
                  f"learning rate, {args.seeds} seeds:", "",
                  *runs.table("contender | mean | lowest | highest | minus float32", rows)]
    return lines


def text_loss(args):
    def psring(steps, *flags):
        return lambda *seed: float(runs.train([*TEXT, "--steps", steps, *flags, *seed],
                                              lambda out: runs.read_csv(out, "curves.csv"))[-1]["test_loss"])

    quarter, version = args.steps // 4, peers.torch_version(args)
    contenders = {"psring single": psring(args.steps, "--strategy", "single"),
                  "psring ps-async, 4 workers": psring(quarter, "--strategy", "ps-async", "--workers", 4)}
    if version:
        contenders[f"PyTorch {version}"] = lambda *seed: peers.torch(
            args, "pytorch_peer.py", *TEXT, "--optimizer", "adamw", "--steps", args.steps, "--warmup_steps", 0, "--fused", "--test",
            *seed)["test_loss"]
    return ["# Loss on a text compared with PyTorch", "",
            f"{runs.measured_on()}: loss of gpt-nano per token of the King James Bible's last 2%, after {args.steps} batches of 12 "
            f"windows of 64 tokens; AdamW, constant learning rate 0.001; {args.seeds} seeds. The 4 workers of ps-async train on "
            f"{quarter} batches each. All *measured*.", "",
            *runs.table("contender | mean | lowest | highest",
                        [[name, *mean_and_range(of_seeds(loss, args.seeds, name))] for name, loss in contenders.items()])]


def stale_contenders(updates):
    """{name: flags} of as many updates with the gradient of 12 samples."""
    def servers(workers):
        return ["--strategy", "ps-async", "--workers", workers, "--batch", 12, "--steps", updates // workers]

    def stages(program, batch, micro_batches):  # a block each; the pipeline drains at the end of a step, so there are few
        return ["--strategy", "single", "--workers", 4, "--pp", 4, "--cuts", "8,15,22", "--program", program, "--batch", batch,
                "--micro_batches", micro_batches, "--steps", 4]

    return {"single": ["--strategy", "single", "--batch", 12, "--steps", updates],
            **{f"ps-async, {workers} workers": servers(workers) for workers in (2, 3, 4)},
            PIPEDREAM: stages("pipedream", 12, updates // 4),
            "pipedream-2bw, 4 stages": stages("pipedream-2bw", 3, updates)}  # which updates after four micro-batches


def stale_run(flags, rate, seed):
    """(Loss on the test set, mean staleness)."""
    def read(out):
        return (float(runs.read_csv(out, "curves.csv")[-1]["test_loss"]),
                float(runs.read_csv(out, "summary.csv")[0]["staleness_mean"] or 0))
    return runs.train(["--model", "gpt-nano", *flags, "--warmup_steps", 0, "--lr", rate, "--seed", seed], read)


def between(stale, low, high):
    """The loss at this staleness, linear between two (loss, staleness)."""
    return low[0] + (high[0] - low[0]) * (stale - low[1]) / (high[1] - low[1])


def differences(trained):
    """Lines that compare stages with servers at the same mean staleness."""
    two, three, four = (trained[f"ps-async, {workers} workers"] for workers in (2, 3, 4))

    def line(name, losses):
        of_seeds = [loss - other for (loss, _), other in zip(trained[name], losses)]
        text = ("higher with every seed" if min(of_seeds) > 0 else "lower with every seed" if max(of_seeds) < 0 else
                "higher with some seeds, lower with others")
        return f"{statistics.mean(of_seeds):+.3f} ({min(of_seeds):+.3f} to {max(of_seeds):+.3f}), {text}"

    lines = [f"* **{name}**: " + line(name, [between(stale, low, high) for (_, stale), low, high in zip(trained[name], two, three)]) + "."
             for name in trained if "stages" in name]
    return [*lines, f"* **{PIPEDREAM}, less ps-async with 4 workers**, whose mean staleness is that of its first stage: "
            + line(PIPEDREAM, [loss for loss, _ in four]) + "."]


def staleness(args):
    if args.updates < 12 or args.updates % 12:
        sys.exit(f"--updates {args.updates}: must be a multiple of 12, so that workers and steps have equally many")
    rows, trained = [], {}
    for name, flags in stale_contenders(args.updates).items():
        tried = {rate: stale_run(flags, rate, TUNING_SEED)[0] for rate in STALE_RATES}
        rate = min(tried, key=lambda rate: tried[rate] if tried[rate] == tried[rate] else float("inf"))  # not NaN
        trained[name] = [stale_run(flags, rate, seed) for seed in range(1, args.seeds + 1)]
        losses, stale = zip(*trained[name])
        print(f"{name}, rate {rate}: {losses}", file=sys.stderr)
        rows.append([name, f"{statistics.mean(stale):.2f}", ", ".join(f"{tried[one]:.3f}" for one in STALE_RATES), rate,
                     *mean_and_range(losses)])
    rates = ", ".join(map(str, STALE_RATES))
    return [f"{runs.measured_on()}: loss of gpt-nano per token of the King James Bible's last 2% after {args.updates} updates, each with "
            f"the gradient of 12 windows of 64 tokens; AdamW, constant learning rate. Each contender tried the rates {rates} with one "
            f"seed, and trained with the best one and {args.seeds} others. Staleness: updates between the weights of a gradient and its "
            "own update, mean over updates; of `pipedream` it is 3 on the first of 4 stages and 0 on the last, of `pipedream-2bw` 1 "
            "on all, less at the beginning of a step. All *measured*. Written by experiments/benchmarks/accuracy.py --pages staleness.",
            "", *runs.table("contender | staleness | loss with each rate | rate | loss: mean | lowest | highest", rows), "",
            "The loss of stages less that of ps-async at their staleness, linear between 2 and 3 workers, with the same seed (*derived*); "
            "mean (lowest to highest):", "", *differences(trained)]


PAGES = {"accuracy": strategies, "bfloat16": precisions, "text_loss": text_loss, "staleness": staleness}

if __name__ == "__main__":
    parser = runs.flags(__doc__, pages="accuracy", seeds=3, rounds=5, steps=(2000, "of the text"),
                        updates=(192, "of staleness: a multiple of 12"))
    peers.add_flags(parser)
    args = parser.parse_args()
    for name in args.pages.split(","):
        if name == "staleness":
            runs.save_section(runs.RESULTS / pipeline.PAGE, pipeline.HEAD, STALE_TITLE, staleness(args))
            continue
        runs.write_result(f"{name}.md", [*PAGES[name](args), "", f"Written by experiments/benchmarks/accuracy.py --pages {name}."])
