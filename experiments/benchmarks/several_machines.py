#!/usr/bin/env python3
"""Compares `psring compare --nnodes` with `psring compare` on the virtual cluster of as many nodes.

    ./run build && experiments/benchmarks/several_machines.py [--machines 2,3,4] [--alternations 3] [--realtime]

A machine is a network namespace with its own host name, connected to a switch by a link with the rate and the queues of the
virtual cluster (virtual_cluster/namespaces.cc). A separate command in each machine starts `compare --nnodes` with one worker.
Both kinds of cluster take turns with the same comparison: inception_bn, 45 MB of gradients, replayed. The script compares the
samples/s of every strategy.

Writes experiments/results/several_machines.md, or the file given with --out. Exit code 1 if a pair differs by more than 5%, or
a run on the virtual cluster is not valid. Needs root, setpriv, unshare and nsenter (util-linux), and ip and tc (iproute2).
"""
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import runs

TOLERANCE = .05
WORKLOAD, WARMUP_STEPS = "inception_bn", 2
ON_RANK_0 = ["--server_placement", "rank0"]  # the same on both kinds of cluster, whose defaults differ
# One comparison each: flags, and the names of its rows by strategy. Asynchronous workers share the steps: the one beside the
# server takes most, and the others need some, too. Its exchange is limited by the processor, so it computes slowly. Colocated
# servers: steps are aligned, because a worker that is ahead stays ahead, and slows all of them; and TCP's windows differ between
# launches, so there are several.
COMPARISONS = [(["--strategies", "ring,ps-sync", *ON_RANK_0, "--steps", 6, "--repeats", 1], {"ring": "ring", "ps-sync": "ps-sync"}),
               (["--strategies", "ps-async", *ON_RANK_0, "--steps", 20, "--repeats", 1, "--compute_speedup", .25],
                {"ps-async": "ps-async"}),
               (["--strategies", "ps-sync", "--server_placement", "colocated", "--align_steps", "--steps", 6, "--repeats", 3],
                {"ps-sync": "ps-sync, colocated servers"})]
COMPARED = [name for _, names in COMPARISONS for name in names.values()]
MOST_SECONDS = 400  # of one comparison
END_WITH_US = ["setpriv", "--pdeathsig", "TERM"]  # also if this script is killed
PORT = 29500


class Network:
    """A network namespace, which the kernel removes when this script ends."""

    def __init__(self, name):
        self.holder = subprocess.Popen(["unshare", "--net", "--uts", "sh", "-c",
                                        f"echo {name} >/proc/sys/kernel/hostname && echo made && exec cat"],
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if self.holder.stdout.readline() != b"made\n":
            sys.exit("no network namespace can be made: run as root")
        self.inside = ["nsenter", "--target", str(self.holder.pid), "--net", "--uts"]
        runs.run([*self.inside, "sh", "-c", "cd /proc/sys/net/ipv4 && echo 1 >tcp_no_metrics_save && "
                  "{ echo cubic >tcp_congestion_control || echo reno >tcp_congestion_control; } 2>/dev/null"])

    def batch(self, tool, lines):
        runs.run([*self.inside, tool, "-batch", "-"], input="\n".join(lines) + "\n")

    def close(self):
        self.holder.communicate()


def bits_per_s(link):
    """Of the text of --link; a whole number of mbit or gbit."""
    for unit, bits in (("gbit", 10 ** 9), ("mbit", 10 ** 6)):
        if link.endswith(unit) and link.removesuffix(unit).isdigit():
            return int(link.removesuffix(unit)) * bits
    sys.exit(f"--link {link}: write a rate such as 1gbit or 200mbit")


class Machines:
    """As many machines as the virtual cluster's nodes, with its addresses, links and queues."""

    def __init__(self, count, rate):
        self.burst = max(16 << 10, int(8 * (128 << 10) / 1e9 * rate / 8))
        self.queue = max(256 << 10, int(.016 * rate / 8))
        self.rate, self.count, self.networks = rate, count, []
        try:
            self.make()
        except BaseException:
            self.close()
            raise

    @staticmethod
    def address(machine):
        return f"10.86.0.{machine + 1}"

    def make(self):
        self.networks = [Network("switch")]
        switch = self.networks[0]
        switch.batch("ip", ["link set lo up", "link add psring0 type bridge", "link set psring0 up",
                            "addr add 10.86.255.254/16 dev psring0"])
        for machine in range(self.count):
            network = Network(f"machine{machine}")
            self.networks.append(network)
            port = f"psring-p{machine}"
            switch.batch("ip", [f"link add {port} type veth peer name eth0 netns {network.holder.pid}",
                                f"link set {port} master psring0 up"])
            network.batch("ip", ["link set lo up", "link set eth0 up", f"addr add {self.address(machine)}/16 dev eth0",
                                 f"link set eth0 gso_max_size {min(64 << 10, self.burst * 7 // 8)}"])
            network.batch("tc", self.shaper("eth0", "dst"))
            switch.batch("tc", self.shaper(port, "src"))

    def shaper(self, interface, other_end):
        """A token bucket, then one queue for each other machine, served round robin."""
        lines = [f"qdisc replace dev {interface} root handle 1: tbf rate {self.rate}bit burst {self.burst} limit {self.queue}",
                 f"qdisc add dev {interface} parent 1:1 handle 2: htb default ffff"]
        for queue in [0xffff, *range(1, self.count + 1)]:
            lines += [f"class add dev {interface} parent 2: classid 2:{queue:x} htb rate 1000gbit burst 1m cburst 1m quantum 65536",
                      f"qdisc add dev {interface} parent 2:{queue:x} bfifo limit {self.queue}"]
        return lines + [f"filter add dev {interface} parent 2: protocol ip u32 match ip {other_end} {self.address(machine)}/32 "
                        f"flowid 2:{machine + 1:x}" for machine in range(self.count)]

    def run(self, command, out, folder):
        """Starts the command on every machine and waits for all; if one fails, ends all and exits with their last lines."""
        started, logs = [], [folder / f"machine{machine}.log" for machine in range(self.count)]
        deadline = time.monotonic() + MOST_SECONDS
        try:
            for machine, network in enumerate(self.networks[1:]):
                own = ["--nnodes", self.count, "--node_rank", machine, "--master_addr", self.address(0), "--master_port", PORT,
                       *(["--out", out] if machine == 0 else [])]
                with logs[machine].open("w") as log:
                    started.append(subprocess.Popen([str(part) for part in [*END_WITH_US, *network.inside, *command, *own]],
                                                    stdin=subprocess.DEVNULL, stdout=log, stderr=log))
            for one in started:
                one.wait(max(1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            pass
        finally:
            for one in started:
                if one.poll() is None:
                    one.terminate()
            for one in started:
                one.wait()
        if any(one.returncode for one in started):
            sys.exit("\n".join(f"machine {machine}, exit code {one.returncode}: {log.read_text()[-1000:]}"
                               for machine, (one, log) in enumerate(zip(started, logs))))

    def timeouts(self):
        """TCP's retransmission time-outs on all machines, since they were made. Each takes at least 200 ms."""
        total = 0
        for network in self.networks[1:]:
            names, numbers = [line.split()[1:] for line in runs.run([*network.inside, "cat", "/proc/net/netstat"]).splitlines()
                              if line.startswith("TcpExt:")]
            total += int(numbers[names.index("TCPTimeouts")])
        return total

    def close(self):
        for network in reversed(self.networks):
            network.close()


def run_once(options, machines, transport, flags, names, kind):
    """The record of a comparison on one kind of cluster. names: {strategy: name}."""
    command = [*runs.psring_command(options), "compare", *flags, "--workers", machines.count, "--workload", WORKLOAD,
               "--transport", transport, "--warmup_steps", WARMUP_STEPS, "--no_eval"]
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        out, load, timeouts = folder / "run", runs.Load(), machines.timeouts()
        if kind == "virtual":
            runs.run([*END_WITH_US, *command, "--link", options.link, "--shaping", "netns", "--out", out], timeout=MOST_SECONDS)
        else:
            machines.run(command, out, folder)
        others, timeouts = load.others_pct(), machines.timeouts() - timeouts
        rows = [row["figures"] for row in runs.read_json(out, "summary.json") if row["figures"]["strategy"] in names]
        link = runs.read_json(out, "manifest.json")["link"]
    speeds = {names[row["strategy"]]: row["samples_per_s"] for row in rows}
    # Each machine's psring counts the processes of the others as other programs.
    reasons = [(names[row["strategy"]], runs.why_not_valid(row, options.realtime or kind == "machines")) for row in rows]
    problems = [f"{name}: {why}" for name, why in reasons if why]
    if kind == "machines" and others > runs.MOST_FOREIGN_PCT and not options.realtime:
        problems.append(f"other programs used {others:.0f}% of the processors")
    rate = link.get("network", link)["wires"]["mb_per_s"]
    print(f"{machines.count} machines, {kind}: {speeds} at {rate:.1f} MB/s, others {others:.0f}%, {timeouts} TCP time-outs between "
          f"machines {problems or ''}", file=sys.stderr)
    return {"nodes": machines.count, "kind": kind, "speeds": speeds, "problems": problems, "mb_per_s": rate, "others_pct": others,
            "timeouts": timeouts, "realtime": options.realtime, "transport": transport}


def measure(options, machines, transport, alternation):
    """One record per comparison and kind of cluster. Disturbed ones are repeated."""
    records = []
    for flags, names in COMPARISONS:
        for kind in ("virtual", "machines")[::1 if alternation % 2 == 0 else -1]:
            for _ in range(3):
                record = run_once(options, machines, transport, flags, names, kind)
                if not record["problems"]:
                    break
            records.append(record)
    return records


def compare(records):
    """Returns the cells of the table, the number of pairs within the tolerance, and what is outside or not valid."""
    rows, within, problems = [], 0, []
    for transport, nodes in sorted({(record["transport"], record["nodes"]) for record in records}):
        for name in COMPARED:
            values = {kind: [record["speeds"][name] for record in records if record["nodes"] == nodes and record["kind"] == kind
                             and record["transport"] == transport and name in record["speeds"]] for kind in ("virtual", "machines")}
            if not all(values.values()):
                continue
            ratio = statistics.median(values["machines"]) / statistics.median(values["virtual"])
            inside = abs(ratio - 1) <= TOLERANCE
            within += inside
            if not inside:
                problems.append(f"{name} x {nodes}, --transport {transport}: {ratio:.3f} times the virtual cluster's")
            rows.append([transport, nodes, name, min(map(len, values.values())), runs.spread(values["virtual"], ".1f"),
                         runs.spread(values["machines"], ".1f"), f"{ratio:.3f}" + " **outside**" * (not inside)])
    problems += [f"{record['nodes']} nodes, {record['kind']}: {problem}" for record in records for problem in record["problems"]]
    return rows, within, problems


def page(options, records):
    """The lines of the page, whose notes are kept, and what compare() found to be wrong."""
    rows, within, problems = compare(records)
    rates = {kind: [record["mb_per_s"] for record in records if record["kind"] == kind] for kind in ("virtual", "machines")}
    _, mark, notes = (runs.RESULTS / "several_machines.md").read_text().partition("**Why ps-async")
    return [
        "# Several machines compared with the virtual cluster", "",
        "    experiments/benchmarks/several_machines.py", "",
        f"{runs.measured_on()}. Other programs used at most {max(record['others_pct'] for record in records):.0f}% of the processors "
        "during a run"
        f"{', and psring had priority over them (--realtime)' * any(record.get('realtime') for record in records)}. "
        "All *measured*.", "",
        "A machine is a network namespace with its own host name, and a separate command starts `compare --nnodes N` in each, with "
        f"one worker per machine. The virtual cluster is `compare --link {options.link} --shaping netns` with as many workers; "
        "servers are on rank 0's host, except the colocated ones. Links have the same rate and queues, and no added delay. "
        f"Both get the same flags and take turns (pairs of runs). Workload {WORKLOAD} (45 MB of gradients, replayed), "
        f"{WARMUP_STEPS} steps of warm-up, then one round of 6 steps; ps-async: 20 per worker with `--compute_speedup .25`; "
        "colocated servers: 3 rounds with `--align_steps`. Samples/s: median (lowest to highest).", "",
        *runs.table("--transport | nodes | strategy | pairs | virtual cluster | machines | ratio of the medians", rows), "",
        f"{within} of {len(rows)} ratios are within 5%. The links carried "
        f"{runs.spread(rates['virtual'], '.1f')} MB/s of payload on the virtual cluster and "
        f"{runs.spread(rates['machines'], '.1f')} MB/s between the machines, as psring measured before each comparison.",
        "", *(mark + notes).splitlines()], problems


def main():
    options = runs.parse(__doc__, psring=runs.PSRING, realtime=False, machines=("2,3,4", "numbers of machines"), link="1gbit",
                         transports=("auto,tcp", "of --transport"), alternations=3, out=runs.RESULTS / "several_machines.md")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    rate = bits_per_s(options.link)
    records = []
    for count in map(int, options.machines.split(",")):
        machines = Machines(count, rate)
        try:
            for transport in options.transports.split(","):
                for alternation in range(options.alternations):
                    records += measure(options, machines, transport, alternation)
        finally:
            machines.close()
    lines, problems = page(options, records)
    runs.write_result(options.out.name, lines, options.out.parent)
    for problem in problems:
        print(problem, file=sys.stderr)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
