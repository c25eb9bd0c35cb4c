#!/usr/bin/env python3
"""Draws the main charts of a run folder with matplotlib, for scripts and papers. The run's page has the same charts.

    experiments/benchmarks/plot_run.py runs/latest [--out charts] [--format svg|pdf|png]

Reads summary.csv and curves.csv; writes throughput, split (computing and exposed communication), bytes and accuracy.
"""
import argparse
import csv
import os

import matplotlib
matplotlib.use("Agg")
import matplotlib.pyplot as plt


def read(folder, name):
    path = os.path.join(folder, name)
    with open(path) as file:
        return list(csv.DictReader(file))


def column(rows, name):
    return [float(row[name] or "nan") for row in rows]


def by(rows, *names):
    groups = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    return groups.items()


def throughput(rows, axes):
    for (strategy, servers), group in by(rows, "strategy", "servers"):
        group.sort(key=lambda row: int(row["workers"]))
        mean, low, high = (column(group, "samples_per_s" + end) for end in ("", "_lo95", "_hi95"))
        errors = [[m - l for m, l in zip(mean, low)], [h - m for m, h in zip(mean, high)]]
        label = f"{strategy}, {servers} servers" if int(servers) > 1 else strategy
        axes.errorbar(column(group, "workers"), mean, yerr=errors, marker="o", capsize=3, label=label)
    axes.set(xlabel="workers", ylabel="samples/s (geometric mean, 95% interval)", ylim=(0, None))
    axes.xaxis.get_major_locator().set_params(integer=True)


def split(rows, axes):
    names = [f"{row['strategy']} x {row['workers']}" for row in rows]
    exposed = [float(row["exposed_comm_ms"] or 0) for row in rows]
    axes.barh(names, column(rows, "compute_ms"), label="computing")
    axes.barh(names, exposed, left=column(rows, "compute_ms"), label="exposed communication")
    axes.plot(column(rows, "step_ms"), names, "k|", markersize=12, label="step")
    axes.set(xlabel="ms per step")
    axes.invert_yaxis()


def payload(rows, axes):
    rows = [row for row in rows if row["payload_tx_bytes_per_worker"]]
    names = [f"{row['strategy']} x {row['workers']}" for row in rows]
    axes.barh(names, [b / 1e6 for b in column(rows, "payload_tx_bytes_per_worker")], label="sent")
    axes.plot([b / 1e6 for b in column(rows, "predicted_payload_bytes_per_worker")], names, "k|", markersize=12,
              label="theory")
    axes.set(xlabel="MB per worker and step")
    axes.invert_yaxis()


def accuracy(rows, axes):
    for (strategy, workers, seed), group in by(rows, "strategy", "workers", "seed"):
        axes.plot(column(group, "samples"), column(group, "test_accuracy"), marker=".",
                  label=f"{strategy} x {workers}, seed {seed}")
    axes.set(xlabel="samples", ylabel="test accuracy")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--out", default="charts")
    parser.add_argument("--format", default="svg")
    options = parser.parse_args()
    os.makedirs(options.out, exist_ok=True)
    charts = [(throughput, "summary.csv"), (split, "summary.csv"), (payload, "summary.csv"), (accuracy, "curves.csv")]
    for draw, source in charts:
        rows = read(options.run, source)
        figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
        draw(rows, axes)
        if axes.has_data():
            axes.legend()
            path = os.path.join(options.out, f"{draw.__name__}.{options.format}")
            figure.savefig(path)
            print(path)


if __name__ == "__main__":
    main()
