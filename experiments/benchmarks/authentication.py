#!/usr/bin/env python3
"""Measures what the authentication of connections costs and writes experiments/results/authentication.md.

    ./run build && experiments/benchmarks/authentication.py [--rounds 20]

One handshake with a rendezvous store, by a client that is written here, compared with a TCP connection without one; and the
connections that a training opens, in a network namespace of its own, with few and with many steps. Takes about 30 s.
"""
import hashlib
import hmac
import os
import pathlib
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
STRATEGIES = {"ring over TCP": ["--strategy", "ring", "--transport", "tcp"],
              "ps-sync over gRPC": ["--strategy", "ps-sync", "--transport", "tcp"]}


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


def opened(args, flags, steps):
    """Returns how many TCP connections a training opens."""
    with tempfile.TemporaryDirectory() as folder:
        train = [args.psring, "train", *flags, "--model", "mlp-small", "--data", "synthetic", "--no_eval", "--workers",
                 args.workers, "--steps", steps, "--link", "none", "--out", pathlib.Path(folder) / "run"]
        script = 'ip link set lo up && "$@" >/dev/null && grep ^Tcp: /proc/net/snmp'
        text = runs.run(["unshare", "--user", "--map-root-user", "--net", "sh", "-c", script, "sh", *train])
        names, values = (line.split() for line in text.splitlines())
        return int(values[names.index("ActiveOpens")])


if __name__ == "__main__":
    args = runs.parse(__doc__, psring=runs.PSRING, workers=2, rounds=20, out=runs.RESULTS)
    load = os.getloadavg()[0]
    times = measure_handshakes(args)
    cost = statistics.median_high(b - a for a, b in zip(times["connection"], times["authenticated"]))
    rows = []
    for name, flags in STRATEGIES.items():
        counts = [opened(args, flags, steps) for steps in (FEW, MANY)]
        rows.append([name, *counts, f"{1e-3 * cost * counts[0]:.1f}"])
    runs.write_result("authentication.md", [
        "# Authentication of connections", "",
        f"{runs.measured_on()}. Written by experiments/benchmarks/authentication.py.", "",
        f"Time to connect to a rendezvous store, in us, *measured*: median of {args.rounds} (lowest to highest).", "",
        *runs.table("connection only | connection and handshake, until gRPC's first byte | difference (paired median)",
                    [[runs.spread(times["connection"]), runs.spread(times["authenticated"]), f"{cost:,.0f}"]]), "",
        f"TCP connections that a training with {args.workers} workers opens, *measured*. Handshakes take place when a connection is "
        "opened. The last column, *derived*, is the time of all of them, one after another; some take place at the same time.", "",
        *runs.table(f"strategy | {FEW} steps | {MANY} steps | handshakes, ms", rows), "",
        f"Load average before the run: {load:.1f}."], args.out)
