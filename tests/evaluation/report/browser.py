"""A real browser without a window, spoken to through a pipe (Chrome DevTools Protocol)."""

import base64
import json
import os
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from select import select
from typing import Any

import numpy as np
from matplotlib.image import imread

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
OPTIONS = (
    "--headless", "--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--no-first-run",
    "--hide-scrollbars", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--remote-debugging-pipe",
)  # fmt: skip


@dataclass
class Browser:
    """One page. Use as a context; what the page asked for and what went wrong in it is collected."""

    profile: Path
    width: int = 1280
    height: int = 800
    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def __enter__(self) -> "Browser":
        assert CHROMIUM
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        # The browser expects its commands in descriptor 3 and answers in 4, and the shell puts them there.
        command = f'exec "$0" "$@" 3<&{to_read} 4>&{to_write}'
        arguments = [CHROMIUM, *OPTIONS, f"--user-data-dir={self.profile}", "about:blank"]
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", command, *arguments], pass_fds=(to_read, to_write), stderr=subprocess.DEVNULL
        )
        os.close(to_read)
        os.close(to_write)
        self._rest, self._number, self._session = b"", 0, ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.resize(self.width, self.height)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(20)
        os.close(self._write)
        os.close(self._read)

    def resize(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def open(self, path: Path) -> None:
        self.call("Page.navigate", url=path.resolve().as_uri())

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page; promises are waited for."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait_for(self, expression: str, seconds: float = 120.0) -> None:
        """Until an expression is true."""
        end = time.monotonic() + seconds
        while not self.evaluate(expression):
            assert time.monotonic() < end, f"{expression} is not true after {seconds} s; errors: {self.errors}"
            time.sleep(0.1)

    def picture(self, selector: str) -> np.ndarray:
        """What is seen of an element, brightness between 0 and 1: [height, width, 3]."""
        place = f"document.querySelector({selector!r})"
        self.evaluate(f"{place}.scrollIntoView({{behavior: 'instant', block: 'center'}})")
        self.evaluate("new Promise(done => setTimeout(() => requestAnimationFrame(() => done(0)), 300))")
        box = self.evaluate(f"{place}.getBoundingClientRect().toJSON()")
        clip = {name: box[name] for name in ("x", "y", "width", "height")} | {"scale": 1}
        clip["y"] += self.evaluate("window.scrollY")
        found = self.call("Page.captureScreenshot", clip=clip)["data"]
        return imread(BytesIO(base64.b64decode(found)), format="png")[..., :3]

    def call(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self._note(answer.get("method", ""), answer.get("params", {}))

    def _next(self) -> Any:
        while b"\0" not in self._rest:
            ready, _, _ = select([self._read], [], [], 180.0)
            assert ready, "the browser does not answer"
            part = os.read(self._read, 1 << 20)
            assert part, "the browser has ended"
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def _note(self, event: str, content: Any) -> None:
        if event == "Network.requestWillBeSent" and not content["request"]["url"].startswith("data:"):
            self.requests.append(content["request"]["url"])
        elif event == "Runtime.exceptionThrown":
            self.errors.append(str(content["exceptionDetails"]))
        elif event == "Runtime.consoleAPICalled" and content["type"] in ("error", "assert"):
            self.errors.append(str(content["args"]))
        elif event == "Log.entryAdded" and content["entry"]["level"] == "error":
            self.errors.append(content["entry"]["text"])
