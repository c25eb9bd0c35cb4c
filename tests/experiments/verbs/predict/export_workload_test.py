#!/usr/bin/env python3
"""experiments/export_workload.py with traces, lists of sizes and models as users have them. Arguments: the script, psring."""
import contextlib
import csv
import gzip
import importlib.util
import io
import json
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock

SCRIPT, PSRING = pathlib.Path(sys.argv.pop(1)).resolve(), pathlib.Path(sys.argv.pop(1)).resolve()
spec = importlib.util.spec_from_file_location("export_workload", SCRIPT)
export_workload = importlib.util.module_from_spec(spec)
spec.loader.exec_module(export_workload)

SIZES = "name,bytes\nhead.weight,40960\nlayer2.weight,4096\nlayer1.weight,8192\n"
NODE = "autograd::engine::evaluate_function: "


def step(begin, marked=True, gradients=3, shapes=None):
    """The events of one training step of 90 ms; backward begins after 30 ms, and a gradient takes 10 ms."""
    events = [dict(ph="X", name="aten::linear", ts=begin + 100, dur=20000)] if marked else []
    for i in range(gradients):
        at = begin + 30000 + 10000 * i
        arguments = {"Input Dims": [shapes[i]]} if shapes else {}
        events += [dict(ph="X", name=NODE + "AddmmBackward0", ts=at, dur=9000), dict(ph="X", name="aten::mm", ts=at + 10, dur=50),
                   dict(ph="X", name=NODE + "torch::autograd::AccumulateGrad", ts=at + 9000, dur=100),
                   dict(ph="X", name="torch::autograd::AccumulateGrad", ts=at + 9010, dur=80, args=arguments)]
    return events


def with_event(**event):
    return json.dumps({"traceEvents": step(1000000) + [event]})


ONE_STEP = json.dumps({"traceEvents": step(1000000)})


class Export(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def export(self, trace, sizes=SIZES):
        """Exit code, standard output and standard error, in this process."""
        paths = [self.folder / "trace.json", self.folder / "sizes.csv"]
        for path, content in zip(paths, (trace, sizes)):
            path.unlink(missing_ok=True)
            if content is not None:
                path.write_bytes(content if isinstance(content, bytes) else content.encode())
        out, error, code = io.TextIOWrapper(io.BytesIO(), "ascii"), io.StringIO(), 0
        command = [str(SCRIPT), "--trace", str(paths[0]), "--sizes", str(paths[1]), "--batch", "8", "--device", "V100"]
        with mock.patch.object(sys, "argv", command), contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
            try:
                export_workload.main()
            except SystemExit as end:
                code = end.code
        out.seek(0)
        return code, out.read(), error.getvalue()

    def rows(self, text):
        return [row for row in csv.reader(text.splitlines()) if row and not row[0].startswith("#")][1:]

    def test_traces_as_profilers_write_them_are_read(self):
        for name, trace in {
                "plain": ONE_STEP,
                "gzip": gzip.compress(ONE_STEP.encode()),
                "a list": json.dumps(step(1000000)),
                "byte order mark": "\ufeff" + ONE_STEP,
                "control character": ONE_STEP.replace("aten::linear", "aten::linear \x01<module>"),
                "bytes that are not UTF-8": ONE_STEP.encode().replace(b"aten::linear", b"aten::linear \xff"),
                "NaN in an argument": with_event(ph="X", name="f", ts=1, dur=1, args={"x": float("nan")}),
                "event without name": with_event(ph="X", ts=1000000, dur=1),
                "event whose name is a number": with_event(ph="X", name=3, ts=1000000, dur=1),
                "other event without duration": with_event(ph="X", name="f", ts="soon"),
                "what is no event": json.dumps({"traceEvents": [None, 3, "x", *step(1000000)]}),
                "timestamps as text": json.dumps([{**event, "ts": f"{event['ts']}.5", "dur": str(event["dur"])} for event in step(1000000)]),
                "two steps": json.dumps(step(1000000) + step(1200000)),
                "shapes": json.dumps(step(1000000, shapes=[[1024, 10], [1024], [2, 1024]])),
        }.items():
            with self.subTest(name):
                code, text, error = self.export(trace)
                self.assertEqual((code, error), (0, ""))
                self.assertEqual(self.rows(text), [["head.weight", "40960", "9.1000"], ["layer2.weight", "4096", "19.1000"],
                                                   ["layer1.weight", "8192", "29.1000"]])

    def test_traces_that_cannot_be_read_are_one_line(self):
        for name, (trace, what) in {
                "missing": (None, "No such file"),
                "empty": ("", "not JSON"),
                "cut off": (ONE_STEP[:-40], "not JSON"),
                "gzip, cut off": (gzip.compress(ONE_STEP.encode())[:-20], "cannot read"),
                "gzip, damaged": (gzip.compress(ONE_STEP.encode())[:20] + b"\xff" * 40, "cannot read"),
                "quotes": (ONE_STEP.replace("aten::linear", '{"device": "cpu"}(12): run'), "with_stack=False"),
                "backslash": (ONE_STEP.replace("aten::linear", "C:\\Users\\x.py(3): f"), "with_stack=False"),
                "nan": (ONE_STEP.replace('"dur": 20000', '"dur": 20000, "args": {"x": nan}'), "not JSON"),
                "deep": ("[" * 200000, "not JSON"),
                "many digits": ("[" + "9" * 5000 + "]", "not JSON"),
                "no events": ("{}", "traceEvents"),
                "a number": ("7", "traceEvents"),
                "no backward": (json.dumps(step(1000000)[:1]), "no AccumulateGrad"),
                "timestamp is no number": (with_event(ph="X", name="AccumulateGrad", ts="12 ms", dur=1), "ts '12 ms'"),
                "timestamp is nan": (with_event(ph="X", name="AccumulateGrad", ts=float("nan"), dur=1), "ts nan"),
                "timestamp is too large": (with_event(ph="X", name="AccumulateGrad", ts=10**400, dur=1), "not times"),
                "duration is missing": (with_event(ph="X", name="MulBackward0", ts=1), "dur None"),
                "duration is negative": (with_event(ph="X", name="MulBackward0", ts=1, dur=-1), "dur -1"),
        }.items():
            with self.subTest(name):
                code, text, error = self.export(trace)
                self.assertEqual((code, text), (2, ""))
                self.assertIn(what, error)
                self.assertEqual(error.count("\n"), 1, error)

    def test_a_gradient_gets_only_its_own_size(self):
        two_sizes = SIZES.replace("layer2.weight,4096\n", "")
        for name, (events, sizes, what) in {
                "two of three, two steps": (step(1000000) + step(1200000), two_sizes, "3 gradients in a backward pass, but there are 2"),
                "two of three, steps not marked": (step(1000000, False) + step(1200000, False), two_sizes, "6 gradients"),
                "one step is incomplete": (step(1000000) + step(1200000, gradients=2), SIZES, "2 or 3 gradients"),
                "wrong order": (step(1000000, shapes=[[1024], [1024, 10], [2, 1024]]), SIZES, "gradient 1 of"),
        }.items():
            with self.subTest(name):
                code, text, error = self.export(json.dumps(events), sizes)
                self.assertEqual((code, text), (2, ""))
                self.assertIn(what, error)

    def test_sizes_as_spreadsheets_write_them_are_read(self):
        for name, (sizes, first) in {
                "byte order mark": ("\ufeff" + SIZES, "head.weight"),
                "CRLF": (SIZES.replace("\n", "\r\n"), "head.weight"),
                "no header": (SIZES[11:], "head.weight"),
                "semicolons": (SIZES.replace(",", ";"), "head.weight"),
                "padded": ("# sizes,,\n" + SIZES.replace("\n", ",,\n") + ",,,\n", "head.weight"),
                "comma in a name": (SIZES.replace("head.weight", '"head, ""last"""'), 'head, "last"'),
                "name with #": (SIZES.replace("head.weight", '"#0.weight"'), "#0.weight"),
                "spaces": (SIZES.replace(",40960", " , 40960 "), "head.weight"),
        }.items():
            with self.subTest(name):
                code, text, error = self.export(ONE_STEP, sizes)
                self.assertEqual((code, error), (0, ""))
                rows = [row for row in csv.reader(text.splitlines()) if len(row) == 3 and row[1] == "40960"]
                self.assertEqual(rows, [[first, "40960", "9.1000"]])

    def test_sizes_that_are_not_whole_numbers_name_the_line(self):
        for size in ('"40,960"', "40,960", "40960.0", "4.096e4", "0x10", "-40960", "nan", "40 960", "9" * 30, "", "0", "2", "8589934592"):
            with self.subTest(size):
                code, text, error = self.export(ONE_STEP, SIZES.replace("40960", size))
                self.assertEqual((code, text), (2, ""))
                self.assertIn("line 2: ", error)
                self.assertEqual(error.count("\n"), 1, error)
        for sizes, what in (("name,bytes\n", "lists no sizes"), (None, "No such file"), ('name,bytes\n"w,4\n', "line 2: it is not CSV"),
                            (SIZES.replace("head", "#head"), "line 2: '#head.weight,40960' is a comment or a row")):
            code, _, error = self.export(ONE_STEP, sizes)
            self.assertEqual(code, 2)
            self.assertIn(what, error)

    def test_psring_reads_any_name(self):
        text = io.StringIO()
        rows = [(name, 4096, 1.0) for name in ("#0.weight", 'a, "b"', "c;d", " e", "f\n\x1b[31m", "ü")]
        export_workload.write(text, rows, 1, 2, 8, "V100\nx", source="a\nname,bytes")
        (self.folder / "mine.csv").write_text(text.getvalue(), encoding="utf-8")
        run = subprocess.run([PSRING, "predict", "--workload", "./mine.csv", "--workers", "2", "--link", "1gbit", "--strategies", "ring",
                              "--out", "o"], cwd=self.folder, capture_output=True, text=True, timeout=60)
        self.assertEqual(run.returncode, 0, run.stderr)
        with open(self.folder / "o/summary.csv", encoding="utf-8") as summary:
            self.assertEqual(next(csv.DictReader(summary))["parameters"], str(6 * 1024))


class Parameter:
    """A fake of torch.nn.Parameter: its hook runs when the fake of a loss runs backward()."""
    is_cuda, requires_grad = False, True

    def __init__(self, elements, **attributes):
        self.elements, self.hook = elements, None
        vars(self).update(attributes)

    def numel(self):
        if self.elements is None:
            raise ValueError("Attempted to use an uninitialized parameter")
        return self.elements

    def register_hook(self, hook):
        self.hook = hook
        return types.SimpleNamespace(remove=lambda: None)


class Model:
    def __init__(self, **parameters):
        self.parameters = parameters

    def named_parameters(self):
        return self.parameters.items()

    def zero_grad(self, set_to_none):
        pass

    def loss(self):
        def backward():
            for parameter in reversed(self.parameters.values()):
                if parameter.hook:
                    parameter.hook(None)
        return types.SimpleNamespace(backward=backward)


class Record(unittest.TestCase):
    def record(self, model, loss=None, **arguments):
        """The rows' names and bytes, with a fake of PyTorch."""
        with mock.patch.dict(sys.modules, torch=types.ModuleType("torch")), contextlib.redirect_stdout(io.StringIO()):
            return [row[:2] for row in export_workload.record(model, loss or model.loss, **{"batch": 4, **arguments})]

    def test_parameters_without_elements_are_left_out(self):
        self.assertEqual(self.record(Model(a=Parameter(8), empty=Parameter(0))), [("a", 32)])
        with self.assertRaisesRegex(ValueError, "no parameter of the model has elements"):
            self.record(Model(empty=Parameter(0)))

    def test_placeholders_have_the_size_that_they_stand_for(self):
        self.assertEqual(self.record(Model(a=Parameter(0, ds_numel=1000), b=Parameter(8))), [("a", 4000), ("b", 32)])

    def test_errors_say_what_to_do(self):
        model = Model(a=Parameter(8))
        once = model.loss()

        def freed():
            raise RuntimeError("Trying to backward through the graph a second time (or directly access saved tensors ...")

        for what, loss, arguments in (("run the whole forward pass inside loss", lambda: once, {}),
                                      ("run the whole forward pass inside loss", lambda: types.SimpleNamespace(backward=freed), {}),
                                      ("it returned None", lambda: None, {}),
                                      ("at least 1", model.loss, {"batch": 0}),
                                      ("at least 1", model.loss, {"steps": 0})):
            with self.assertRaisesRegex(ValueError, what) as caught:
                self.record(model, loss, **arguments)
            self.assertTrue(caught.exception.__suppress_context__ or caught.exception.__context__ is None)
        with self.assertRaisesRegex(ValueError, "lazy has no shape yet"):
            self.record(Model(lazy=Parameter(None)))


if __name__ == "__main__":
    unittest.main()
