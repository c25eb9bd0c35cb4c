#!/usr/bin/env python3
"""Compares the loss of gpt-nano per token of the King James Bible's last 2% after training with psring and with PyTorch.

    ./run build && experiments/benchmarks/text_loss.py [--steps 2000] [--seeds 3] [--torch_python torch/bin/python]

Batches of 12 windows of 64 tokens, AdamW with a constant learning rate of 0.001. One process of psring and of PyTorch, and
psring's ps-async with 4 workers, each of which takes a quarter of the steps. Without PyTorch, only psring. Prints the table and
writes experiments/results/text_loss.md. Takes about 20 minutes on two cores.
"""
import peers
import runs

COMMON = ["--model", "gpt-nano", "--batch", 12, "--lr", 0.001]


def psring_loss(*flags):
    return float(runs.train([*COMMON, *flags], lambda out: runs.read_csv(out, "curves.csv"))[-1]["test_loss"])


if __name__ == "__main__":
    parser = runs.flags(__doc__, steps=2000, seeds=3)
    peers.add_flags(parser)
    args = parser.parse_args()
    quarter, version = args.steps // 4, peers.torch_version(args)
    contenders = {
        "psring single": lambda seed: psring_loss("--strategy", "single", "--steps", args.steps, "--seed", seed),
        "psring ps-async, 4 workers": lambda seed: psring_loss("--strategy", "ps-async", "--workers", 4, "--steps", quarter,
                                                               "--seed", seed)}
    if version:
        contenders[f"PyTorch {version}"] = lambda seed: peers.torch(
            args, "pytorch_peer.py", *COMMON, "--optimizer", "adamw", "--steps", args.steps, "--warmup_steps", 0, "--fused", "--test",
            "--seed", seed)["test_loss"]
    rows = [[name, *runs.mean_and_range([loss(seed) for seed in range(1, args.seeds + 1)])] for name, loss in contenders.items()]
    runs.write_result("text_loss.md", [
        "# Loss on a text compared with PyTorch", "",
        f"{runs.measured_on()}: loss of gpt-nano per token of the King James Bible's last 2%, after {args.steps} batches of 12 "
        f"windows of 64 tokens; AdamW, constant learning rate 0.001; {args.seeds} seeds. The 4 workers of ps-async train on "
        f"{quarter} batches each. All *measured*. Written by experiments/benchmarks/text_loss.py.", "",
        *runs.table("contender | mean | lowest | highest", rows)])
