#!/usr/bin/env python3
"""Writes the first result of README.md and README.zh.md: runs the command that they show, and replaces the text and the picture
between their marks by what this run printed and by the top of its page.

    ./run build && experiments/benchmarks/first_run.py [--browser chromium]

Needs Chromium and cwebp (Debian: chromium, webp).
"""
import pathlib
import re
import subprocess
import sys
import tempfile

import runs

MARKS = re.compile(r"(<!-- first run: .*? -->\n).*?(<!-- end of the first run -->)", re.DOTALL)
PICTURE = "experiments/report.webp"
CAPTIONS = {"README.md": ("The page of this run: the verdict, whether the times can be trusted, and where the time of a step goes", "{}."),
            "README.zh.md": ("这次运行的网页：结论、时间是否可信、一步的时间用在哪里", "{}。网页可切换为中文。")}


def printed_answer(output, verdict):
    """What psring printed from the verdict to the table's end, without the explanations below it."""
    end = re.search(r"^(Measured: |\d+ findings: )", output, re.MULTILINE)
    return output[output.index(verdict[:40]):end.start()].rstrip()


def answer_in(table):
    """The verdict and its facts, without the table."""
    return "\n".join([table["verdict"], "", *(f"  {label}: {text}" for label, text in table.get("facts", []))])


def with_result(text, answer, picture, title, caption):
    """`text` with this result between its marks."""
    code = "\n".join(f"    {line}".rstrip() for line in answer.splitlines())
    return MARKS.sub(lambda marks: f"{marks[1]}{code}\n\n![{title}]({picture})\n*{caption}*\n{marks[2]}", text)


def photograph(browser, page, picture):
    with tempfile.TemporaryDirectory() as folder:
        shot = pathlib.Path(folder) / "page.png"
        runs.run([browser, "--headless=new", "--no-sandbox", "--hide-scrollbars", "--window-size=1000,640", "--force-device-scale-factor=1.5",
                  f"--screenshot={shot}", page.resolve().as_uri()])
        runs.run(["cwebp", "-q", "80", shot, "-o", picture])


def main():
    args = runs.parse(__doc__, browser=("chromium", "which takes the picture"))
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "run"
        done = subprocess.run([runs.PSRING, "compare", "--lang", "en", "--out", out], capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stdout + done.stderr)
        table, manifest = runs.read_json(out, "table.json"), runs.read_json(out, "manifest.json")
        if table["en"]["validity"]["state"] == "invalid":
            sys.exit(f"not written: {table['en']['validity']['why']}")
        photograph(args.browser, out / "report.html", runs.ROOT / PICTURE)
    answers = {"README.md": printed_answer(done.stdout, table["en"]["verdict"]), "README.zh.md": answer_in(table["zh"])}
    where = f"{runs.machine_text(manifest['machine'])}, {manifest['started_utc'][:10]}"
    for name, (title, caption) in CAPTIONS.items():
        path = runs.ROOT / name
        path.write_text(with_result(path.read_text(), answers[name], PICTURE, title, caption.format(where)))


if __name__ == "__main__":
    main()
