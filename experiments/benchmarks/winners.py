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

CASES = {"ring and direct, 2 workers": ("ring,direct", 2, ""), "ring and ps-sync, 4 workers": ("ring,ps-sync", 4, "ring")}


def winner(strategies, workers, time_budget):
    """Returns the strategy that the verdict names as the fastest, "" if none, and whether all rows are valid. The verdict may
    recommend one process in its first sentence."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "run"
        runs.run([runs.PSRING, "compare", "--strategies", strategies, "--workers", workers, "--link", "1gbit", "--no_eval",
                  "--time_budget", time_budget, "--out", out])
        verdict = runs.read_json(out, "table.json")["en"]["verdict"]
        valid = all(row["valid"] == "true" for row in runs.summary_rows(out))
    named = re.search(r"(?:^Use|anyway, use) (?!one process)([^:]+): ", verdict)
    return named[1] if named else "", valid


def main():
    parser = runs.flags(__doc__)
    parser.add_argument("--equal", type=int, default=20, help="comparisons of the equal strategies")
    parser.add_argument("--different", type=int, default=10, help="comparisons of ring and ps-sync")
    parser.add_argument("--time_budget", default="25s", help="of one comparison")
    parser.add_argument("--out", type=pathlib.Path, help="also write the table to this file")
    args = parser.parse_args()
    found = {name: [] for name in CASES}
    for run in range(max(args.equal, args.different)):
        for name, (strategies, workers, expected) in CASES.items():
            if run < (args.different if expected else args.equal):
                found[name].append(winner(strategies, workers, args.time_budget))
                print(f"{name}, run {run + 1}: {found[name][-1][0] or 'no winner'}", file=sys.stderr)
    rows = []
    for name, results in found.items():
        if not results:
            continue
        named = [strategy for strategy, _ in results if strategy]
        rows.append([name, len(results), ", ".join(f"{s}: {named.count(s)}" for s in sorted(set(named))) or "none",
                     sum(valid for _, valid in results)])
    lines = ["# Winners that comparisons name", "",
             f"{runs.measured_on()}; `compare --link 1gbit --no_eval --time_budget {args.time_budget}`. All *measured*. Written by "
             "experiments/benchmarks/winners.py.", "",
             *runs.table("strategies | comparisons | winners named | comparisons with only valid rows", rows)]
    print("\n".join(lines))
    if args.out:
        args.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
