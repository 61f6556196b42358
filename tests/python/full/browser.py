"""A headless Chromium, driven through Debian's chromedriver by the protocol of W3C WebDriver."""

import base64
import http.client
import json
import pathlib
import subprocess
import tempfile

from server_process import eventually, free_port

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the key that WebDriver names elements by
KEYS = {"ctrl": "\ue009", "enter": "\ue007", "tab": "\ue004", "right": "\ue014", "space": "\ue00d"}


class Browser:
    """One browser window. Selectors are CSS selectors; a method fails if nothing matches."""

    def __init__(self, width: int = 1280, height: int = 900, dark: bool = False):
        self._port = free_port()
        self._profile = tempfile.TemporaryDirectory()
        self._log = tempfile.TemporaryFile()
        self._driver = subprocess.Popen(
            ["chromedriver", f"--port={self._port}"], stdout=self._log, stderr=subprocess.STDOUT
        )
        self._session = ""
        flags = [
            "--headless=new",
            "--no-sandbox",  # for root, in a container
            "--disable-dev-shm-usage",
            "--hide-scrollbars",  # as on a phone
            "--disable-background-networking",
            f"--user-data-dir={self._profile.name}",
        ]
        always = {"goog:chromeOptions": {"args": flags}, "goog:loggingPrefs": {"browser": "ALL"}}
        assert eventually(self._is_up, 60), "chromedriver does not start"
        answer = self._send("POST", "/session", {"capabilities": {"alwaysMatch": always}})
        self._session = f"/session/{answer['sessionId']}"
        self.resize(width, height, dark)

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_) -> None:
        try:
            self._send("DELETE", self._session)
        finally:
            self._driver.terminate()
            self._driver.wait(30)
            self._profile.cleanup()

    def _is_up(self) -> bool:
        try:
            return self._send("GET", "/status")["ready"]
        except OSError:
            return False

    def _send(self, method: str, path: str, body: dict | None = None):
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)
        try:
            text = json.dumps(body or {}) if method == "POST" else None
            connection.request(method, path, text, {"Content-Type": "application/json"})
            value = json.loads(connection.getresponse().read())["value"]
        finally:
            connection.close()
        if isinstance(value, dict) and "error" in value:
            raise AssertionError(f"{path}: {value['error']}: {value['message']}")
        return value

    def _post(self, path: str, body: dict | None = None):
        return self._send("POST", self._session + path, body)

    def devtools(self, command: str, **parameters):
        """Runs a command of Chromium's DevTools protocol."""
        return self._post("/goog/cdp/execute", {"cmd": command, "params": parameters})

    def resize(self, width: int, height: int, dark: bool) -> None:
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.devtools("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, url: str) -> None:
        self._post("/url", {"url": url})

    def run(self, script: str, *arguments):
        """Runs the body of a JavaScript function and returns its result."""
        return self._post("/execute/sync", {"script": script, "args": list(arguments)})

    def find(self, selector: str) -> str:
        found = self._post("/element", {"using": "css selector", "value": selector})
        return f"/element/{found[ELEMENT]}"

    def click(self, selector: str) -> None:
        """Clicks an element, or the label around it, which may cover it."""
        script = (
            "const one = document.querySelector(arguments[0]); return one.closest('label') ?? one"
        )
        self._post(f"/element/{self.run(script, selector)[ELEMENT]}/click")

    def fill(self, selector: str, text: str) -> None:
        element = self.find(selector)
        self._post(f"{element}/clear")
        self._post(f"{element}/value", {"text": text})

    def press(self, *keys: str) -> None:
        """Presses keys together, in the element with the focus: press("ctrl", "enter")."""
        codes = [KEYS.get(key, key) for key in keys]
        actions = [{"type": "keyDown", "value": code} for code in codes]
        actions += [{"type": "keyUp", "value": code} for code in reversed(codes)]
        self._post("/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def text(self, selector: str) -> str:
        """The visible text of an element, empty if there is none."""
        return self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector)

    def texts(self, selector: str) -> list[str]:
        script = "return [...document.querySelectorAll(arguments[0])].map((one) => one.innerText)"
        return self.run(script, selector)

    def wait(self, selector: str, text: str = "", timeout_s: float = 60) -> None:
        """Waits until an element is visible and contains `text`."""

        def seen() -> bool:
            script = "return document.querySelector(arguments[0])?.checkVisibility() ?? false"
            return self.run(script, selector) and text in self.text(selector)

        found = eventually(seen, timeout_s)
        assert found, f"no {selector} with {text!r}:\n{self.text('body')}"

    def logs(self) -> list[str]:
        """Warnings and errors of the console since the last call, with violations of the CSP."""
        entries = self._post("/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries if entry["level"] in ("WARNING", "SEVERE")]

    def screenshot(self, file: pathlib.Path) -> None:
        """Writes a PNG of the whole page."""
        size = self.devtools("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        answer = self.devtools("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        file.write_bytes(base64.b64decode(answer["data"]))
