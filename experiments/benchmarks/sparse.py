#!/usr/bin/env python3
"""Measures from which share of touched rows on a ring is faster than parameter servers, for a model with tables.

    experiments/benchmarks/sparse.py [--cells 1000:32,1000:2048] [--link 100mbit] [--steps 20] [--realtime] [--out experiments/results]

`psring compare` trains dlrm-small with 4 workers on a virtual cluster, with links of 1 Gbit/s by default: a ring, and ps-sync with
1 and 4 dedicated servers. A cell is ROWS:BATCH; rows follow Zipf's distribution, so that a batch touches a share of a table's
rows that depends on both. Next to each measured speed is the derived one: the step of the same workers without communication
(none), and the time of theory for the rows that were touched (trainer/tables.md). Writes sparse.md and its chart sparse.svg.
Requires network namespaces (./run doctor); the cells of 1,000,000 rows need 9 GiB of memory.
"""
import json
import math
import sys

import runs

WORKERS, TABLES, WIDTH, ALPHA = 4, 8, 64, 1.05
LARGE = 512  # batches from this size on are marked in the chart
CELLS = "1000:32,1000:128,1000:512,1000:2048,10000:32,10000:512,10000:2048,100000:32,100000:512,1000000:32,1000000:512"
CONTENDERS = {("ring", 0): "ring", ("ps-sync", 1): "1 server", ("ps-sync", 4): "4 servers"}


def touched_rows(folder):
    """Rows of a table that a worker's batch touches: the mean over steps and tables, of the worker with most."""
    asked = [0.0]
    for path in folder.rglob("*.json"):
        try:
            content = json.loads(path.read_text())
        except json.JSONDecodeError:
            continue
        if isinstance(content, dict) and isinstance(content.get("rows"), dict):
            asked.append(content["rows"].get("asked_bytes", 0))
    return max(asked) / 4 / TABLES


def measure(options, folder, rows, batch):
    """One row for each contender."""
    figures = runs.compare(options, folder, [
        "--model", "dlrm-small", "--data", f"zipf:{rows}:{ALPHA}", "--batch", batch, "--strategies", "ring,ps-sync", "--servers",
        "1,4", "--server_placement", "dedicated", "--workers", WORKERS, "--link", options.link, "--steps", options.steps, "--no_eval"])
    none_ms = next(one["step_ms"] for one in figures if one["strategy"] == "none")
    touched = touched_rows(folder / "run")
    return [{"rows": rows, "batch": batch, "touched": touched, "share": touched / rows,
             "name": CONTENDERS[one["strategy"], one["servers"] or 0], "measured": one["samples_per_s"],
             "derived": WORKERS * batch / (none_ms + one["predicted_comm_ms"]) * 1e3, "not_valid": one["not_valid"]}
            for one in figures if (one["strategy"], one["servers"] or 0) in CONTENDERS]


def ring_of(found, cell):
    return next(one for one in found if (one["rows"], one["batch"], one["name"]) == (cell["rows"], cell["batch"], "ring"))


def ratios(found, kind):
    """{name: [(share of touched rows, speed / the ring's, batch)]} of servers; kind: measured or derived."""
    of = {}
    for one in found:
        if one["name"] != "ring":
            of.setdefault(one["name"], []).append((one["share"], one[kind] / ring_of(found, one)[kind], one["batch"]))
    return of


def bytes_ratio(share, servers):
    """A ring's bytes over the busiest link, over those of dedicated servers, for large tables (trainer/tables.md)."""
    ring = min((WORKERS - 1) * share, 2 * (WORKERS - 1) / WORKERS)
    return ring / (2 * share * WORKERS / servers)


CHART_HEAD = f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 660 330" font-family="system-ui, sans-serif" font-size="13" role="img">
  <title>Speed of parameter servers relative to a ring, over the share of touched rows</title>
  <style>
    text {{ fill: #1f2328 }} .axis {{ stroke: #57606a; fill: none }} .one {{ stroke-dasharray: 4 4 }}
    .s1 {{ stroke: #bc4c00; fill: none }} .s4 {{ stroke: #0969da; fill: none }} circle {{ stroke-width: 2 }}
    .s1.large {{ fill: #bc4c00 }} .s4.large {{ fill: #0969da }}
    @media (prefers-color-scheme: dark) {{
      text {{ fill: #e6edf3 }} .axis {{ stroke: #9da7b1 }} .s1 {{ stroke: #f0883e }} .s4 {{ stroke: #58a6ff }}
      .s1.large {{ fill: #f0883e }} .s4.large {{ fill: #58a6ff }}
    }}
  </style>
  <text x="60" y="18" font-weight="bold">samples/s of ps-sync / samples/s of ring, 4 workers</text>
  <text x="60" y="35">circles: measured, filled with a batch of at least {LARGE}; lines: from bytes</text>"""


def chart(found):
    """Speed of servers relative to the ring, over the share of touched rows: circles measured, lines by bytes."""
    left, top, width, height = 60, 44, 560, 220
    lowest, most = 1e-4, 2.5

    def x(share):
        return f"{left + width * (1 - math.log10(max(share, lowest)) / math.log10(lowest)):.0f}"

    def y(ratio, below=0):
        return f"{top + height * (1 - min(ratio, most) / most) + below:.0f}"

    lines = [CHART_HEAD, f'  <path class="axis" d="M{left} {top}V{top + height}H{left + width}"/>',
             f'  <path class="axis one" d="M{left} {y(1)}H{left + width}"/>',
             *(f'  <text x="{left - 8}" y="{y(ratio, 4)}" text-anchor="end">{ratio:g}</text>' for ratio in (0, .5, 1, 1.5, 2, 2.5)),
             *(f'  <text x="{x(share)}" y="{top + height + 20}" text-anchor="middle">{100 * share:g}%</text>'
               for share in (1e-4, 1e-3, .01, .1, 1)),
             f'  <text x="{left + width / 2:.0f}" y="{top + height + 42}" text-anchor="middle">rows of a table that a batch '
             'touches</text>']
    flat = 2 / WORKERS  # the share from which on a line falls
    for servers, points in sorted(ratios(found, "measured").items()):
        number = int(servers.split()[0])
        curve = "L".join(f"{x(share)} {y(bytes_ratio(share, number))}" for share in
                         [lowest, flat, *(flat * (WORKERS / 2) ** (i / 8) for i in range(1, 9))])
        lines += [f'  <path class="s{number}" d="M{curve}"/>',
                  *(f'  <circle class="s{number}{" large" * (batch >= LARGE)}" cx="{x(share)}" cy="{y(ratio)}" r="4"/>'
                    for share, ratio, batch in points),
                  f'  <text x="{left + 8}" y="{y(bytes_ratio(lowest, number), -6)}">{servers}</text>']
    return "\n".join([*lines, "</svg>", ""])


def page(found, steps, link="1gbit"):
    cells = []
    for one in found:
        ring = ring_of(found, one)
        times = ["", ""] if one is ring else [f"{one[kind] / ring[kind]:.2f}" for kind in ("measured", "derived")]
        cells.append([f"{one['rows']:,}", one["batch"], f"{one['touched']:,.0f}", f"{100 * one['share']:.2g}%", one["name"],
                      f"{one['measured']:,.0f}{' !' * bool(one['not_valid'])}", f"{one['derived']:,.0f}",
                      f"{one['measured'] / one['derived'] - 1:+.0%}", *times])
    return ["# Where parameter servers are faster than a ring: tables of rows", "",
            f"{runs.measured_on()}: dlrm-small (8 tables of ROWS rows of width {WIDTH}, Zipf's distribution {ALPHA}), {WORKERS} "
            f"workers on links of {link} (network namespaces), ps-sync on dedicated servers, {steps} steps, one round. Written by "
            "experiments/benchmarks/sparse.py.", "",
            "![Speed of parameter servers relative to a ring, over the share of touched rows](sparse.svg)", "",
            *runs.table("rows of a table | batch | touched by a batch (m) | share (m) | strategy | samples/s (m) | samples/s (d) | "
                        "m / d | / ring (m) | / ring (d)", cells), "",
            "*m* measured; *d* derived: the measured step without communication (`none`), and the time of theory for the touched "
            "rows. ! not valid."]


if __name__ == "__main__":
    options = runs.parse(__doc__, psring=runs.PSRING, realtime=False, cells=(CELLS, "ROWS:BATCH,..."),
                         link=("1gbit", "rate of the links"), steps=20, out=runs.RESULTS)
    try:
        cells = [tuple(int(number) for number in cell.split(":")) for cell in options.cells.split(",")]
        cells = [(rows, batch) for rows, batch in cells if rows > 0 and batch > 0]
    except ValueError:
        sys.exit("--cells is ROWS:BATCH,... such as 1000:32,1000:512")
    found = []
    for rows, batch in cells:
        found += runs.measure_again_if_disturbed(lambda folder, rows=rows, batch=batch: measure(options, folder, rows, batch), 2)
        print(f"{rows} rows, batch {batch}: " + ", ".join(f"{one['name']} {one['measured']:,.0f} ({one['derived']:,.0f})"
                                                          for one in found[-3:]), file=sys.stderr)
    runs.write_result("sparse.md", page(found, options.steps, options.link), options.out)
    (options.out / "sparse.svg").write_text(chart(found))
