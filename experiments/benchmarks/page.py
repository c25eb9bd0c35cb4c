#!/usr/bin/env python3
"""Opens the page of a run in Chromium (Debian: apt-get install chromium fonts-noto-cjk).

    experiments/benchmarks/page.py picture RUN/report.html experiments/report.png   # its first screen, for README.md
    experiments/benchmarks/page.py speed RUN/report.html                            # how fast a phone shows it

`speed` emulates a phone (390x844 pixels) whose processor is 6 times slower than this one, as Lighthouse does for a mid-range
phone, and opens the page several times. It prints as JSON, in ms since the navigation started:
    first_paint     the first text is painted (First Contentful Paint)
    first_screen    the frame that has the verdict and the first chart is painted
    all_open        the parts below are drawn, too
and the page's size, its network requests and its console messages.
"""
import argparse
import base64
import contextlib
import json
import os
import pathlib
import select
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

SLOWER = 6
PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 3, "mobile": True}
TIMEOUT_S = 60

# Records in the page when it showed the answer. The verdict and the first chart are drawn in one task and so painted in one
# frame, which is the Largest Contentful Paint of an element of the answer. The other parts are painted before the second
# animation frame after they were drawn.
WATCH = """
window.seen = {};
new PerformanceObserver((list) => { for (const {element, startTime} of list.getEntries())
  if (element && element.closest('#answer') && document.querySelector('#answer figure svg > *')) seen.first_screen ||= startTime;
}).observe({type: 'largest-contentful-paint', buffered: true});
new MutationObserver((_, observer) => {
  const parts = [...document.querySelectorAll('details.part[open] > div')];
  if (!parts.length || !parts.every((part) => part.childNodes.length)) return;
  observer.disconnect();
  requestAnimationFrame(() => requestAnimationFrame(() => { seen.all_open = performance.now(); }));
}).observe(document, {childList: true, subtree: true});
"""
SEEN = """({...window.seen, first_paint: (performance.getEntriesByName('first-contentful-paint')[0] || {}).startTime,
  screens: document.documentElement.scrollHeight / innerHeight})"""


class Browser:
    """A headless Chromium, driven by its DevTools protocol over a pipe."""

    def __init__(self, program, folder):
        reads, self._to = os.pipe()
        self._from, writes = os.pipe()
        arguments = [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={folder}",
                     "--remote-debugging-pipe", "about:blank"]
        self._process = subprocess.Popen(["sh", "-c", f'exec "$@" 3<&{reads} 4>&{writes}', "sh", *arguments],
                                         pass_fds=(reads, writes), stderr=subprocess.DEVNULL)
        os.close(reads)
        os.close(writes)
        self._id, self._rest, self.events, self._session = 0, b"", [], None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        self._id += 1
        request = {"id": self._id, "method": method, "params": params}
        if self._session:
            request["sessionId"] = self._session
        os.write(self._to, json.dumps(request).encode() + b"\0")
        while True:
            message = self._message()
            if message.get("id") == self._id:
                if "error" in message:
                    sys.exit(f"page.py: {method}: {message['error']['message']}")
                return message["result"]
            self.events.append(message)

    def value(self, expression):
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def open(self, page):
        """Returns after the load event."""
        self.events.clear()
        self.call("Page.navigate", url=page.resolve().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._message())

    def wait_for(self, expression):
        deadline = time.monotonic() + TIMEOUT_S
        while not self.value(expression):
            if time.monotonic() > deadline:
                sys.exit(f"page.py: the page did not reach {expression} within {TIMEOUT_S} s")
            time.sleep(0.05)

    def close(self):
        self._session = None
        self.call("Browser.close")
        self._process.wait(TIMEOUT_S)

    def _message(self):
        while b"\0" not in self._rest:
            if not select.select([self._from], [], [], TIMEOUT_S)[0]:
                self._process.kill()
                sys.exit(f"page.py: Chromium did not answer within {TIMEOUT_S} s")
            read = os.read(self._from, 1 << 20)
            if not read:
                sys.exit("page.py: Chromium ended")
            self._rest += read
        message, self._rest = self._rest.split(b"\0", 1)
        return json.loads(message)


def picture(browser, page, to, width, height, scheme, scale):
    browser.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=width < 600)
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    browser.open(page)
    browser.wait_for("document.querySelector('#answer figure svg > *') !== null")
    kind = to.suffix.lstrip(".")
    quality = {} if kind == "png" else {"quality": 80}
    to.write_bytes(base64.b64decode(browser.call("Page.captureScreenshot", format=kind, **quality)["data"]))
    print(f"{to}: {to.stat().st_size:,} bytes")


def speed(browser, page, times):
    browser.call("Emulation.setDeviceMetricsOverride", **PHONE)
    browser.call("Emulation.setCPUThrottlingRate", rate=SLOWER)
    browser.call("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
    runs, requests, messages = [], set(), []
    for _ in range(times + 1):
        browser.open(page)
        browser.wait_for("window.seen && seen.all_open > 0 && seen.first_screen > 0")
        runs.append(browser.value(SEEN))
        for event in browser.events:
            if event["method"] == "Network.requestWillBeSent":
                requests.add(event["params"]["request"]["url"].partition(",")[0])
            if event["method"] in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
                messages.append(event["params"])
        browser.call("Page.navigate", url="about:blank")
    runs = runs[1:]  # the first one starts the renderer
    print(json.dumps({"page": str(page), "bytes": page.stat().st_size,
                      **{name: {"lowest": round(min(run[name] for run in runs)), "median": round(statistics.median(run[name] for run in runs)),
                                "highest": round(max(run[name] for run in runs))}
                         for name in ("first_paint", "first_screen", "all_open")},
                      "times_opened": times, "screens_of_a_phone": round(runs[0]["screens"], 1),
                      "requests": sorted(requests - {page.resolve().as_uri()}), "console": messages,
                      "load_of_this_machine": os.getloadavg()[0]}, indent=1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--browser", default=shutil.which("chromium"), help="Chromium's program")
    verbs = parser.add_subparsers(dest="verb", required=True)
    of_picture = verbs.add_parser("picture", help="write a picture of the first screen")
    of_picture.add_argument("page", type=pathlib.Path)
    of_picture.add_argument("to", type=pathlib.Path, help="a .png or .webp file")
    of_picture.add_argument("--width", type=int, default=1000)
    of_picture.add_argument("--height", type=int, default=640)
    of_picture.add_argument("--scale", type=float, default=1.5, help="pixels of the picture for one of the page")
    of_picture.add_argument("--scheme", choices=["light", "dark"], default="light")
    of_speed = verbs.add_parser("speed", help="measure on an emulated phone")
    of_speed.add_argument("page", type=pathlib.Path)
    of_speed.add_argument("--times", type=int, default=7)
    arguments = parser.parse_args()
    if not arguments.browser:
        sys.exit("page.py: no chromium; apt-get install chromium, or name the program with --browser")
    if not arguments.page.is_file():
        sys.exit(f"page.py: {arguments.page} is not a page; give a run's report.html")
    with contextlib.ExitStack() as stack:
        # The browser still writes to its folder while it ends.
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="psring-page-", ignore_cleanup_errors=True))
        browser = Browser(arguments.browser, folder)
        stack.callback(browser.close)
        if arguments.verb == "picture":
            picture(browser, arguments.page, arguments.to, arguments.width, arguments.height, arguments.scheme, arguments.scale)
        else:
            speed(browser, arguments.page, arguments.times)


if __name__ == "__main__":
    main()
