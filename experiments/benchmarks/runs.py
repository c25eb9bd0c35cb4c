"""Shared by the benchmark scripts: run psring, take turns, write a result file."""
import csv
import os
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def train_into(out, arguments):
    """Runs `psring train`; exits with its error if it fails."""
    command = [os.path.join(ROOT, "build/release/bin/psring"), "train", *arguments, "--out", out]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed: {done.stderr}")


def summary_row(run):
    with open(os.path.join(run, "summary.csv")) as f:
        return next(csv.DictReader(f))


def train(arguments):
    """The row of summary.csv."""
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "run")
        train_into(out, arguments)
        return summary_row(out)


def cpu():
    """(model name, text of /proc/cpuinfo)"""
    with open("/proc/cpuinfo") as f:
        text = f.read()
    return next((line.split(":")[1].strip() for line in text.splitlines() if line.startswith("model name")), "unknown"), text


def cpu_ticks():
    with open("/proc/stat") as f:
        fields = [int(x) for x in f.readline().split()[1:9]]
    return sum(fields), sum(fields) - fields[3] - fields[4]


def take_turns(contenders, rounds, label):
    """Runs every contender once per round, so that disturbances affect all alike. The first round is not counted.

    contenders: {name: function that returns samples/s}. Returns ({name: values}, a sentence about other processes)."""
    results = {name: [] for name in contenders}
    total0, busy0 = cpu_ticks()
    own0 = sum(os.times()[2:4])
    for round_index in range(rounds + 1):
        for name, measure in contenders.items():
            value = measure()
            if round_index:
                results[name].append(value)
            print(f"{label} round {round_index}: {name}: {value:,.0f}", file=sys.stderr)
    total1, busy1 = cpu_ticks()
    own = (sum(os.times()[2:4]) - own0) * os.sysconf("SC_CLK_TCK")
    foreign = 100 * max(0.0, (busy1 - busy0 - own)) / (total1 - total0)
    return results, f"Processor time of others during the run: {foreign:.1f}%."


def spread(values):
    return f"{statistics.median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})"


def write_result(name, text):
    folder = os.path.join(ROOT, "experiments", "results")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name), "w") as f:
        f.write(text)
