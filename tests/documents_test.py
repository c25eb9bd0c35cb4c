"""Checks texts for users: documents_test.py ROOT PSRING TRAINER

* Avoided words (metaphors, translated syntax) in Markdown files, in the catalog of texts, in the report's page and
  in the output of --help-all; in the comments and names of all sources, and in the literals of the programs.
* The same word twice, in Markdown files and comments.
* What has run on a GPU: experiments/results/gpu.md is the only source. Another text about it refers to that file.
* Exercises: the numbers that a text names are on the page of a comparison.
* Lines: at most 120 in the top READMEs. About 60 in folder READMEs.
* Links in Markdown files: the file or folder exists, and so does the heading after '#'.
* Tests that common/net/security.md names beside a promise: they exist.
* Commands in code blocks of Markdown files ('./run VERB ...', 'psring VERB ...'): the verb exists, and --help-all of that
  verb lists every flag. `explain` commands are executed. The others are not: their values are not checked, and nothing is
  trained, measured or simulated.
"""
import pathlib
import re
import shlex
import subprocess
import sys

ROOT, PSRING, TRAINER = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]

AVOIDED = [r"doors?", r"houses?", r"rooms?", r"ears?", r"mends?", r"manners", r"farewell", r"last words", r"whoever", r"goes on",
           r"is told to", r"nobody stopped", r"as long as there is", r"outlives?", r"neither by factor"]
AVOIDED_PATTERN = re.compile(r"\b(" + "|".join(AVOIDED) + r")\b", re.IGNORECASE)
# In comments, objects may outlive others; the last word is often written for "only".
AVOIDED_IN_SOURCES = re.compile(r"\b(" + "|".join([word for word in AVOIDED if word != r"outlives?"] + [r"alone"]) + r")\b",
                                re.IGNORECASE)
AVOIDED_IN_NAMES = ["door", "house", "room", "ear", "mend", "manners", "farewell", "whoever", "told(?!_apart)", "nap", "nudge", "loan",
                    "crowded", "turnAway", "kMost"]
# A part of a name: at its start, or with a capital.
AVOIDED_NAME = re.compile(r"\b\w*?(?:(?<![A-Za-z])(?:" + "|".join(AVOIDED_IN_NAMES) + ")|" +
                          "|".join(word[0].upper() + word[1:] for word in AVOIDED_IN_NAMES) + r")s?(?![a-z])\w*")
TWICE = re.compile(r"(?<![-\w])([a-z]{2,}) \1\b(?![-(_:=])")
COMMENT = {".cc": r"(?<![:\"\w])//+ ?(.*)", ".py": r"(?:^|\s)# ?(.*)"}
COMMENT |= {".h": COMMENT[".cc"], ".cu": COMMENT[".cc"], ".js": COMMENT[".cc"], ".proto": COMMENT[".cc"], ".sh": COMMENT[".py"]}
LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
RAN_ON_A_GPU = re.compile(r"\b(?:never|not yet|nothing|has|have|had|were|was|only)\b[^.;|]{0,60}\b(?:run|ran|tested|tried|reviewed)\b"
                          r"[^.;|]{0,40}\b(?:GPUs?|H100)\b", re.IGNORECASE)
MOST_LINES = {"README.md": 120, "README.zh.md": 120}
MOST_LINES_OF_A_FOLDER = 65  # about 60
RUN_VERBS = {"build", "bundle", "check", "exercise", "help", "test"}  # of ./run itself

errors = []


def files(*suffixes):
    skipped = {".git", "build", "runs"}  # of the root
    return [path for path in sorted(ROOT.rglob("*")) if path.suffix in suffixes and path.is_file() and
            path.relative_to(ROOT).parts[0] not in skipped]


def check_twice(name, text, first=1):
    for number, line in enumerate(text.splitlines(), first):
        for word in TWICE.findall(re.sub(r"`[^`]*`", "", line)):
            errors.append(f"{name}:{number}: '{word}' twice: {line.strip()[:90]}")


def check_gpu_claims(name, paragraphs):
    """What has run on a GPU has one source."""
    for paragraph in paragraphs:
        claim = RAN_ON_A_GPU.search(" ".join(paragraph.split()))
        if claim and "gpu.md" not in paragraph:
            errors.append(f"{name}: refer to experiments/results/gpu.md, the only text about what has run on a GPU: {claim[0][:90]}")


def check_source(path):
    """Comments, names, and literals of programs."""
    name, text = str(path.relative_to(ROOT)), path.read_text()
    in_cpp, paragraphs = path.suffix in (".cc", ".h", ".cu"), [""]
    for number, line in enumerate(text.splitlines(), 1):
        found = re.search(COMMENT[path.suffix], LITERAL.sub(lambda literal: " " * len(literal[0]), line))
        comment = line[found.start(1):] if found else ""
        texts = [re.sub(r"`[^`]*`", "", comment)]
        if in_cpp and path.relative_to(ROOT).parts[0] != "tests":
            texts += LITERAL.findall(line)
        words = [word for one in texts for word in AVOIDED_IN_SOURCES.findall(one)]
        if in_cpp:
            words += AVOIDED_NAME.findall(LITERAL.sub("", line[:found.start()] if found else line))
        errors.extend(f"{name}:{number}: avoided: '{word}': {line.strip()[:90]}" for word in words)
        check_twice(name, texts[0], number)
        paragraphs[-1] += comment + " "
        if not comment:
            paragraphs.append("")
    check_gpu_claims(name, paragraphs)


def help_of(program, *verb):
    for flag in ("--help-all", "--help"):
        done = subprocess.run([program, *verb, flag], capture_output=True, text=True, timeout=30)
        if done.returncode == 0:
            return done.stdout
    return ""


def check_words(name, text):
    for number, line in enumerate(text.splitlines(), 1):
        for word in AVOIDED_PATTERN.findall(line):
            errors.append(f"{name}:{number}: avoided: '{word}': {line.strip()[:90]}")


def check_lines(path, text):
    name = str(path.relative_to(ROOT))
    most = MOST_LINES.get(name, MOST_LINES_OF_A_FOLDER if path.name in ("README.md", "README.zh.md") else None)
    lines = len(text.splitlines())
    if most and lines > most:
        errors.append(f"{name}: {lines} lines, but at most {most} fit")


def check_named_tests():
    """Every promise of security.md has a test."""
    path = ROOT / "common/net/security.md"
    found = set()
    for file in (ROOT / "tests").rglob("*_test.cc"):
        found.update(re.findall(r"^TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", file.read_text(), re.MULTILINE))
    for line in path.read_text().splitlines():
        for suite, name in re.findall(r"`([A-Z]\w+)\.([A-Z]\w+)`", line):
            if (suite, name) not in found:
                errors.append(f"common/net/security.md: no test {suite}.{name}")
    section = path.read_text().partition("## What this protects against")[2].partition("\n## ")[0]
    for row in re.findall(r"^\|.*\|$", section, re.MULTILINE)[2:]:
        if not re.search(r"`[A-Z]\w+\.[A-Z]\w+`", row):
            errors.append(f"common/net/security.md: a promise without a test: {row[:90]}")


def anchors(text):
    """GitHub's names of the headings."""
    names = set()
    for heading in re.findall(r"^#+ (.*)$", without_code(text), re.MULTILINE):
        kept = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower())
        names.add(kept.replace(" ", "-"))
    return names


def without_code(text):
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return "\n".join("" if line.startswith("    ") and "](" not in line else line for line in text.splitlines())


def check_links(path, text):
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", text)) + re.findall(r'src="([^"]+)"', text):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, heading = target.partition("#")
        place = (path.parent / file) if file else path
        name = f"{path.relative_to(ROOT)}: link to {target}"
        if not place.exists():
            errors.append(f"{name}: no such file")
        elif heading and heading not in anchors(place.read_text()):
            errors.append(f"{name}: no such heading")


def commands(text):
    """The arguments after './run' or 'psring' of each line of code; a line that ends with a backslash continues."""
    fences, lines, inside = [], re.sub(r"\\\n\s*", " ", text).splitlines(), False
    for line in lines:
        if line.startswith("```"):
            inside = not inside
        elif inside or line.startswith("    "):
            match = re.match(r"\s*(?:sudo |\$ )?(?:\./run|psring) ([a-z].*)", line)
            if match:
                fences.append(match[1])
    return fences


def check_command(name, command, flags_of):
    words = shlex.split(command, comments=True)
    verb = words[0]
    if verb in RUN_VERBS:
        return
    if verb not in flags_of:
        errors.append(f"{name}: psring has no verb '{verb}': {command}")
        return
    for word in words[1:]:
        flag = word.split("=")[0].replace("-", "_").replace("__", "--", 1) if word.startswith("--") else word
        if re.match(r"--?[a-zA-Z]", flag) and flag not in flags_of[verb]:
            errors.append(f"{name}: psring {verb} has no flag {word}: {command}")
    if verb == "explain":
        done = subprocess.run([PSRING, *words], capture_output=True, text=True, timeout=30)
        if done.returncode != 0:
            errors.append(f"{name}: {command}: {done.stderr.strip()}")


def check_exercises(name, text, known):
    """The exercises that a text names are on the page of a run."""
    for sentence in re.findall(r"(?:[Ee]xercises?|练习)[^;|\n]{0,60}", text):
        for number in re.findall(r"\b[1-6]\.[1-9]\b", sentence):
            if number not in known:
                errors.append(f"{name}: a run's page has no exercise {number}: {sentence}")


def main():
    # Exercise 2.4 is only on the page of a benchmark.
    source = (ROOT / "experiments/page/exercises.cc").read_text()
    exercises = set(re.findall(r'number = "([1-6]\.[1-9])"', source)) - {"2.4"}
    overview = subprocess.run([PSRING, "--help"], capture_output=True, text=True, timeout=30, check=True).stdout
    verbs = re.findall(r"^  ([a-z]+)  ", overview[overview.index("Subcommands:"):], re.MULTILINE)
    help_texts = {verb: help_of(PSRING, verb) for verb in verbs}
    flags_of = {verb: set(re.findall(r"--?[a-zA-Z][\w-]*", text)) for verb, text in help_texts.items()}
    for flags in flags_of.values():
        flags |= {flag.replace("-", "_").replace("__", "--", 1) for flag in flags if flag.startswith("--")}
    check_named_tests()
    count = 0
    for path in files(*COMMENT):
        if path != pathlib.Path(__file__).resolve():
            check_source(path)
    for path in files(".md"):
        text, name = path.read_text(), str(path.relative_to(ROOT))
        check_words(name, text)
        check_twice(name, text)
        check_lines(path, text)
        check_links(path, text)
        if name != "experiments/results/gpu.md":
            check_gpu_claims(name, re.split(r"\n\s*\n|\n(?=\s*[*|])", text))
        check_exercises(name, text, exercises)
        for command in commands(text):
            count += 1
            check_command(name, command, flags_of)
    for folder, kind in (("common/text", "*.po"), ("experiments/page/web", "*.html")):
        for path in sorted((ROOT / folder).glob(kind)):
            check_words(str(path.relative_to(ROOT)), path.read_text())
    for verb, text in help_texts.items():
        check_words(f"psring {verb} --help-all", text)
    check_words("trainer --help-all", help_of(TRAINER))
    for error in errors:
        print(error)
    print(f"{count} commands of {len(verbs)} verbs, {len(errors)} problems")
    sys.exit(1 if errors or count < 50 or len(verbs) < 8 else 0)


main()
