"""Shared code of the deploy tests: parsed files of deploy/, and flag checks by the real binary."""

import contextlib
import os
import pathlib
import re
import socket
import subprocess
import tomllib

import yaml

from server_process import BINARY, eventually, free_port

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"


def text(path: str) -> str:
    return (DEPLOY / path).read_text(encoding="utf-8")


def documents(path: str) -> list[dict]:
    return list(yaml.safe_load_all(text(path)))


def merged(base, patch):
    """Applies a strategic merge patch of Kubernetes.

    Lists of objects with names are merged by name; all other lists are replaced.
    """
    if isinstance(base, dict) and isinstance(patch, dict):
        both = {key: merged(base[key], patch[key]) for key in base.keys() & patch.keys()}
        return {**base, **patch, **both}
    lists = isinstance(base, list) and isinstance(patch, list)
    if lists and all("name" in item for item in base + patch):
        by_name = {item["name"]: item for item in base}
        for item in patch:
            by_name[item["name"]] = merged(by_name.get(item["name"], {}), item)
        return list(by_name.values())
    return patch


def rendered(folder: str) -> list[dict]:
    """Returns the objects that `kubectl kustomize` renders for a folder.

    Supports only the fields that our kustomization.yaml files use.
    """
    (kustomization,) = documents(f"{folder}/kustomization.yaml")
    known = {"apiVersion", "kind", "resources", "images", "patches"}
    assert kustomization.keys() <= known, kustomization.keys() - known
    made = []
    for resource in kustomization["resources"]:
        path = f"{folder}/{resource}"
        made += rendered(path) if (DEPLOY / path).is_dir() else documents(path)
    for patch in kustomization.get("patches", []):
        for change in documents(f"{folder}/{patch['path']}"):
            (target,) = [
                document
                for document in made
                if document["kind"] == change["kind"]
                and document["metadata"]["name"] == change["metadata"]["name"]
            ]
            made[made.index(target)] = merged(target, change)
    for image in kustomization.get("images", []):
        for document in made:
            if document["kind"] == "Deployment":
                for container in document["spec"]["template"]["spec"]["containers"]:
                    if container["image"] == image["name"]:
                        container["image"] = f"{image['name']}:{image['newTag']}"
    return made


def run(*command, **arguments) -> str:
    """Runs a tool and returns its output. Fails the test if the tool fails."""
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **arguments,
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def accepts(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
        return True
    return False


@contextlib.contextmanager
def listening(count: int, command_of, log: pathlib.Path):
    """Runs the program `command_of(*ports)` on free ports and yields the ports.

    Retries if a port was taken.
    """
    for _ in range(5):
        ports = [free_port() for _ in range(count)]
        with open(log, "wb") as output:
            process = subprocess.Popen(
                [str(word) for word in command_of(*ports)], stdout=output, stderr=output
            )
        eventually(lambda: process.poll() is not None or all(accepts(port) for port in ports), 60)
        if process.poll() is None:
            break
    try:
        assert process.poll() is None and all(accepts(port) for port in ports), log.read_text()
        yield ports
    finally:
        process.terminate()
        process.wait(30)


def settled_flags(arguments: list[str], variables: dict[str, str] | None = None) -> dict:
    """Returns the effective flags of `quintet` for a command line. Fails on an unknown flag."""
    assert arguments[0] == "serve", arguments
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("QUINTET_")
    }
    done = subprocess.run(
        [BINARY, *arguments, "--print-config"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**environment, **(variables or {})},
    )
    assert done.returncode == 0, done.stderr
    return tomllib.loads(re.sub(r"(?m)^# (?=[a-z-]+ = )", "", done.stdout))[
        "serve"
    ]  # --print-config comments defaults out
