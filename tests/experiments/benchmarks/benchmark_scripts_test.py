#!/usr/bin/env python3
"""The benchmark scripts' decisions, without running a benchmark. Argument: the folder experiments/benchmarks."""
import contextlib
import io
import os
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest
import unittest.mock
import xml.etree.ElementTree

sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv.pop(1))

import accuracy
import collectives
import first_run
import layout_walk
import peers
import pipeline
import ps_round
import runs
import several_machines
import soak
import sparse
import training

CPU_INFO = """processor\t: 0
cpu family\t: 26
model\t\t: 17
model name\t: AMD EPYC
stepping\t: 0
flags\t\t: fpu amx_tile avx512_bf16 avx512f sse fma avx2 avx512_vnni amx_int8 avx512_vnnix

processor\t: 1
model\t\t: 1
flags\t\t: fpu
"""


def stderr_of(function):
    with contextlib.redirect_stderr(io.StringIO()) as text:
        result = function()
    return result, text.getvalue()


def on_machine(busy_percent, function):
    """Calls the function as on a machine of which other programs use that much."""
    ticks = iter(range(0, 1000 * 100, 1000))

    def cpu_ticks():
        total = next(ticks)
        return total, total * busy_percent / 100
    with unittest.mock.patch.multiple(runs, cpu_ticks=cpu_ticks), unittest.mock.patch("os.times", return_value=(0,) * 5):
        return stderr_of(function)


class Processor(unittest.TestCase):
    def test_is_written_as_psring_writes_it(self):
        self.assertEqual(runs.processor(CPU_INFO), "AMD EPYC (family 26, model 17, stepping 0; avx2 fma avx512f avx512_bf16 "
                         "avx512_vnni amx_tile amx_int8)")
        self.assertEqual(runs.processor(""), "unknown")

    def test_of_an_old_manifest_is_only_named(self):
        self.assertEqual(runs.machine_text({"cpu": "AMD EPYC"}), "AMD EPYC")
        self.assertEqual(runs.machine_text({"cpu": "AMD EPYC", "cpu_family": 25, "cpu_model": 1, "cpu_stepping": 1,
                                            "instruction_sets": "avx2"}), "AMD EPYC (family 25, model 1, stepping 1; avx2)")


class Measuring(unittest.TestCase):
    def tries(self, reasons):
        left = iter(reasons)
        return stderr_of(lambda: runs.measure_again_if_disturbed(lambda folder: [
            {"not_valid": ""}, {"not_valid": next(left), "empty": not any(folder.iterdir())}]))

    def test_repeats_disturbed_measurements(self):
        rows, said = self.tries(["busy", "", "not reached"])
        self.assertEqual(rows[1], {"not_valid": "", "empty": True})
        self.assertIn("busy", said)

    def test_gives_up_after_three(self):
        rows, _ = self.tries(["a", "b", "c", ""])
        self.assertEqual(rows[1]["not_valid"], "c")

    def test_interleaves_and_omits_the_warm_up(self):
        order = []
        values = iter(range(1, 7))

        def contender(name):
            return lambda: order.append(name) or next(values)
        (results, others), _ = on_machine(5, lambda: runs.interleave({"a": contender("a"), "b": contender("b")}, 2, "test"))
        self.assertEqual(order, ["a", "b"] * 3)
        self.assertEqual(results, {"a": [3, 5], "b": [4, 6]})
        self.assertRegex(others, "5.0%; load average")

    def test_writes_nothing_if_other_programs_were_busy(self):
        contenders = {"a": lambda: 1}
        with self.assertRaisesRegex(runs.Disturbed, "my model: not written: other programs used 6.0% of the processors"):
            on_machine(6, lambda: runs.interleave(contenders, 1, "my model"))
        on_machine(6, lambda: runs.interleave(contenders, 1, "too short to tell", must_be_quiet=False))
        manifest = {"machine": {"cpu": "", "cores": 2, "memory_mb": 1, "system": "", "kernel": ""}, "started_utc": "",
                    "versions": {"revision": ""}}
        with self.assertRaisesRegex(runs.Disturbed, "psring bench: not written"):
            collectives.section("title", [{"size": 4, "foreign_cpu_pct": percent} for percent in (1, 7)], manifest, "psring bench")

    def test_trainings_on_a_busy_machine_leave_the_page_unchanged(self):
        with tempfile.TemporaryDirectory() as folder, unittest.mock.patch.multiple(
                runs, PSRING=None, train=lambda flags: {"loss": 1, "samples_per_s": 1}), unittest.mock.patch.object(
                    sys, "argv", ["training.py", "--models", "gpt-nano,mlp", "--torch_python", "", "--tensorflow_python", "", "--out",
                                  folder]), unittest.mock.patch.object(training, "limit_text", lambda model: ""):
            code, said = on_machine(6, training.main)
            self.assertEqual((code, os.listdir(folder)), (1, []))
            self.assertRegex(said, "(?s)gpt-nano: not written.*mlp: not written")
            with contextlib.redirect_stdout(io.StringIO()):
                code, _ = on_machine(4, training.main)
            self.assertEqual((code, sorted(os.listdir(folder))), (0, ["training_mlp.md", "training_models.md"]))


class FirstRun(unittest.TestCase):
    def test_replaces_only_what_is_between_the_marks(self):
        text = "a\n<!-- first run: x -->\nold\n<!-- end of the first run -->\nb\n"
        new = first_run.with_result(text, "Use ring.\n\n  gain", "p.webp", "title", "caption")
        self.assertEqual(new, "a\n<!-- first run: x -->\n    Use ring.\n\n      gain\n\n![title](p.webp)\n*caption*\n"
                         "<!-- end of the first run -->\nb\n")
        self.assertEqual(first_run.with_result(new, "Use ring.\n\n  gain", "p.webp", "title", "caption"), new)

    def test_takes_the_answer_from_the_output(self):
        output = "network: x\nround 1/3\n\nUse ring with 4 workers.\n\n  gain   2\n\ntable\n\nMeasured: by a clock.\n\n7 findings: runs/x; all\n2 min; results\n"
        self.assertEqual(first_run.printed_answer(output, "Use ring with 4 workers."), "Use ring with 4 workers.\n\n  gain   2\n\ntable")

    def test_writes_the_other_language_from_the_table(self):
        self.assertEqual(first_run.answer_in({"verdict": "Use ring.", "facts": [["gain", "2 times"]]}), "Use ring.\n\n  gain: 2 times")

    def test_the_readmes_have_the_marks(self):
        for name in first_run.CAPTIONS:
            self.assertEqual(len(first_run.MARKS.findall((runs.ROOT / name).read_text())), 1, name)


class Soak(unittest.TestCase):
    def test_adds_up_all_processes_of_a_job(self):
        read, write = os.pipe()  # the shell and its child wait until it is closed
        with subprocess.Popen(["sh", "-c", "(echo started; read line); true"], stdin=read, stdout=subprocess.PIPE) as job:
            self.assertEqual(job.stdout.readline(), b"started\n")
            kib, descriptors, processes = soak.usage(job.pid)
            os.close(write)
        os.close(read)
        self.assertEqual(processes, 2)
        self.assertGreater(kib, 0)
        self.assertGreaterEqual(descriptors, 2 * 3)

    def test_fails_if_memory_or_descriptors_grow(self):
        self.assertFalse(soak.grew((1000, 50, 5), (1009, 50, 5)))
        self.assertTrue(soak.grew((1000, 50, 5), (1010, 50, 5)))
        self.assertTrue(soak.grew((1000, 50, 5), (900, 51, 5)))


class SeveralMachines(unittest.TestCase):
    @staticmethod
    def record(kind, speed, problems=(), nodes=2):
        return {"transport": "tcp", "nodes": nodes, "kind": kind, "speeds": {"ring": speed}, "problems": list(problems),
                "mb_per_s": 119.5}

    def test_pairs_further_apart_than_5_percent_are_named(self):
        virtual = [self.record("virtual", speed) for speed in (99.0, 100.0, 130.0)]
        rows, within, problems = several_machines.compare([*virtual, self.record("machines", 104.9)])
        self.assertEqual((within, problems), (1, []))
        self.assertEqual(rows[0], ["tcp", 2, "ring", 1, "100.0 (99.0 to 130.0)", "104.9 (104.9 to 104.9)", "1.049"])
        for speed in (94.9, 105.1):
            rows, within, problems = several_machines.compare([*virtual, self.record("machines", speed)])
            self.assertEqual((within, len(problems)), (0, 1))
            self.assertIn("**outside**", rows[0][-1])

    def test_runs_that_are_not_valid_are_named(self):
        records = [self.record("virtual", 1.0, ["ring: busy"]), self.record("machines", 1.0), self.record("virtual", 1.0, nodes=3)]
        rows, _, problems = several_machines.compare(records)
        self.assertEqual(len(rows), 1)  # three nodes have no pair yet
        self.assertEqual(problems, ["2 nodes, virtual: ring: busy"])

    def test_a_rate_is_a_whole_number_with_a_unit(self):
        self.assertEqual(several_machines.bits_per_s("250mbit"), 250 * 10 ** 6)
        for text in ("fast", "gbit", "1.5gbit", "1gbit/s"):
            self.assertRaisesRegex(SystemExit, text, several_machines.bits_per_s, text)


class Collectives(unittest.TestCase):
    def test_compare_each_kind_of_buffers_with_mpi(self):
        def row(backend, algorithm, buffers, bandwidth):
            return {"backend": backend, "algorithm": algorithm, "buffers": buffers, "transport": "shm", "size": 4096,
                    "out_of_place": {"bus_bw": bandwidth}}
        rows = [row("native", "ring", "private", 3.0), row("native", "direct", "private", 4.0),
                row("native", "ring", "shared", 9.0), row("mpi", "ring", "private", 1.0), row("mpi", "default", "private", 2.0)]
        self.assertEqual(collectives.times_mpi(rows, [4096])[2:], ["| private | 2.00 |", "| shared | 4.50 |"])
        self.assertEqual(collectives.name(rows[0]), "native ring, shm, private buffers")
        self.assertEqual(collectives.times_mpi(rows[:3], [4096]), [])

    def test_an_all_to_all_has_no_figures_in_place(self):
        manifest = {"machine": {"cpu": "", "cores": 2, "memory_mb": 1, "system": "", "kernel": ""}, "started_utc": "2026-01-01",
                    "versions": {"revision": "r"}}
        rows = [{"backend": "native", "algorithm": "pairwise", "buffers": "private", "transport": "shm", "size": 4096, "workers": 2,
                 "foreign_cpu_pct": 1, "collective": "all_to_all", "percent_of_limit": None, "in_place": None,
                 "out_of_place": {"bus_bw": 3.0, "time": 0.7}}]
        text = collectives.section("# title", rows, manifest, "psring bench")
        self.assertIn("| native pairwise, shm, private buffers | 3.00 | 0.7 |", text)
        self.assertIn("nccl-tests defines it, (N-1)/N × bytes / time", text)
        self.assertIn("Out of place; in parentheses, its percentage", text)


class Peers(unittest.TestCase):
    def test_absent_ones_are_omitted_and_named(self):
        found, said = stderr_of(lambda: peers.version("/no/python", "torch", "pip install torch"))
        self.assertEqual((found, said), ("", "omitted: /no/python has no torch: pip install torch\n"))
        with tempfile.TemporaryDirectory() as folder:
            found, said = stderr_of(lambda: peers.build_ps_lite(folder, folder))
        self.assertIsNone(found)
        self.assertRegex(said, "^omitted: no ps-lite in .*README.*--ps_lite.*\n$")

    def test_servers_found_are_measured(self):
        args = types.SimpleNamespace(bytes=8, iterations=1)
        own = ["psring over shm", "psring over tcp", "psring over its stream"]
        self.assertEqual(list(ps_round.contenders(args, 2, "", "", None)), own)
        self.assertEqual(len(ps_round.contenders(args, 2, "2.15", "2.21", pathlib.Path("p"))), len(own) + 4)

    def best(self, model, speed, workers=1):
        found = training.Contenders(types.SimpleNamespace(steps=0), model)
        found.torch = lambda workers, code, env: {"samples_per_s": speed(" ".join(code), env)}
        result, _ = on_machine(0, lambda: found.best_torch(workers))
        return result, found.tried

    def test_pytorch_is_compared_at_its_best(self):
        (name, code, env), tried = self.best("mlp", lambda code, env: 100 * len(code) - len(env))
        self.assertEqual((name, code, env), ("torch.compile, fused optimizer, default malloc", ["--fused", "--compile"], {}))
        self.assertNotIn("channels", str(tried))

    def test_pytorch_is_searched_in_two_rounds_for_one_process_as_for_two(self):
        calls = []

        def second_round_is_slower(code, env):  # by a third, but for the fused optimizer
            calls.append(code)
            return (100 if code == "--fused" else 120 if calls.count(code) < 2 else 60) + ("LD_PRELOAD" not in env)
        for workers, processes in ((1, "1 process"), (2, "2 processes")):
            calls.clear()
            (name, code, _), tried = self.best("gpt-nano", second_round_is_slower, workers)
            self.assertEqual((name, code), ("fused optimizer, default malloc", ["--fused"]))
            self.assertEqual(calls[:6], ["", "--fused", "--fused --compile"] * 2)
            allocators = len(stderr_of(peers.allocators)[0])
            self.assertEqual(calls[6:], ["--fused"] * 2 * allocators)
            self.assertEqual(tried[0], [f"eager, malloc tuned, {processes}", "91 (121, 61)"])
            self.assertEqual(len(tried), 3 + allocators)

    def test_what_does_not_run_is_omitted(self):
        def without_compiler(code, env):
            if "--compile" in code:
                raise SystemExit("python failed:\nno compiler")
            return len(code) + 1
        (_, code, _), tried = self.best("mlp", without_compiler)
        self.assertEqual(code, ["--fused"])
        self.assertNotIn("compile", str(tried))
        (name, code, env), tried = self.best("cnn", lambda code, env: ("--channels_last" in code) * 10 + len(env))
        self.assertEqual((name, env), ("channels last, fused optimizer, malloc tuned", peers.GLIBC_TUNED))
        self.assertEqual(len(tried), 5 + len(stderr_of(peers.allocators)[0]))

    def test_sections_of_a_page_are_replaced_one_by_one(self):
        page = runs.with_section("# Title\n\nText.\n", "a", ["old"])
        self.assertEqual(page, "# Title\n\nText.\n\n## a\n\nold\n")
        page = runs.with_section(page + "\n## ab\n\nkept\n", "a", ["new", "", "table", ""])
        self.assertEqual(page, "# Title\n\nText.\n\n## a\n\nnew\n\ntable\n\n## ab\n\nkept\n")


class Pipelines(unittest.TestCase):
    @staticmethod
    def main(folder, busy_percent, torch):
        """pipeline.py --parts speed, with contenders that are not run: psring and PyTorch of these tokens/s."""
        row = {"samples_per_s": 800, "loss": 3, "step_ms": 10, "compute_ms": 8, "exposed_comm_ms": 0, "bubble_fraction": "",
               "predicted_bubble_fraction": .1}
        calls = []

        def of_torch(args, script, *flags, env=None):
            calls.append([script, *flags])
            return {"samples_per_s": torch + ("--compile" in flags), "loss": 3.1, "peak_memory_mb": 9}
        with unittest.mock.patch.multiple(runs, train=lambda flags: calls.append(flags) or row), unittest.mock.patch.multiple(
                peers, torch_version=lambda args: "2.15", torch=of_torch), unittest.mock.patch.object(
                    pipeline, "products_ms", lambda args: 100), unittest.mock.patch.object(
                        sys, "argv", ["pipeline.py", "--parts", "speed", "--out", folder]), contextlib.redirect_stdout(io.StringIO()):
            code, _ = on_machine(busy_percent, pipeline.main)
        return code, calls

    def test_are_compared_with_pytorch_at_its_best(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertRaisesRegex(SystemExit, "not written", self.main, folder, 6, 1)
            self.assertEqual(os.listdir(folder), [])
            code, calls = self.main(folder, 0, 400)
            page = (pathlib.Path(folder) / "pipelines.md").read_text()
            self.assertEqual(code, 0)
            self.assertIn("psring 1f1b, 2 stages is 2.00 times as fast as PyTorch Schedule1F1B** (target 1.15).", page)
            self.assertNotIn("missed", page)
            self.main(folder, 0, 798)
            page = (pathlib.Path(folder) / "pipelines.md").read_text()
        self.assertEqual([line for line in page.splitlines() if line.startswith("## ")], ["## Setting", "## Speed", "## Causes"])
        self.assertIn("is 1.00 times as fast as PyTorch ScheduleGPipe** (target 1.15): **missed**. The products alone", page)
        self.assertIn("PyTorch ScheduleGPipe at its best (torch.compile, fused optimizer", page)
        self.assertIn(["pytorch_pipeline_peer.py"], [call[:1] for call in calls])
        pipelines = [call for call in calls if "--pp" in call]
        self.assertEqual([call[call.index("--cuts") + 1] for call in pipelines], [22] * len(pipelines))

    def test_other_losses_are_named(self):
        found = types.SimpleNamespace(loss={"psring single, 1 process": 3, "psring gpipe, 2 stages": 3.00001, "PyTorch a": 3.2})
        self.assertEqual(pipeline.losses(found)[1], [])
        found.loss |= {"psring gpipe, 2 stages": 3.001, "PyTorch a": 3.4}
        self.assertEqual(len(pipeline.losses(found)[1]), 2)

    def test_the_walk_has_the_times_of_each_stage(self):
        case = pipeline.CASES["replayed, dp2xpp4, 1f1b"]
        results = [{"rank": rank, "ddp": {"forward_ms": 8. * (1 + rank // 2), "backward_ms": 24.}} for rank in range(8)]
        times = pipeline.passes_of(results, case)
        self.assertEqual([round(sum(one), 9) for one in times], [4, 5, 6, 7])
        for forward, backward in times:
            self.assertAlmostEqual(forward / backward, 20 / 24)
        text = pipeline.workload_text(4, 8, [(1, 2, 40), (3, 4, 44)])
        self.assertEqual(text.splitlines()[-2:], ["block.1.weight,44,4.000000", "block.0.weight,40,6.000000"])
        self.assertIn("# forward_ms: 4.000000\n# backward_ms: 6.000000\n", text)

    def test_what_is_not_as_in_the_walk_is_named(self):
        row = {"name": "a", "step": 104.9, "walk": 100, "bubble": .119, "simulated": .1, "of_walk": .1, "sent": 8, "counted": 8,
               "foreign": 0}
        self.assertEqual(pipeline.walk_report([row])[1], [])
        for change in ({"step": 94}, {"bubble": .121}, {"bubble": float("nan")}, {"sent": 9}):
            lines, problems = pipeline.walk_report([row, {**row, **change}])
            self.assertEqual(len(problems), 1, change)
            self.assertEqual("\n".join(lines).count("**outside**"), 1)


class Staleness(unittest.TestCase):
    def test_is_compared_at_each_contenders_best_rate_and_the_same_staleness(self):
        calls = []

        def train(flags, read):
            flag = {name: flags[flags.index(name) + 1] for name in flags if str(name).startswith("--")}
            calls.append(flag)
            stale = {"single": 0, "ps-async": flag.get("--workers", 1) - 1}[flag["--strategy"]]
            stale = {"pipedream": 1.5, "pipedream-2bw": 1}.get(flag.get("--program"), stale)
            best = .006 if stale == 0 else .002
            # Pipedream is .1 worse than servers with as much staleness; a seed changes all losses alike.
            return (2 + stale / 10 + .1 * (flag.get("--program") == "pipedream") + abs(flag["--lr"] - best) +
                    flag["--seed"] / 1000, stale)
        with unittest.mock.patch.object(runs, "train", train):
            page, _ = stderr_of(lambda: "\n".join(accuracy.staleness(types.SimpleNamespace(updates=24, seeds=3))))
        self.assertEqual(len(calls), 6 * (4 + 3))
        self.assertEqual({flag["--lr"] for flag in calls[4:7]}, {.006})
        self.assertEqual({flag["--lr"] for flag in calls[11:14]}, {.002})
        for flag in calls:  # in a step or in several, by one worker or by all
            samples = (flag["--steps"] * flag["--batch"] * flag.get("--micro_batches", 1) *
                       (flag["--workers"] if flag["--strategy"] == "ps-async" else 1))
            self.assertEqual(samples, 24 * 12, flag)
        self.assertIn("* **pipedream, 4 stages**: +0.100 (+0.100 to +0.100), higher with every seed.", page)
        self.assertRegex(page, r"pipedream-2bw, 4 stages\*\*: [+-]0\.000 ")
        self.assertRegex(page, r"pipedream, 4 stages, less ps-async with 4 workers\*\*.*: -0\.050 .*, lower with every seed\.")
        self.assertIn("| ps-async, 3 workers | 2.00 |", page)

    def test_needs_a_number_of_updates_that_workers_and_steps_divide(self):
        self.assertRaisesRegex(SystemExit, "--updates 20: must be a multiple of 12", accuracy.staleness,
                               types.SimpleNamespace(updates=20, seeds=1))


class LayoutWalk(unittest.TestCase):
    RESULTS = [{"rank": rank, "bucket_elements": [30, 10], "ddp": {"forward_ms": 10., "backward_ms": 30.}} for rank in range(2)]

    @staticmethod
    def tensors(text):
        """{name: (bytes, ready_ms)}, and the lines before them."""
        head, rows = text.split("name,bytes,ready_ms\n")
        return {name: (int(size), float(ready)) for name, size, ready in (row.split(",") for row in rows.splitlines())}, head

    def test_a_transformer_has_the_tensors_of_the_recorded_one(self):
        recorded, _ = self.tensors((runs.ROOT / "common/workloads/gpt_mini.csv").read_text())
        own, head = self.tensors(layout_walk.transformer_text(layout_walk.MODELS["gpt-mini"], 4, 10, 60))
        self.assertEqual({name: size for name, (size, _) in own.items()}, {name: size for name, (size, _) in recorded.items()})
        self.assertEqual(sorted(ready for _, ready in own.values()), [ready for _, ready in own.values()])
        self.assertEqual((own["transformer.h.5.ln_1.weight"][1], own["transformer.h.0.ln_1.weight"][1]), (10, 60))
        for line in ("# batch: 4", "# tokens_per_sample: 256", "# activation_bytes: 393216", "# heads: 6", "# forward_ms: 10.000000",
                     "# backward_ms: 60.000000"):
            self.assertIn(line + "\n", head)

    def test_the_walk_has_the_computing_of_all_that_divide_it(self):
        row = {"compute_ms": "16"}
        for name, whole in (("gpt-mini, dp2 fsdp", 8), ("gpt-mini, tp2", 16), ("gpt-mini, 4096 tokens, cp2 ring", 16)):
            of = layout_walk.CASES[name]
            self.assertEqual(layout_walk.passes_ms(row, self.RESULTS, of), (whole / 4, whole * 3 / 4), name)
        of = layout_walk.CASES["gpt-mini, dp2 fsdp"]
        units, head = self.tensors(layout_walk.workload_of(row, self.RESULTS, of))
        self.assertEqual(units, {"block.1.weight": (120, 4.5), "block.0.weight": (40, 6)})
        self.assertIn("# forward_ms: 2.000000\n", head)
        long, head = self.tensors(layout_walk.workload_of(row, self.RESULTS, layout_walk.CASES["gpt-mini, 4096 tokens, cp2 ring"]))
        self.assertEqual(long["transformer.wpe.weight"][0], 4 * 4096 * 384)
        self.assertIn("# tokens_per_sample: 4096\n", head)

    def test_each_case_has_the_samples_of_its_training(self):
        for name, of in layout_walk.CASES.items():
            trained = of.axes.get("dp", 1) * of.micro_batches * of.batch
            flags = layout_walk.walk_flags(of, "cluster.json", pathlib.Path("folder"))
            self.assertEqual(flags[flags.index("--batch") + 1] * of.workers(), trained, name)
            self.assertEqual(flags[flags.index("--layouts") + 1], of.layout, name)
            flags = layout_walk.train_flags(of, "WORKLOAD")
            self.assertEqual("--batch" in flags, "WORKLOAD" not in flags, name)
            self.assertEqual("--link" in flags, bool(of.link), name)
        flags = layout_walk.train_flags(layout_walk.CASES["gpt-mini, 4096 tokens, cp2 ulysses"], "")
        for pair in (["--cp", 2], ["--context_parallel", "ulysses"], ["--context", 4096], ["--strategy", "ring"], ["--workers", 2]):
            self.assertIn(pair, [flags[i:i + 2] for i in range(len(flags))])
        self.assertIn("single", layout_walk.train_flags(layout_walk.CASES["gpt-mini, tp2"], ""))

    def test_the_loopback_is_fitted_to_two_exchanges(self):
        rate, latency_us = 2000, 15  # bytes per us
        us = [2 * latency_us + size / rate for size in (layout_walk.SMALL, layout_walk.LARGE)]
        self.assertEqual(layout_walk.fitted(*us), {"link": "16000mbit", "latency_us": 15, "fraction": 1})

    def test_what_is_not_as_in_the_walk_is_named(self):
        row = {"name": "a", "step": 104.9, "walk": 100, "waits": 1, "waits_of_walk": 1, "sent": 101, "counted": 100, "foreign": 0,
               "shares_cores": False}
        self.assertEqual(layout_walk.report([row])[1], [])
        for change in ({"step": 94}, {"sent": 103}, {"step": float("nan")}):
            lines, problems = layout_walk.report([row, {**row, **change}])
            self.assertEqual(len(problems), 1, change)
            self.assertEqual("\n".join(lines).count("**outside**"), 1)
        self.assertEqual(layout_walk.report([{**row, "step": 200, "shares_cores": True}])[1], [])


class Sparse(unittest.TestCase):
    def rows(self, share, ring, servers):
        return [{"rows": 1000, "batch": round(5120 * share), "share": share, "touched": 1000 * share, "name": name, "measured": speed,
                 "derived": 2 * speed, "not_valid": ""} for name, speed in (("ring", ring), ("4 servers", servers))]

    def test_servers_are_compared_with_the_ring_of_their_cell(self):
        found = self.rows(.1, 100, 150) + self.rows(.9, 100, 80)
        self.assertEqual(sparse.ratios(found, "measured"), {"4 servers": [(.1, 1.5, 512), (.9, .8, 4608)]})
        text = "\n".join(sparse.page(found, 20))
        self.assertIn("| 1.50 | 1.50 |", text)
        self.assertIn("| -50% |", text)
        self.assertEqual(xml.etree.ElementTree.fromstring(sparse.chart(found)).tag, "{http://www.w3.org/2000/svg}svg")

    def test_lines_of_the_chart_follow_the_bytes(self):
        self.assertAlmostEqual(sparse.bytes_ratio(.01, 4), 1.5)  # 3 C of an all-gather, 2 C of a server
        self.assertAlmostEqual(sparse.bytes_ratio(1, 4), .75)  # 1.5 R of an all-reduce, 2 R of a server
        self.assertAlmostEqual(sparse.bytes_ratio(.01, 1), 3 / 8)


if __name__ == "__main__":
    unittest.main()
