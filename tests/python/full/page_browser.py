#!/usr/bin/env python3
"""Tests the page of the HTTP API in a headless Chromium (tools/try_page.sh runs this).

With --screenshots DIR it also writes pictures of every panel and error, light and dark, narrow and
wide, to look at.
"""

import argparse
import ast
import hashlib
import http.client
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from browser import Browser  # noqa: E402
from http_api import HttpServer  # noqa: E402
from server_process import CASES, G2P, KEY, WRONG_KEY, eventually  # noqa: E402

HOSTILE = "<img src=x onerror=\"document.title='owned'\"><b>'$(id)`"
SIZES = {"wide": (1440, 900), "middle": (820, 1100), "narrow": (360, 780)}
ENDLESS = 30_000  # new tokens: more than are generated while a test looks at a stream
PICTURES = [("wide", False), ("wide", True), ("middle", True), ("narrow", False)]


def make_models(root: pathlib.Path) -> list[pathlib.Path]:
    """Writes random models with other heads and the tokenizer of g2p. One label contains HTML."""
    folders = []
    for name in ("t5-encoder", "t5-seqcls", "t5-tokcls"):
        folder = root / name
        folder.mkdir()
        shutil.copy(CASES / name / "model.safetensors", folder)
        shutil.copy(G2P / "spiece.model", folder)
        config = json.loads((CASES / name / "config.json").read_text(encoding="utf-8"))
        if name == "t5-seqcls":
            labels = {number: f"label {number}" for number in config["id2label"]}
            config["id2label"] = {**labels, "0": "<b onclick=1>bold</b>"}
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        folders.append(folder)
    return folders


class Page:
    """The page of `server` in `browser`. shot() writes pictures if there is a folder for them."""

    def __init__(self, browser: Browser, server: HttpServer, folder: pathlib.Path | None):
        self.browser, self.server, self.folder = browser, server, folder
        self.url = f"http://127.0.0.1:{server.api_port}/"

    def open(self, status: str = "Serving") -> None:
        """Opens or reloads the page and waits until it shows `status`."""
        self.browser.open(self.url)
        self.browser.wait("#status", status)

    def use(self, model: str, task: str) -> None:
        self.browser.click(f'#models input[value="{model}"]')
        self.browser.click(f"#tab-{task}")

    def run(self, task: str, status: str = "in all") -> None:
        self.browser.click(f"#{task} button.primary")
        self.browser.wait(f"#{task} .result > .facts", status)

    def answer(self, task: str) -> dict:
        """The answer of the server, as the page shows it."""
        return json.loads(self.shown(task, "Answer"))

    def shown(self, task: str, name: str) -> str:
        self.browser.click(f'#{task} .request input[value="{name}"]')
        return self.browser.run(
            "return document.querySelector(arguments[0]).textContent", f"#{task} .request pre"
        )

    def shot(self, name: str) -> None:
        """Takes a picture in each size and checks that the page is not wider than the window."""
        for size, dark in PICTURES:
            self.browser.resize(*SIZES[size], dark)
            overflow = "return document.documentElement.scrollWidth - window.innerWidth"
            assert self.browser.run(overflow) <= 0, (name, size)
            if self.folder is not None:
                shade = "dark" if dark else "light"
                self.browser.screenshot(self.folder / f"{name}-{size}-{shade}.png")
        self.browser.resize(*SIZES["wide"], dark=False)

    def generated(self) -> list[str]:
        """Returns the generated texts, without the tokens that have no text."""
        return self.browser.run(
            "return [...document.querySelectorAll('#generate .tokens')].map((text) => ["
            "...text.querySelectorAll('.token:not(.bare)')]"
            ".map((one) => one.textContent).join(''))"
        )

    def check_console(self) -> None:
        """Checks that no script failed and that the page's CSP blocked nothing."""
        bad = [line for line in self.browser.logs() if "Failed to load resource" not in line]
        assert bad == [], bad

    def check_text_is_text(self) -> None:
        assert self.browser.run("return document.querySelectorAll('img, b').length") == 0
        assert self.browser.run("return document.title") == "Quintet"


def check_models(page: Page) -> None:
    page.open()
    listed = page.browser.texts(".model-name")
    assert listed == ["g2p", "t5-encoder", "t5-seqcls", "t5-tokcls"], listed
    assert "6.4 M parameters, f32, cpu" in page.browser.text(".model")
    page.browser.wait("#version", ".")
    entries = "return performance.getEntriesByType('resource').map((one) => one.name)"
    assert all(name.startswith(page.url) for name in page.browser.run(entries))
    page.shot("empty")


def check_greedy(page: Page) -> None:
    browser = page.browser
    page.use("g2p", "generate")
    browser.fill("#prompt", "wagner")
    browser.click('#generate input[value="greedy"]')
    browser.run("document.getElementById('prompt').focus()")
    browser.press("ctrl", "enter")
    browser.wait("#generate .result > .facts", "in all")
    assert page.generated() == ["W AE1 G N ER0"]
    body = {"model": "g2p", "prompt": "wagner", "temperature": 0, "num_beams": 1, "logprobs": 5}
    choice = page.server.post("/v1/completions", body).json()["choices"][0]
    doubts = "return [...document.querySelectorAll('.token')].map((one) => one.style.cssText)"
    assert len(browser.run(doubts)) == len(choice["logprobs"]["tokens"])
    # The keyboard moves from token to token, and the inspector follows.
    browser.run("document.querySelector('.tokens').focus()")
    browser.run(
        "document.querySelector('.tokens').dispatchEvent("
        "new KeyboardEvent('keydown', {key: 'Home', bubbles: true}))"
    )
    assert browser.text(".inspector .facts").startswith("Token 1 of ")
    browser.press("right")
    assert browser.text(".inspector .facts").startswith("Token 2 of ")
    assert len(browser.texts(".inspector li")) == 5
    browser.click("#generate .card details summary")
    browser.wait("#generate .card table")
    assert len(browser.texts("#generate .card tbody tr")) == len(choice["logprobs"]["tokens"])
    page.shot("greedy")


def streamed(output: str) -> str:
    """Returns the generated text in the output of a command that the page shows. Each line of the
    output contains one streamed event, which curl prints as JSON and Python as a dictionary."""
    lines = [line.removeprefix("data: ") for line in output.splitlines() if "choices" in line]
    read = json.loads if '"choices"' in output else ast.literal_eval
    return "".join(choice["text"] for line in lines for choice in read(line)["choices"])


def check_snippets(page: Page) -> None:
    """The shown commands give the shown answer."""
    assert "data: [DONE]" in page.shown("generate", "Answer")
    curl = subprocess.run(
        ["bash", "-c", page.shown("generate", "curl")],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "data: [DONE]" in curl.stdout
    assert streamed(curl.stdout) == "W AE1 G N ER0"
    python = subprocess.run(
        [sys.executable, "-c", page.shown("generate", "Python")],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert streamed(python.stdout) == "W AE1 G N ER0"
    assert "'finish_reason': 'stop'" in python.stdout


def check_beams(page: Page) -> None:
    browser = page.browser
    browser.fill("#prompt", "quintet")
    browser.click('#generate input[value="beams"]')
    browser.click('#generate input[name="stream"]')
    page.run("generate", "4 beams")
    answer = page.answer("generate")
    texts = [choice["text"] for choice in answer["choices"]]
    assert len(set(texts)) == 4
    assert page.generated() == texts
    assert browser.texts("#generate .card h3") == [f"Beam {i + 1}" for i in range(4)]
    scores = [choice["score"] for choice in answer["choices"]]
    assert scores == sorted(scores, reverse=True)
    for text, score in zip(browser.texts("#generate .score"), scores, strict=True):
        assert text.replace("\u2212", "-").startswith(f"score {score:.3f}"), (text, score)
    assert browser.texts("#generate .card:first-child .differs") == []
    assert len(browser.texts("#generate .card:nth-child(2) .differs")) > 0
    page.shot("beams")


def check_sampling(page: Page) -> None:
    browser = page.browser
    browser.click('#generate input[value="sampling"]')
    browser.click('#generate input[name="stream"]')
    browser.fill("#generate input[name='seed']", "18446744073709551615")
    page.run("generate", "seed 18446744073709551615")
    assert '"seed": 18446744073709551615' in page.shown("generate", "curl")
    first = page.generated()
    assert len(first) == 3
    page.run("generate", "3 texts")
    assert page.generated() == first
    page.shot("samples")


def check_stop(page: Page) -> None:
    """The page shows a stream while it arrives. Stopping it cancels the request in the server."""
    browser = page.browser
    page.open()
    browser.fill("#prompt", "wagner")
    browser.click("#generate details summary")
    for name in ("max_tokens", "min_new_tokens"):
        browser.fill(f"#generate input[name='{name}']", str(ENDLESS))
    browser.click("#generate button.primary")
    browser.wait("#generate .streaming", " ")
    page.shot("streaming")
    browser.click("#generate .actions button:not(.primary)")
    browser.wait("#generate .result > .facts", "Stopped")
    assert eventually(lambda: page.server.metric("quintet_requests_running") == 0)
    assert page.server.metric("quintet_requests_finished_total", reason="cancelled") == 1


def check_errors(page: Page) -> None:
    browser = page.browser
    browser.click('#generate input[value="greedy"]')
    browser.click("#generate details summary")
    browser.fill("#generate input[name='max_tokens']", "abc")
    browser.click("#generate button.primary")
    browser.wait("#generate .error", "HTTP 400")
    body = {"model": "g2p", "prompt": "a", "max_tokens": "abc"}
    expected = page.server.post("/v1/completions", body).json()["error"]["message"]
    assert browser.text("#generate .error .verbatim") == expected
    page.shot("error-400")
    for name, value in (("max_tokens", "4000"), ("min_new_tokens", "4000"), ("timeout", "0.05")):
        browser.fill(f"#generate input[name='{name}']", value)
    browser.click('#generate input[name="stream"]')
    browser.click("#generate button.primary")
    browser.wait("#generate .error", "HTTP 504")
    page.shot("error-504")
    for name in ("max_tokens", "min_new_tokens", "timeout"):
        browser.fill(f"#generate input[name='{name}']", "")


def check_embeddings(page: Page) -> None:
    browser = page.browser
    page.use("t5-encoder", "embed")
    texts = ["wagner", "wagners", HOSTILE, "beethoven"]
    browser.fill("#texts", "\n".join(texts))
    page.run("embed", "4 vectors")
    body = {"inputs": {"source_sentence": texts[0], "sentences": texts[1:]}, "model": "t5-encoder"}
    expected = [1.0, *page.server.post("/similarity", body).json()]
    row = [
        float(text.replace("\u2212", "-"))
        for text in browser.texts("#embed .matrix tbody tr:first-child td")
    ]
    assert all(abs(a - b) < 6e-4 for a, b in zip(row, expected, strict=True)), (row, expected)
    column = browser.texts("#embed .matrix tbody td:nth-child(2)")
    assert [float(text.replace("\u2212", "-")) for text in column] == row
    page.check_text_is_text()
    page.shot("embeddings")


def check_rank(page: Page) -> None:
    browser = page.browser
    page.use("t5-encoder", "rank")
    texts = ["mozart", "wagner", HOSTILE]
    browser.fill("#query", "wagner")
    browser.fill("#documents", "\n".join(texts))
    page.run("rank", "3 texts")
    body = {"text_1": "wagner", "text_2": texts, "model": "t5-encoder"}
    data = page.server.post("/score", body).json()["data"]
    order = sorted(range(3), key=lambda i: -data[i]["score"])
    assert browser.texts("#rank .name") == [texts[i] for i in order]
    page.shot("rank")


def check_classify(page: Page) -> None:
    browser = page.browser
    page.use("t5-seqcls", "classify")
    browser.fill("#inputs", f"wagner\n{HOSTILE}")
    page.run("classify", "2 texts")
    body = {"inputs": "wagner", "model": "t5-seqcls"}
    labels = [item["label"] for item in page.server.post("/predict", body).json()]
    assert browser.texts("#classify .card:first-child .name") == labels
    assert "<b onclick=1>bold</b>" in labels
    page.check_text_is_text()
    page.shot("classify")
    page.use("g2p", "classify")
    browser.wait("#classify > .empty", "g2p has no head for this task. Its head: language model.")
    page.shot("no-head")
    page.use("t5-tokcls", "classify")
    browser.wait("#classify > .empty", "token classification")
    page.use("t5-encoder", "generate")
    browser.wait("#generate > .empty", "Its tasks: encode.")


def check_tokenize(page: Page) -> None:
    browser = page.browser
    page.use("g2p", "tokenize")
    browser.fill("#text", "wagner")
    page.run("tokenize", "token")
    body = {"inputs": "wagner", "model": "g2p"}
    tokens = page.server.post("/tokenize", body).json()[0]
    assert browser.texts("#tokenize .piece") == [token["text"] for token in tokens]
    page.shot("tokenize")


def check_keyboard(page: Page) -> None:
    """Every control is reached with Tab, and shows that it has the focus."""
    browser = page.browser
    page.open()
    seen = set()
    for _ in range(40):
        browser.press("tab")
        focus = browser.run(
            "const one = document.activeElement; if (one === document.body) return null;"
            "const near = getComputedStyle(one).outlineStyle;"
            "const label = one.matches('[type=radio]')"
            " ? getComputedStyle(one.closest('.model') ?? one.nextSibling).outlineStyle : '';"
            "return [one.id || one.name || one.textContent.trim(), near, label]"
        )
        if focus is None:
            break
        assert "solid" in focus[1:], focus
        seen.add(focus[0])
    for name in (
        "key-button",
        "model",
        "tab-generate",
        "prompt",
        "method",
        "max_tokens",
        "logprobs",
    ):
        assert name in seen, (name, seen)
    browser.run("document.getElementById('tab-generate').focus()")
    browser.press("right")
    assert browser.run("return document.activeElement.id") == "tab-embed"
    assert browser.run("return document.getElementById('embed').checkVisibility()")
    # Every control has a name for screen readers.
    unnamed = (
        "return [...document.querySelectorAll('button, input, select, textarea')].filter((one) =>"
        " !(one.labels?.length > 0 || one.textContent.trim() || one.ariaLabel))"
        ".map((one) => one.outerHTML)"
    )
    assert browser.run(unnamed) == []


def check_states(page: Page) -> None:
    """The page shows a loading model, a draining server and an unreachable server."""
    browser = page.browser
    fake = """const real = window.fetch;
      window.fetch = (url, options) => {
        if (!window.loaded && url.endsWith('/health')) {
          return Promise.resolve(new Response('{}', {status: 503}));
        }
        if (!window.loaded && url.endsWith('/v1/models')) {
          return Promise.resolve(new Response(JSON.stringify(
              {data: [{id: 'g2p', ready: false, device: 'cpu', dtype: 'f32'}]})));
        }
        return real(url, options);
      };"""
    made = browser.devtools("Page.addScriptToEvaluateOnNewDocument", source=fake)
    page.open("Loading 1 model")
    browser.wait("#generate > .empty", "g2p is being loaded.")
    page.shot("loading")
    browser.run("window.loaded = true")
    browser.wait("#status", "Serving")
    browser.wait("#prompt")
    browser.devtools("Page.removeScriptToEvaluateOnNewDocument", identifier=made["identifier"])
    page.open()
    page.server.process.send_signal(signal.SIGTERM)
    browser.wait("#status", "Draining")
    browser.wait("#notice", "shutting down")
    page.shot("draining")
    browser.wait("#status", "Unreachable")
    page.shot("unreachable")


def check_full(page: Page) -> None:
    """If the queue is full, the page shows the server's message and the time until a retry."""
    browser, server = page.browser, page.server
    endless = {"prompt": "a", "max_tokens": ENDLESS, "ignore_eos": True, "stream": True}
    held = []
    for gauge in ("running", "waiting"):
        held.append(http.client.HTTPConnection("127.0.0.1", server.api_port, timeout=60))
        held[-1].request(
            "POST", "/v1/completions", json.dumps(endless), {"Content-Type": "application/json"}
        )
        assert eventually(lambda name=gauge: server.metric(f"quintet_requests_{name}") == 1)
    page.open()
    browser.fill("#prompt", "wagner")
    browser.click("#generate button.primary")
    browser.wait("#generate .error", "HTTP 429")
    browser.wait("#generate .error .verbatim", "queue full: 1 requests")
    browser.wait("#generate .error .facts", "retry after 1 s")
    page.shot("error-429")
    for connection in held:
        connection.close()
    assert eventually(lambda: server.metric("quintet_requests_running") == 0)
    browser.click("#generate .error button")  # run again
    browser.wait("#generate .result > .facts", "in all")


def check_key(page: Page) -> None:
    browser = page.browser
    page.open("API key needed")
    browser.wait("#key-form")
    page.shot("key")
    browser.fill("#key", WRONG_KEY)
    browser.press("enter")
    browser.wait("#key-error", "API key")
    page.shot("key-wrong")
    browser.fill("#key", KEY)
    browser.press("enter")
    browser.wait("#status", "Serving")
    assert not browser.run("return document.getElementById('key-form').checkVisibility()")
    browser.fill("#prompt", "wagner")
    page.run("generate")
    curl, python = page.shown("generate", "curl"), page.shown("generate", "Python")
    for command in (["bash", "-c", curl], [sys.executable, "-c", python]):
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
            env={**os.environ, "QUINTET_API_KEY": KEY},
        )
        assert streamed(done.stdout) == "W AE1 G N ER0", done
    kept = (
        "return document.documentElement.outerHTML + location.href + document.cookie"
        " + JSON.stringify({...localStorage}) + JSON.stringify({...sessionStorage})"
        " + JSON.stringify(performance.getEntries().map((one) => one.name))"
    )
    assert KEY not in browser.run(kept)
    page.shot("with-key")
    page.open("API key needed")  # a reload forgets it
    assert KEY not in page.server.log()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--screenshots", type=pathlib.Path, metavar="DIR")
    folder = parser.parse_args().screenshots
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, Browser(*SIZES["wide"]) as browser:
        root = pathlib.Path(scratch)
        models = [G2P, *make_models(root)]
        # The page asks every 5 s whether the server drains.
        with HttpServer(*models, http_api_page=True, drain_delay=15) as server:
            page = Page(browser, server, folder)
            for check in (
                check_models,
                check_greedy,
                check_snippets,
                check_beams,
                check_sampling,
                check_errors,
                check_embeddings,
                check_rank,
                check_classify,
                check_tokenize,
                check_keyboard,
                check_states,
            ):
                check(page)
                page.check_console()
                print(f"page: {check.__name__}", flush=True)
        keys = root / "keys"
        keys.touch(mode=0o600)
        keys.write_text(hashlib.sha256(KEY.encode()).hexdigest() + "\n")
        with HttpServer(G2P, http_api_page=True, api_key_file=keys) as server:
            page = Page(browser, server, folder)
            check_key(page)
            page.check_console()
        full = {"max_queue": 1, "max_running": 1, "limit_new_tokens": ENDLESS, "cache_memory": 512}
        with HttpServer(G2P, http_api_page=True, **full) as server:
            page = Page(browser, server, folder)
            check_stop(page)
            check_full(page)
            page.check_console()
    print("page: all checks passed")


if __name__ == "__main__":
    main()
