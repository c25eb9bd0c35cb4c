#!/usr/bin/env python3
"""Compares the loss of gpt-nano per token of the King James Bible's last 2% after training with psring and with PyTorch.

    ./run build && experiments/benchmarks/text_loss.py [--steps 2000] [--seeds 3] [--torch_python torch/bin/python]

Batches of 12 windows of 64 tokens, AdamW with a constant learning rate of 0.001. One process of psring and of PyTorch, and
psring's ps-async with 4 workers, each of which takes a quarter of the steps. Without PyTorch, only psring. Prints the table and
writes experiments/results/text_loss.md. Takes about 20 minutes on two cores.
"""
import csv
import pathlib
import statistics
import tempfile

import peers
import runs


def psring_loss(steps, *arguments):
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "run"
        runs.train_into(out, ["--model", "gpt-nano", "--batch", 12, "--lr", 0.001, "--steps", steps, *arguments])
        with open(out / "curves.csv") as f:
            return float(list(csv.DictReader(f))[-1]["test_loss"])


def torch_loss(args, seed):
    return peers.torch(args, "pytorch_peer.py", "--model", "gpt-nano", "--batch", "12", "--optimizer", "adamw", "--lr", "0.001",
                       "--steps", str(args.steps), "--warmup_steps", "0", "--fused", "--test", "--seed", str(seed),
                       env={})["test_loss"]


def main():
    parser = runs.flags(__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=3)
    peers.add_flags(parser)
    args = parser.parse_args()
    version = peers.torch_version(args)
    contenders = {
        "psring single": lambda seed: psring_loss(args.steps, "--strategy", "single", "--seed", seed),
        "psring ps-async, 4 workers": lambda seed: psring_loss(args.steps // 4, "--strategy", "ps-async", "--workers", 4,
                                                               "--seed", seed)}
    if version:
        contenders[f"PyTorch {version}"] = lambda seed: torch_loss(args, seed)
    rows = []
    for name, loss in contenders.items():
        losses = [loss(seed) for seed in range(1, args.seeds + 1)]
        rows.append([name, f"{statistics.mean(losses):.4f}", f"{min(losses):.4f}", f"{max(losses):.4f}"])
    runs.write_result("text_loss.md", [
        "# Loss on a text compared with PyTorch", "",
        f"{runs.measured_on()}: loss of gpt-nano per token of the King James Bible's last 2%, after {args.steps} batches of 12 "
        f"windows of 64 tokens; AdamW, constant learning rate 0.001; {args.seeds} seeds. The 4 workers of ps-async train on "
        f"{args.steps // 4} batches each. All *measured*. Written by "
        "experiments/benchmarks/text_loss.py.", "",
        *runs.table("contender | mean | lowest | highest", rows)])


if __name__ == "__main__":
    main()
