"""What the benchmark scripts share: flags, runs of psring, interleaved rounds, tables and pages of results."""
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

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PSRING = ROOT / "build/release/bin/psring"
RESULTS = ROOT / "experiments/results"
ALSO_TO = "also write the table to this file"
HELP = {"psring": "the program", "rounds": "interleaved", "out": "where to write the result",
        "realtime": "run before all other processes (chrt --rr), as root"}
MOST_BY_OTHERS = 5  # percent of the processors
MOST_FOREIGN_PCT = 25  # psring's limit for its own rows


def flags(doc, **defaults):
    """A parser with a flag of each name, of the type of its default: a value, or (value, help). False is a switch; a type is a
    flag without a default, and a list is one of choices."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in defaults.items():
        value, text = value if isinstance(value, tuple) else (value, HELP.get(name))
        how = ({"action": "store_true"} if value is False else {"type": value} if isinstance(value, type) else
               {"choices": value} if isinstance(value, list) else {"type": type(value), "default": value})
        parser.add_argument(f"--{name}", help=text, **how)
    return parser


def parse(doc, **defaults):
    return flags(doc, **defaults).parse_args()


def run(command, **options):
    """Returns the command's stdout. If the command fails, exits with its output."""
    command = [str(part) for part in command]
    done = subprocess.run(command, **{"capture_output": True, "text": True, "timeout": 3600, **options})
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout or ''}{done.stderr or ''}")
    return done.stdout


def read_json(folder, name):
    return json.loads((pathlib.Path(folder) / name).read_text())


def read_csv(folder, name):
    with open(os.path.join(folder, name)) as f:
        return list(csv.DictReader(f))


def train(arguments, read=lambda out: read_csv(out, "summary.csv")[0]):
    """Runs `psring train` and returns what `read` finds in the run's folder: its row of summary.csv."""
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "run")
        run([PSRING, "train", *arguments, "--out", out])
        return read(out)


def bench(psring, arguments, **options):
    """Runs `psring bench`. Returns (rows of bench.json, manifest)."""
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "run")
        run([psring, "bench", *arguments, "--out", out], **options)
        return read_json(out, "bench.json")["results"], read_json(out, "manifest.json")


def compare(options, folder, arguments):
    """Runs a round of `psring compare` on a virtual cluster of network namespaces. Returns the figures of each row, with its
    "prediction", "shared" (it had priority over busy programs) and "not_valid" (why, or "")."""
    run([*psring_command(options), "compare", *arguments, "--shaping", "netns", "--repeats", 1, "--time_budget", "2h", "--out",
         folder / "run"])
    return [{**row["figures"], "prediction": row.get("prediction", {}),
             "shared": options.realtime and row["figures"]["foreign_cpu_pct"] > MOST_FOREIGN_PCT,
             "not_valid": why_not_valid(row["figures"], options.realtime)} for row in read_json(folder / "run", "summary.json")]


def psring_command(options):
    return [*(["chrt", "--rr", "1"] if options.realtime else []), pathlib.Path(options.psring).resolve()]


def why_not_valid(figures, ignore_others):
    """Returns the reasons, or "" if the run is valid. ignore_others: it had priority, so other programs' load is no reason."""
    reasons = [part for part in (figures["note"] or "").split("; ")
               if not (ignore_others and part.startswith("other programs used"))]
    return "" if figures["valid"] else "; ".join(reasons)


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


def measure_cases(options, cases, measure, report, head):
    """Measures the cases, {name: case}, of which --cases has a part of the name. measure(folder, name, case): rows. report(rows):
    (lines, problems). Writes head, command and lines to --out after each case; exits with 1 if there is a problem."""
    wanted = {name: case for name, case in cases.items() if any(part in name for part in options.cases.split(";"))}
    if not wanted:
        sys.exit(f"no case contains '{options.cases}'; there are: {'; '.join(cases)}")
    rows = []
    for name, case in wanted.items():
        print(name, file=sys.stderr)
        rows += measure_again_if_disturbed(lambda folder, name=name, case=case: measure(folder, name, case))
        lines, problems = report(rows)
        if options.out:
            command = " ".join([f"experiments/benchmarks/{pathlib.Path(sys.argv[0]).name}", *sys.argv[1:]])
            write([*head, "", f"    {command}", "", f"{measured_on()}.", "", *lines], options.out)
    finish(lines, problems)


def finish(lines, problems):
    """Prints the lines, and exits with 1 if there is a problem."""
    print("\n".join(lines))
    for problem in problems:
        print(f"outside: {problem}", file=sys.stderr)
    sys.exit(1 if problems else 0)


def write_workload(path, megabytes, tensors):
    """Writes a workload that computes for only 2 ms, so that a step is nearly one exchange. 1 MB is 10^6 bytes."""
    rows = "".join(f"t{i},{megabytes * 1_000_000 // tensors},0\n" for i in range(tensors))
    path.write_text(f"# batch: 1\n# device: none\n# forward_ms: 1\n# backward_ms: 1\nname,bytes,ready_ms\n{rows}")


def cpu_info():
    return pathlib.Path("/proc/cpuinfo").read_text()


def processor_text(name, family, model, stepping, instruction_sets):
    """As experiments/machine/machine.h writes it; unknown numbers are negative."""
    numbers = [f"{key} {value}" for key, value in (("family", family), ("model", model), ("stepping", stepping)) if value >= 0]
    details = "; ".join(part for part in (", ".join(numbers), instruction_sets) if part)
    return f"{name} ({details})" if details else name


def processor(cpuinfo):
    """The text for the first processor in the text of /proc/cpuinfo."""
    fields = {key.strip(): value.strip() for key, _, value in
              (line.partition(":") for line in cpuinfo.strip().split("\n\n")[0].splitlines())}
    has = fields.get("flags", "").split()
    sets = [one for one in ("avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni") if one in has]
    return processor_text(fields.get("model name", "unknown"),
                          *(int(fields.get(key, -1)) for key in ("cpu family", "model", "stepping")),
                          " ".join(sets + [one for one in has if one.startswith("amx_")]))


def machine_text(machine):
    """The processor of a manifest's "machine"; those written before it had a family only have a name."""
    return processor_text(machine["cpu"], *(machine.get(key, -1) for key in ("cpu_family", "cpu_model", "cpu_stepping")),
                          machine.get("instruction_sets", ""))


def measured_on():
    return f"Measured {datetime.date.today()} on {processor(cpu_info())}, {os.cpu_count()} cores"


def congestion_control():
    """A sentence. It decides the speed of connections within a machine that psring does not open."""
    name = pathlib.Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    return f"TCP's congestion control on this machine, which libraries use: {name}; psring's connections use reno."


def cpu_ticks():
    with open("/proc/stat") as f:
        fields = [int(x) for x in f.readline().split()[1:9]]
    return sum(fields), sum(fields) - fields[3] - fields[4]


class Load:
    """What other programs use of the processors. This script's children count as its own when they have ended."""

    def __init__(self):
        self.begin = self.ticks()

    @staticmethod
    def ticks():
        return *cpu_ticks(), sum(os.times()[:4]) * os.sysconf("SC_CLK_TCK")

    def others_pct(self):
        total, busy, own = (end - begin for begin, end in zip(self.begin, self.ticks()))
        return 100 * max(0.0, busy - own) / max(1, total)


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
    if rounds < 1:
        sys.exit("--rounds must be at least 1")
    results = {name: [] for name in contenders}
    before, load = os.getloadavg()[0], Load()
    for round_index in range(warm_up + rounds):
        for name, measure in contenders.items():
            value = measure()
            if round_index >= warm_up:
                results[name].append(value)
            print(f"{label} round {round_index + 1 - warm_up}: {name}: {value:,.0f}", file=sys.stderr)
    others = load.others_pct()
    if must_be_quiet:
        require_quiet(label, others)
    return results, f"Processor time of other programs during the run: {others:.1f}%; load average before it: {before:.1f}."


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


def save_section(path, head, title, lines):
    """Prints the section and puts it on the page at `path`, which begins with `head` if it is new."""
    write(with_section(path.read_text() if path.exists() else head, title, lines).splitlines(), path)
    print("\n".join([f"## {title}", "", *lines, ""]))


def measure_parts(args, parts):
    """The exit code, after the parts that --parts names. parts: {name: function of args that returns problems}."""
    if args.any_load:
        global MOST_BY_OTHERS
        MOST_BY_OTHERS = 100
    try:
        problems = [problem for part in args.parts.split(",") for problem in parts[part](args)]
    except Disturbed as why:
        sys.exit(str(why))
    for problem in problems:
        print(f"outside: {problem}", file=sys.stderr)
    return int(bool(problems))


def write(lines, path):
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def write_result(name, lines, folder=RESULTS):
    """Prints the lines and writes them to NAME in the folder."""
    print("\n".join(lines) + "\n")
    write(lines, folder / name)
