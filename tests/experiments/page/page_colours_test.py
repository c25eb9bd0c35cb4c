#!/usr/bin/env python3
"""Whether the colours of a run's page can be told apart: contrast, and distances for readers with normal vision,
protanopia, deuteranopia and tritanopia, computed from the variables in page.css. Usage: page_colours_test.py PAGE_FOLDER"""
import itertools
import math
import re
import sys
from pathlib import Path

PAGE = Path(sys.argv[1])
# Linear RGB as seen with the complete deficiency: Machado, Oliveira and Fernandes 2009.
VISION = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
PALETTE = [f"c{i}" for i in range(8)]  # strategies, ranks, workers
BUCKETS = ["c2", "c4", "c3", "c6"]
NUMBERED = [*BUCKETS, "c5", "compute"]  # with a number on them
PARTS = ["compute", "exposed", "waiting", "rest"]  # of a step's bar, in this order; any but the first may be missing
# Series that one chart shows together, with the least distance (CIEDE2000) of two of them.
TOGETHER = [(PALETTE, 12), (PARTS, 18), (["c5", "compute", "c7", "exposed", *BUCKETS], 12)]
ON_GROUND = 3  # contrast of a series with what it is drawn on, except of what is left of a step (rest)
BETWEEN_PARTS = 1.5  # contrast of parts that touch each other
OF_TEXT = 4.5
DERIVED_OPACITY = 0.85  # of a bucket's span that is derived (timeline.js)


def linear(colour):
    values = [int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5)]
    return [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values]


def contrast(a, b):
    dark, light = sorted(sum(w * v for w, v in zip((0.2126, 0.7152, 0.0722), linear(c))) for c in (a, b))
    return (light + 0.05) / (dark + 0.05)


def blend(colour, ground, opacity):
    parts = [round(opacity * int(colour[i:i + 2], 16) + (1 - opacity) * int(ground[i:i + 2], 16)) for i in (1, 3, 5)]
    return "#%02x%02x%02x" % tuple(parts)


def lab(colour, vision):
    r, g, b = (min(1, max(0, sum(m * v for m, v in zip(row, linear(colour))))) for row in VISION[vision])
    xyz = ((0.4124564 * r + 0.3575761 * g + 0.1804375 * b) / 0.95047, 0.2126729 * r + 0.7151522 * g + 0.0721750 * b,
           (0.0193339 * r + 0.1191920 * g + 0.9503041 * b) / 1.08883)
    x, y, z = (t ** (1 / 3) if t > 216 / 24389 else (24389 / 27 * t + 16) / 116 for t in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def ciede2000(one, other):
    """Sharma, Wu and Dalal 2005."""
    (l1, a1, b1), (l2, a2, b2) = one, other
    mean_c7 = ((math.hypot(a1, b1) + math.hypot(a2, b2)) / 2) ** 7
    grow = 1.5 - 0.5 * math.sqrt(mean_c7 / (mean_c7 + 25 ** 7))
    c1, c2 = math.hypot(grow * a1, b1), math.hypot(grow * a2, b2)
    h1, h2 = (math.degrees(math.atan2(b, grow * a)) % 360 for a, b in ((a1, b1), (a2, b2)))
    grey = c1 * c2 == 0
    turn = 0 if grey else (h2 - h1 + 180) % 360 - 180
    hue = math.radians(h1 + h2 if grey else h1 + turn / 2)
    lightness, chroma = (l1 + l2) / 2 - 50, (c1 + c2) / 2
    t = 1 - 0.17 * math.cos(hue - math.radians(30)) + 0.24 * math.cos(2 * hue) + 0.32 * math.cos(3 * hue + math.radians(6)) - \
        0.2 * math.cos(4 * hue - math.radians(63))
    d_l = (l2 - l1) / (1 + 0.015 * lightness ** 2 / math.sqrt(20 + lightness ** 2))
    d_c = (c2 - c1) / (1 + 0.045 * chroma)
    d_h = 2 * math.sqrt(c1 * c2) * math.sin(math.radians(turn / 2)) / (1 + 0.015 * chroma * t)
    bend = 60 * math.exp(-(((math.degrees(hue) % 360) - 275) / 25) ** 2)
    rotation = -2 * math.sqrt(chroma ** 7 / (chroma ** 7 + 25 ** 7)) * math.sin(math.radians(bend))
    return math.sqrt(d_l ** 2 + d_c ** 2 + d_h ** 2 + rotation * d_c * d_h)


def check(theme, colours, errors):
    def expect(met, what):
        if not met:
            errors.append(f"{theme}: {what}")

    for group, least in TOGETHER:
        for a, b in itertools.combinations(group, 2):
            for vision in VISION:
                distance = ciede2000(lab(colours[a], vision), lab(colours[b], vision))
                expect(distance >= least, f"{a} and {b}: distance {distance:.1f} with {vision} vision, at least {least}")
    for a, b in itertools.combinations(PARTS, 2):
        got = contrast(colours[a], colours[b])
        touch = (a, b) != ("compute", "rest")  # a step without communication
        expect(not touch or got >= BETWEEN_PARTS, f"{a} and {b}: contrast {got:.2f}, at least {BETWEEN_PARTS}")
    for name in {*PALETTE, *PARTS} - {"rest"}:
        for ground in ("panel", "ground"):
            got = contrast(colours[name], colours[ground])
            expect(got >= ON_GROUND, f"{name} on {ground}: contrast {got:.2f}, at least {ON_GROUND}")
    for ground in ("panel", "ground"):
        got = contrast(colours["faint"], colours[ground])
        expect(got >= ON_GROUND, f"the outline of a bubble on {ground}: contrast {got:.2f}, at least {ON_GROUND}")
    for name in NUMBERED:
        derived = [blend(colours[name], colours["panel"], DERIVED_OPACITY)] if name in BUCKETS else []
        for fill in (colours[name], *derived):
            got = contrast(colours[f"on-{name}"], fill)
            expect(got >= OF_TEXT, f"text on {name}: contrast {got:.2f}, at least {OF_TEXT}")
    expect(contrast(colours["mark"], "#000000") >= OF_TEXT, "black text on mark")


def main():
    themes = {"light": [], "dark": []}
    for block in re.findall(r"\{((?:\s*--[\w-]+:[^;{}]*;)[^{}]*)\}", (PAGE / "page.css").read_text()):
        colours = {}
        for name, value in re.findall(r"--([\w-]+):\s*(#[0-9a-fA-F]{3,6});", block):
            colours[name] = value if len(value) == 7 else "#" + "".join(2 * digit for digit in value[1:])
        theme = themes["dark" if "color-scheme: dark" in block else "light"]
        theme.append({**theme[0], **colours} if theme else colours)  # for print, some replace those of the screen
    # A series of another colour belongs to one of the groups above.
    known = {*PALETTE, *PARTS, *(f"on-{name}" for name in NUMBERED), "mark", "ink", "faint", "line", "panel", "ground"}
    errors = []
    for theme, blocks in themes.items():
        if not blocks:
            errors.append(f"page.css has no {theme} theme")
        for i, colours in enumerate(blocks):
            missing = sorted(known - set(colours))
            if missing:
                errors.append(f"{theme} {i + 1}: no {', '.join(missing)}")
            else:
                check(f"{theme} {i + 1}", colours, errors)
    for path in sorted(PAGE.glob("*.js")):
        for name in re.findall(r"var\(--([\w-]+)\)", path.read_text()):
            if name not in known:
                errors.append(f"{path.name}: no group of this test has the colour --{name}")
    for error in errors:
        print(error)
    print(f"{sum(map(len, themes.values()))} themes, {len(errors)} problems")
    sys.exit(1 if errors else 0)


main()
