"""`python -m tests.page.picture docs/status-page.png`: the page by day and, on a phone, by night.

A daemon on a simulated board, its API, a collector and two producers whose load comes and goes, for
long enough that the charts are full.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
from PIL import Image

from edged.client import Producer
from edged.platform.processes import ChildProcess, free_port
from tests.api.support import Api, Daemon
from tests.page.browser import Browser

RUN_S = 330
TURBINES = np.array(["R80711", "R80721", "R80736", "R80790"])
EVERY_S = 0.25


def document(port: int) -> dict:
    """The wind farm's job, with windows of a second."""
    source = {"type": "tcp", "listen": f"127.0.0.1:{port}"}

    def stream(value: str, **more) -> dict:
        columns = {"turbine": "string", "time": "timestamp", value: "float64?"}
        return {"source": source, "columns": columns, "time": "time", **more}

    return {
        "name": "power_curve",
        "promises": {"latency": "1s"},
        "streams": {"power": stream("power_kw"), "wind": stream("wind_m_s", late="dead_letter")},
        "operators": {
            "joined": {"type": "interval_join", "left": "power", "right": "wind",
                       "on": ["turbine"], "before": "500us", "after": "500us"},
            "producing": {"type": "filter", "input": "joined", "where": "power_kw > 0"},
            "curve": {"type": "window", "input": "producing", "keys": ["turbine"], "size": "1s",
                      "aggregates": {"n": "count(*)", "power": "mean(power_kw)"}},
        },
        "sinks": {
            "pairs": {"type": "pages", "input": "producing"},
            "means": {"type": "pages", "input": "curve"},
            "late": {"type": "pages", "input": "wind.late"},
        },
    }  # fmt: skip


def feed(port: int, stream: str, column: str, over: threading.Event) -> None:
    """Rows of the last quarter second, up to four thousand a second."""
    fields = [("turbine", pa.string()), ("time", pa.timestamp("us", "UTC")), (column, pa.float64())]
    schema, dice = pa.schema(fields), np.random.default_rng(7)
    with Producer(f"127.0.0.1:{port}", stream, schema, producer=f"sensor-{stream}") as producer:
        while not over.wait(EVERY_S):
            rows = int(EVERY_S * 2000 * (1.2 + math.sin(time.time() / 24)))
            times = np.sort(time.time_ns() // 1000 - dice.integers(0, int(EVERY_S * 1e6), rows))
            columns = [pa.array(TURBINES[dice.integers(0, 4, rows)]),
                       pa.array(times, pa.timestamp("us", "UTC")),
                       pa.array(dice.gamma(2, 300, rows) - 50)]  # fmt: skip
            producer.send(pa.record_batch(columns, schema=schema))


def collector(path: Path) -> tuple[ChildProcess, list[str]]:
    """A running collector, and the daemon's flags to reach it."""
    port, tokens = free_port(), path / "collector-tokens"
    words = ["edged", "central", "token", "turbine-7", "--tokens", str(tokens), "--json"]
    made = subprocess.run([sys.executable, "-m", *words], capture_output=True, check=True)
    (path / "token").write_text(json.loads(made.stdout)["token"])
    words = ["edged", "central", "collect", "--landing", str(path / "landing"), "--tokens"]
    words += [str(tokens), "--listen", f"127.0.0.1:{port}", "--json"]
    part = ChildProcess("collector", words, path)
    part.ready()
    flags = ["--uplink", f"http://127.0.0.1:{port}", "--token-file", str(path / "token")]
    return part, [*flags, "--device", "turbine-7", "--policy", "race_to_idle"]


def main(out: Path) -> None:
    """Run it all, and draw."""
    path, port, over = Path(tempfile.mkdtemp()), free_port(), threading.Event()
    with ExitStack() as stack:
        part, flags = collector(path)
        stack.callback(part.stop)
        daemon = stack.enter_context(Daemon(path, document(port), *flags))
        api = stack.enter_context(Api(path, daemon.door, tcp=True))
        browser = stack.enter_context(Browser(path / "browser"))
        for stream, column in (("power", "power_kw"), ("wind", "wind_m_s")):
            thread = threading.Thread(target=feed, args=(port, stream, column, over))
            thread.start()
            stack.callback(thread.join)
        stack.callback(over.set)
        pages = [browser.page(1280, 900), browser.page(375, 812, dark=True)]
        for page in pages:
            page.open(f"http://127.0.0.1:{api.port}/")
            page.until("!document.getElementById('ask').hidden")
            page.ask(f"document.getElementById('token').value = {json.dumps(api.token('read'))}")
            page.ask("document.querySelector('#ask button').click()")
            page.until("document.body.className == 'live'")
        time.sleep(RUN_S)
        shots = []
        for number, page in enumerate(pages):
            page.picture(path / f"{number}.png")
            shots.append(Image.open(path / f"{number}.png").convert("RGB"))
    day, night = shots
    night = night.resize((375, night.height * 375 // night.width), Image.Resampling.LANCZOS)
    both = Image.new("RGB", (day.width + 375, day.height), day.getpixel((0, 0)))
    both.paste(day, (0, 0))
    both.paste(night.crop((0, 0, 375, day.height)), (day.width, 0))
    both.quantize(128, dither=Image.Dither.NONE).save(out, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
