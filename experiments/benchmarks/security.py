#!/usr/bin/env python3
"""Measures what the authentication and the encryption of connections cost.

    ./run build && experiments/benchmarks/security.py [--pages authentication,tls] [--rounds 20]

authentication: one handshake with a rendezvous store, by a client that is written here, compared with a TCP connection without
one; and the connections that a training opens, in a network namespace of its own, with few and with many steps. Takes about 30 s.

tls: with and without `--tls auto`, alternating: a ring all-reduce over TCP, rounds of a parameter server over gRPC and over its
stream, and a training of one step, from the start of psring to its end. The first round of each is a warm-up. Takes about 6 minutes.

Prints the tables and writes PAGE.md in --out.
"""
import hashlib
import hmac
import os
import pathlib
import re
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import peers
import runs

SECRET = bytes(range(16))
RENDEZVOUS = 1  # Purpose::kRendezvous of common/net/authentication.h
FEW, MANY = 20, 200  # steps
PLAIN, ENCRYPTED = "without", "with --tls auto"


def sign(key, *parts):
    return hmac.new(key, b"".join(parts), hashlib.sha256).digest()


def receive(connection, count):
    received = connection.recv(count, socket.MSG_WAITALL)
    if len(received) < count:
        sys.exit("the store closed the connection")
    return received


def connect(port, handshake=lambda connection, port: None):
    """Returns the time to open a connection, until the end of its handshake, in us."""
    begin = time.perf_counter()
    with socket.create_connection(("127.0.0.1", port)) as connection:
        handshake(connection, port)
        return 1e6 * (time.perf_counter() - begin)


def authenticate(connection, port):
    """Returns when both sides have proved that they have the secret."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    key = sign(SECRET, b"psring derived at 127.0.0.1:%d" % port)[:16]
    hello = b"psring" + struct.pack("=BBQ", 2, RENDEZVOUS, 0) + os.urandom(16)
    hello += sign(key, b"psring hello ", hello)
    connection.sendall(hello)
    answer = receive(connection, 8 + 48)
    nonce = answer[8:24]
    if not hmac.compare_digest(answer[24:], sign(key, b"psring server ", hello, nonce)):
        sys.exit("the store has another secret")
    connection.sendall(sign(key, b"psring client ", hello, nonce))
    receive(connection, 1)  # gRPC's first byte, after the store has checked the proof


def measure_handshakes(args):
    """Returns {kind of connection: times in us of each round}."""
    (port,) = peers.free_ports(1)
    environment = {**os.environ, "RANK": "0", "WORLD_SIZE": "2", "PSRING_SECRET": SECRET.hex()}
    store = subprocess.Popen([args.psring.parent / "trainer", "--strategy", "ring", "--data", "synthetic", "--timeout", "600",
                              "--rendezvous", f"tcp://127.0.0.1:{port}"], env=environment, stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 10
        while True:
            try:
                connect(port)
                break
            except OSError:
                if time.monotonic() > deadline:
                    sys.exit("no rendezvous store within 10 s")
                time.sleep(.05)
        # It takes a few ms, and the processors' use is counted in 10 ms.
        return runs.interleave({"connection": lambda: connect(port), "authenticated": lambda: connect(port, authenticate)},
                               args.rounds, "us", must_be_quiet=False)[0]
    finally:
        store.kill()
        store.wait()


def train(args, flags, steps, *inside):
    """Trains with the command `inside`, and returns its output."""
    with tempfile.TemporaryDirectory() as folder:
        return runs.run([*inside, args.psring, "train", *flags, "--transport", "tcp", "--model", "mlp-small", "--data", "synthetic",
                         "--no_eval", "--workers", args.workers, "--steps", steps, "--link", "none", "--out",
                         pathlib.Path(folder) / "run"])


def opened(args, strategy, steps):
    """Returns how many TCP connections a training opens."""
    script = 'ip link set lo up && "$@" >/dev/null && grep ^Tcp: /proc/net/snmp'
    text = train(args, ["--strategy", strategy], steps, "unshare", "--user", "--map-root-user", "--net", "sh", "-c", script, "sh")
    names, values = (line.split() for line in text.splitlines())
    return int(values[names.index("ActiveOpens")])


def authentication(args):
    load = os.getloadavg()[0]
    times = measure_handshakes(args)
    cost = statistics.median_high(b - a for a, b in zip(times["connection"], times["authenticated"]))
    rows = []
    for name, strategy in (("ring over TCP", "ring"), ("ps-sync over gRPC", "ps-sync")):
        counts = [opened(args, strategy, steps) for steps in (FEW, MANY)]
        rows.append([name, *counts, f"{1e-3 * cost * counts[0]:.1f}"])
    return [
        "# Authentication of connections", "", f"{runs.measured_on()}.", "",
        f"Time to connect to a rendezvous store, in us, *measured*: median of {args.rounds} (lowest to highest).", "",
        *runs.table("connection only | connection and handshake, until gRPC's first byte | difference (paired median)",
                    [[runs.spread(times["connection"]), runs.spread(times["authenticated"]), f"{cost:,.0f}"]]), "",
        f"TCP connections that a training with {args.workers} workers opens, *measured*. Handshakes take place when a connection is "
        "opened. The last column, *derived*, is the time of all of them, one after another; some take place at the same time.", "",
        *runs.table(f"strategy | {FEW} steps | {MANY} steps | handshakes, ms", rows), "", f"Load average before the run: {load:.1f}."]


def bandwidth(args, flags):
    """The bus bandwidth in GB/s."""
    (row,), _ = runs.bench(args.psring, [*flags, "--transport", "tcp", "--sizes", args.bytes, "--workers", args.workers, "-n",
                                         args.iterations, "--rounds", 1])
    return row["out_of_place"]["bus_bw"]


def start(args, flags):
    """The time of a training of one step in ms."""
    begin = time.monotonic()
    train(args, flags, 1)
    return 1e3 * (time.monotonic() - begin)


def cipher():
    """The rate of AES-128-GCM on a core in GB/s, for records of TLS, and what measured it."""
    if shutil.which("openssl") is None:
        sys.exit("security.py: install openssl, which measures the cipher")
    text = runs.run(["openssl", "speed", "-mr", "-seconds", 3, "-bytes", 16384, "-evp", "aes-128-gcm"])
    rate = float(re.search(r"^\+F:.*:([0-9.]+)$", text, re.MULTILINE)[1]) / 1e9
    return rate, " ".join(runs.run(["openssl", "version"]).split()[:2])


def limit(plain, passes, workers, rate):
    """GB/s if encryption cost nothing but the cipher, which the bytes of each worker pass `passes` times on all cores. A worker's own
    core has two of them."""
    each = max(2, passes * workers / os.cpu_count())
    return 1 / (1 / plain + each / rate)


# name, unit, format, function, flags, passes of a worker's bytes through the cipher
ENCRYPTION = [
    ("ring all-reduce over TCP", "GB/s of bus bandwidth", ".2f", bandwidth,
     ["--collective", "all_reduce", "--backend", "native", "--algorithm", "ring"], 2),
    ("round of a parameter server over gRPC", "GB/s of bus bandwidth", ".2f", bandwidth, ["--collective", "ps_push_pull"], 4),
    ("round of a parameter server over its stream", "GB/s of bus bandwidth", ".2f", bandwidth,
     ["--collective", "ps_push_pull", "--server_wire", "stream"], 4),
    ("training of one step, ring", "ms", ".0f", start, ["--strategy", "ring"], None),
    ("training of one step, ps-sync", "ms", ".0f", start, ["--strategy", "ps-sync"], None),
]


def tls(args):
    rows, notes = [], []
    rate, library = cipher()
    for name, unit, form, function, flags, passes in ENCRYPTION:
        results, others = runs.interleave({PLAIN: lambda: function(args, flags),
                                           ENCRYPTED: lambda: function(args, [*flags, "--tls", "auto"])}, args.rounds, name)
        plain = statistics.median(results[PLAIN])
        rows.append([name, unit, *(runs.spread(values, form) for values in results.values()),
                     f"{runs.paired_ratio(results[ENCRYPTED], results[PLAIN]):.2f}",
                     format(limit(plain, passes, args.workers, rate), form) if passes else ""])
        notes.append(f"* {name}: {others}")
    return [
        "# Encrypted connections", "", f"{runs.measured_on()}. All *measured*, except the limit.", "",
        f"{args.workers} workers on one machine, {args.bytes} B; medians of {args.rounds} interleaved rounds (lowest to highest). "
        "Workers and server encrypt, and for gRPC threads of their own; all share the cores of this machine. The loss between "
        "separate machines was not measured.", "",
        f"The limit, *derived*: the time without encryption and that of the cipher, AES-128-GCM, which runs at {rate:.1f} GB/s on a "
        f"core (*measured* with `openssl speed`, records of 16 KiB, {library}). A worker encrypts and decrypts; so does the server "
        "for each worker.", "",
        *runs.table(f"what | unit | {PLAIN} | {ENCRYPTED} | with / without (paired median) | limit", rows), "", *notes]


PAGES = {"authentication": authentication, "tls": tls}

if __name__ == "__main__":
    args = runs.parse(__doc__, pages=",".join(PAGES), psring=runs.PSRING, workers=2, rounds=20,
                      iterations=(20, "of a collective"), bytes=(25 << 20, "of a gradient"), out=runs.RESULTS)
    for name in args.pages.split(","):
        runs.write_result(f"{name}.md", [*PAGES[name](args), "", f"Written by experiments/benchmarks/security.py --pages {name}."],
                          args.out)
