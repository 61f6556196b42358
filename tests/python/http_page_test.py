"""Tests the page of the HTTP API without a browser; tools/try_page.sh tests it in one."""

import re
import subprocess

import pytest

from http_api import HttpServer
from server_process import BINARY, G2P, KEY, SOURCE, free_port

FILES = SOURCE / "server" / "page"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}


def assets() -> list[str]:
    return sorted(file.name for file in FILES.iterdir() if file.suffix in (".css", ".js"))


@pytest.fixture(scope="module")
def api():
    with HttpServer(G2P, http_api_page=True) as server:
        yield server


def test_every_file_is_served_as_it_is_in_the_source(api):
    paths = {"/": FILES / "index.html", **{f"/page/{name}": FILES / name for name in assets()}}
    assert len(paths) > 5
    for path, file in paths.items():
        answer = api.fetch("GET", path)
        assert (answer.status, answer.body) == (200, file.read_bytes()), path
        assert answer.headers["Content-Type"] == f"{TYPES[file.suffix]}; charset=utf-8"


def test_headers(api):
    for path in ("/", "/page/page.js"):
        headers = api.fetch("GET", path).headers
        rules = dict(rule.split(" ", 1) for rule in headers["Content-Security-Policy"].split("; "))
        assert rules["default-src"] == "'none'"
        for kind in ("script-src", "style-src", "connect-src"):
            assert rules[kind] == "'self'"
        for kind in ("base-uri", "form-action", "frame-ancestors"):
            assert rules[kind] == "'none'"
        assert rules["require-trusted-types-for"] == "'script'"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cross-Origin-Opener-Policy"] == "same-origin"
        assert headers["Cache-Control"] == "no-cache"


def test_a_client_keeps_a_file_until_it_changes(api):
    tags = set()
    for path in ("/", "/page/page.js", "/page/page.css"):
        tag = api.fetch("GET", path).headers["ETag"]
        tags.add(tag)
        for known in (tag, f'"other", W/{tag}', "*"):
            answer = api.fetch("GET", path, If_None_Match=known)
            assert (answer.status, answer.body) == (304, b"")
            assert answer.headers["ETag"] == tag and "Content-Length" not in answer.headers
            assert "Content-Security-Policy" in answer.headers
        for other in ('"other"', "", tag.strip('"')):
            assert api.fetch("GET", path, If_None_Match=other).status == 200
    assert len(tags) == 3


def test_methods(api):
    whole = api.fetch("GET", "/")
    head = api.fetch("HEAD", "/")
    assert (head.status, head.body) == (200, b"")
    assert {**head.headers, "Date": ""} == {**whole.headers, "Date": ""}
    assert api.fetch("HEAD", "/page/page.css").status == 200
    for method in ("PUT", "DELETE", "OPTIONS"):
        answer = api.fetch(method, "/")
        assert answer.status == 405 and set(answer.headers["Allow"].split(", ")) == {
            "GET",
            "HEAD",
            "POST",
        }
    # TGI's compatible route is still there.
    assert api.post("/", {"inputs": "wagner"}).json()[0]["generated_text"] == "W AE1 G N ER0"


def test_only_the_files_of_the_page_are_below_it(api):
    for name in (
        "",
        "none.js",
        "index.html",
        "../page.js",
        "%2e%2e/page.js",
        "page.js/",
        "PAGE.js",
    ):
        answer = api.fetch("GET", f"/page/{name}")
        assert answer.status == 404 and answer.json()["error"]["message"], name
    assert api.fetch("GET", "/page/page.js?v=1").status == 200


def test_without_the_flag_there_is_no_page():
    with HttpServer(G2P) as server:
        assert server.fetch("GET", "/").status == 405
        for name in assets():
            assert server.fetch("GET", f"/page/{name}").status == 404
        assert server.post("/", {"inputs": "wagner"}).status == 200


def test_the_page_needs_no_key_but_everything_else_does(key_file):
    with HttpServer(G2P, http_api_page=True, api_key_file=key_file) as server:
        assert server.fetch("GET", "/").status == 200
        assert server.fetch("HEAD", "/page/page.js").status == 200
        # A client without a key learns nothing about the routes.
        missing = server.fetch("GET", "/page/none.js")
        assert missing.status == 404 and b"/v1/" not in missing.body
        for method, path in (
            ("GET", "/page/"),
            ("GET", "/page"),
            ("GET", "/v1/models"),
            ("GET", "/page/../v1/models"),
            ("POST", "/"),
            ("POST", "/page/page.js"),
            ("GET", "//"),
        ):
            answer = server.fetch(method, path)
            if path == "/page/../v1/models":
                assert answer.status == 404 and b"g2p" not in answer.body
            else:
                assert answer.status == 401, (method, path)
        key = {"Authorization": f"Bearer {KEY}"}
        assert server.post("/", {"inputs": "wagner"}, **key).status == 200


def test_the_flag_needs_the_http_api():
    command = [BINARY, "serve", "--model", str(G2P), "--http-api-page", "--http-listen", ""]
    done = subprocess.run(
        [*command, "--listen", f"127.0.0.1:{free_port()}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2 and "--http-api-page: needs --http-api-listen" in done.stderr


def test_the_sources_obey_their_policy():
    """The page has no inline script or style, parses no text as HTML, and names no other host."""
    html = (FILES / "index.html").read_text(encoding="utf-8")
    assert re.findall(r"<script(?![^>]* src=)", html) == []
    assert re.findall(r"<style|\sstyle=|\son\w+=", html) == []
    for file in FILES.iterdir():
        text = file.read_text(encoding="utf-8")
        assert re.findall(r"https?://|@import|url\(", text) == [], file.name
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert word not in text, file.name
        for word in ("localStorage", "sessionStorage", "document.cookie"):
            assert word not in text, file.name
    # Every file of the page is requested, and every imported module exists.
    used = set(re.findall(r'(?:src|href)="page/([^"]+)"', html))
    for name in assets():
        if name.endswith(".js"):
            text = (FILES / name).read_text(encoding="utf-8")
            used |= set(re.findall(r'from "\./([^"]+)"', text))
    assert used == set(assets())
