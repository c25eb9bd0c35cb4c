#!/usr/bin/env python3
"""Counts how often `psring compare` names a winner: where there is one, and where there is none.

    ./run build && experiments/benchmarks/winners.py [--equal 20] [--different 10] [--time_budget 25s] [--out FILE]

With two workers, ring and direct are the same schedule: the same messages between the same ranks. A comparison of the two must
name no winner; at most one in a hundred would by chance (the test's level is 1%). Ring and ps-sync with four workers
differ by a factor of 2.67 in theory, so that comparison must name the ring. The two kinds of comparison take turns.
"""
import pathlib
import re
import sys
import tempfile

import runs

CASES = {"ring and direct, 2 workers": ("ring,direct", 2, "equal"), "ring and ps-sync, 4 workers": ("ring,ps-sync", 4, "different")}


def winner(strategies, workers, time_budget):
    """Returns the strategy that the verdict names as the fastest, "" if none, and whether all rows are valid. The verdict may
    recommend one process."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "run"
        runs.run([runs.PSRING, "compare", "--model", "mlp", "--strategies", strategies, "--workers", workers, "--link", "1gbit", "--no_eval",
                  "--time_budget", time_budget, "--out", out])
        facts = dict(runs.read_json(out, "table.json")["en"].get("facts", []))
        named = re.match(r"(.+), [\d.]+ times as fast as ", facts.get("fastest strategy", facts.get("if you must distribute", "")))
        return named[1] if named else "", all(row["valid"] == "true" for row in runs.read_csv(out, "summary.csv"))


if __name__ == "__main__":
    args = runs.parse(__doc__, equal=(20, "comparisons of the equal strategies"), different=(10, "comparisons of ring and ps-sync"),
                      time_budget=("25s", "of one comparison"), out=(pathlib.Path, runs.ALSO_TO))
    found = {name: [] for name in CASES}
    for run in range(max(args.equal, args.different)):
        for name, (strategies, workers, kind) in CASES.items():
            if run < getattr(args, kind):
                found[name].append(winner(strategies, workers, args.time_budget))
                print(f"{name}, run {run + 1}: {found[name][-1][0] or 'no winner'}", file=sys.stderr)
    rows = []
    for name, results in found.items():
        if results:
            named = [strategy for strategy, _ in results if strategy]
            rows.append([name, len(results), ", ".join(f"{s}: {named.count(s)}" for s in sorted(set(named))) or "none",
                         sum(valid for _, valid in results)])
    lines = ["# Winners that comparisons name", "",
             f"{runs.measured_on()}; `compare --model mlp --link 1gbit --no_eval --time_budget {args.time_budget}`. All *measured*. Written by "
             "experiments/benchmarks/winners.py.", "",
             *runs.table("strategies | comparisons | winners named | comparisons with only valid rows", rows)]
    print("\n".join(lines))
    if args.out:
        runs.write(lines, args.out)
