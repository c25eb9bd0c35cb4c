"""Functions for the benchmark scripts: run psring, interleave measurements, format tables, write result files."""
import argparse
import csv
import datetime
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PSRING = ROOT / "build/release/bin/psring"
RESULTS = ROOT / "experiments/results"


def flags(doc):
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def run(command, **options):
    """Returns the command's stdout. If the command fails, exits with its output."""
    command = [str(part) for part in command]
    done = subprocess.run(command, **{"capture_output": True, "text": True, "timeout": 3600, **options})
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout or ''}{done.stderr or ''}")
    return done.stdout


def train_into(out, arguments):
    run([PSRING, "train", *arguments, "--out", out])


def summary_rows(run_folder):
    with open(os.path.join(run_folder, "summary.csv")) as f:
        return list(csv.DictReader(f))


def read_json(folder, name):
    return json.loads((pathlib.Path(folder) / name).read_text())


def train(arguments):
    """Runs `psring train` and returns its row of summary.csv."""
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "run")
        train_into(out, arguments)
        return summary_rows(out)[0]


def accuracies(arguments, seeds, label):
    """Trains once per seed, 1 to `seeds`, and returns the test accuracies."""
    values = []
    for seed in range(1, seeds + 1):
        values.append(float(train([*arguments, "--schedule", "linear", "--seed", seed])["test_accuracy"]))
        print(f"{label} seed {seed}: {values[-1]:.4f}", file=sys.stderr)
    return values


def write_workload(path, megabytes, tensors):
    """Writes a workload that computes for only 2 ms, so that a step is nearly one exchange. 1 MB is 10^6 bytes."""
    rows = "".join(f"t{i},{megabytes * 1_000_000 // tensors},0\n" for i in range(tensors))
    path.write_text(f"# batch: 1\n# device: none\n# forward_ms: 1\n# backward_ms: 1\nname,bytes,ready_ms\n{rows}")


def cpu_info():
    return pathlib.Path("/proc/cpuinfo").read_text()


def processor_text(name, family, model, stepping, instruction_sets):
    """As experiments/host/processor.h writes it; unknown numbers are negative."""
    numbers = [f"{key} {value}" for key, value in (("family", family), ("model", model), ("stepping", stepping)) if value >= 0]
    details = "; ".join(part for part in (", ".join(numbers), instruction_sets) if part)
    return f"{name} ({details})" if details else name


def processor(cpuinfo):
    """The text for the first processor in the text of /proc/cpuinfo."""
    fields = {key.strip(): value.strip() for key, _, value in
              (line.partition(":") for line in cpuinfo.strip().split("\n\n")[0].splitlines())}
    flags = fields.get("flags", "").split()
    sets = [one for one in ("avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni") if one in flags]
    return processor_text(fields.get("model name", "unknown"), *(int(fields.get(key, -1)) for key in
                                                               ("cpu family", "model", "stepping")),
                          " ".join(sets + [one for one in flags if one.startswith("amx_")]))


def machine_text(machine):
    """The processor of a manifest's "machine"; those written before it had a family only have a name."""
    return processor_text(machine["cpu"], *(machine.get(key, -1) for key in ("cpu_family", "cpu_model", "cpu_stepping")),
                          machine.get("instruction_sets", ""))


def measured_on():
    return f"Measured {datetime.date.today()} on {processor(cpu_info())}, {os.cpu_count()} cores"


def cpu_ticks():
    with open("/proc/stat") as f:
        fields = [int(x) for x in f.readline().split()[1:9]]
    return sum(fields), sum(fields) - fields[3] - fields[4]


MOST_BY_OTHERS = 5  # percent of the processors


class Disturbed(SystemExit):
    """Other programs were so busy that the figures must not be written."""


def require_quiet(label, by_others):
    """by_others: percent of the processors that other programs used during a measurement."""
    if by_others > MOST_BY_OTHERS:
        raise Disturbed(f"{label}: not written: other programs used {by_others:.1f}% of the processors, more than "
                        f"{MOST_BY_OTHERS}%. Measure again when the machine is quiet.")


def interleave(contenders, rounds, label, warm_up=1, must_be_quiet=True):
    """Runs every contender once per round, so that disturbances affect all equally. The first `warm_up` rounds do not count.

    contenders: {name: function that returns a figure}. Returns ({name: values}, a sentence about other processes). Raises
    Disturbed if they were too busy."""
    results = {name: [] for name in contenders}
    load = os.getloadavg()[0]
    total0, busy0 = cpu_ticks()
    own0 = sum(os.times()[:4])
    for round_index in range(warm_up + rounds):
        for name, measure in contenders.items():
            value = measure()
            if round_index >= warm_up:
                results[name].append(value)
            print(f"{label} round {round_index + 1 - warm_up}: {name}: {value:,.0f}", file=sys.stderr)
    total1, busy1 = cpu_ticks()
    own = (sum(os.times()[:4]) - own0) * os.sysconf("SC_CLK_TCK")
    others = 100 * max(0.0, busy1 - busy0 - own) / max(1, total1 - total0)
    if must_be_quiet:
        require_quiet(label, others)
    return results, f"Processor time of other programs during the run: {others:.1f}%; load average before it: {load:.1f}."


def paired_ratio(values, base):
    return statistics.median(a / b for a, b in zip(values, base))


def spread(values, form=",.0f", center=statistics.median):
    return f"{center(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def table(head, rows):
    """Returns the lines of a Markdown table. head: its column names, separated by |."""
    return [f"| {head} |", "|" + "---|" * (head.count("|") + 1),
            *("| " + " | ".join(str(cell) for cell in row) + " |" for row in rows)]


def with_section(page, title, lines):
    """The page's text with these lines as its section `title`, in the place of the old one or at the end."""
    parts = re.split(r"^(?=## )", page, flags=re.MULTILINE)
    section = "\n".join([f"## {title}", "", *lines])
    at = next((i for i, part in enumerate(parts) if part.splitlines()[:1] == [f"## {title}"]), len(parts))
    parts[at:at + 1] = [section]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def write_result(name, lines, folder=RESULTS):
    """Prints the lines and writes them to NAME in the folder."""
    text = "\n".join(lines) + "\n"
    print(text)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)


def virtual_cluster_flags(doc):
    """Returns a parser with the flags of scripts that measure on a virtual cluster."""
    parser = flags(doc)
    parser.add_argument("--psring", default=PSRING)
    parser.add_argument("--realtime", action="store_true", help="run before all other processes (chrt --rr), as root")
    parser.add_argument("--out", help="also write the table to this file")
    return parser


def psring_command(options):
    return [*(["chrt", "--rr", "1"] if options.realtime else []), pathlib.Path(options.psring).resolve()]


def measure_again_if_disturbed(measure, most_tries=3):
    """Calls measure(folder) in an empty folder until no returned row is "not_valid"; returns the last try's rows."""
    for _ in range(most_tries):
        with tempfile.TemporaryDirectory() as folder:
            rows = measure(pathlib.Path(folder))
        why = next((row["not_valid"] for row in rows if row["not_valid"]), "")
        if not why:
            break
        print(f"  not valid: {why}", file=sys.stderr)
    return rows


def why_not_valid(valid, note, ignore_others):
    """Returns the reasons, or "" if the run is valid. ignore_others: it had priority, so other programs' load is no reason."""
    reasons = [part for part in note.split("; ") if not (ignore_others and part.startswith("other programs used"))]
    return "" if valid else "; ".join(reasons)
