"""Runs `quintet` and other programs for the benchmark scripts. Needs only the standard library."""

import json
import subprocess


def flags_of(values: dict) -> list[str]:
    """Returns command-line flags: max_running=8 becomes --max-running 8. True stands for a flag
    without a value; a list becomes its elements, separated by commas; None is left out."""
    words = []
    for name, value in values.items():
        if value is None:
            continue
        words.append("--" + name.replace("_", "-"))
        if value is not True:
            values = value if isinstance(value, (list, tuple)) else [value]
            words.append(",".join(map(str, values)))
    return words


def run(command: list, timeout: float | None = None, text: str | None = None) -> str:
    """Returns what `command` writes to standard output; `text` is its input. Raises RuntimeError
    with the command, its exit code and the end of its messages if it fails."""
    words = list(map(str, command))
    done = subprocess.run(words, input=text, capture_output=True, text=True, timeout=timeout)
    if done.returncode != 0:
        raise RuntimeError(
            f"{' '.join(words)}: exit {done.returncode}: {done.stderr.strip()[-600:]}"
        )
    return done.stdout


def bench(quintet: str, timeout: float | None = None, **flags) -> dict:
    """Returns the report of `quintet bench`."""
    return json.loads(run([quintet, "bench", *flags_of(dict(flags, output="json"))], timeout))


def conditions_of(report: dict, *names: str) -> dict:
    """Returns the conditions of a report of `quintet bench` with these names."""
    return {name: report["conditions"][name] for name in names}
