"""For the benchmark scripts: parses their command lines, runs `quintet` and other programs, and
writes reports. Needs only the standard library."""

import argparse
import json
import pathlib
import subprocess
import tempfile


def flag_parser(doc: str) -> argparse.ArgumentParser:
    """Returns a parser without flags. `doc`: the docstring of the script, shown by --help."""
    return argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def bench_parser(doc: str, work: str) -> argparse.ArgumentParser:
    """Returns a parser with the flags --quintet, the binary, and --work, a required directory.
    `work`: the help text of --work."""
    parser = flag_parser(doc)
    parser.add_argument("--quintet", default="build/quintet")
    parser.add_argument("--work", required=True, help=work)
    return parser


def add_timeout_and_out(
    parser: argparse.ArgumentParser,
    seconds: float,
    limited: str,
    out: str = "also write the results as JSON to this file",
) -> None:
    """Adds the flags --timeout and --out. `seconds`: the default of --timeout. `limited`: what the
    timeout limits, a word for --help. `out`: the help text of --out."""
    parser.add_argument(
        "--timeout", type=float, default=seconds, help=f"time limit for one {limited}, in seconds"
    )
    parser.add_argument("--out", help=out)


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


def json_report(command: list, timeout: float | None = None) -> dict:
    """Runs `command` with the flag --json FILE and returns the contents of that file."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        run([*command, "--json", file.name], timeout)
        return json.loads(pathlib.Path(file.name).read_text())


def bench(quintet: str, timeout: float | None = None, **flags) -> dict:
    """Returns the report of `quintet bench`."""
    return json.loads(run([quintet, "bench", *flags_of(dict(flags, output="json"))], timeout))


def bench_with(args: argparse.Namespace, model: str, **flags) -> dict:
    """Returns the report of `quintet bench` for a model, with the binary, time limit, device and
    weight type of a script's command line."""
    return bench(
        args.quintet, args.timeout, model=model, device=args.device, dtype=args.dtype, **flags
    )


def limits_for(rows: int, tokens: int, num_beams: int = 1) -> dict:
    """Returns the flags that set the engine's limits to one batch of `rows` inputs of `tokens`
    tokens each."""
    return dict(
        max_running=rows * num_beams, max_input_tokens=tokens, max_batch_tokens=rows * tokens
    )


def conditions_of(report: dict, *names: str) -> dict:
    """Returns the conditions `names` from a report of `quintet bench`."""
    return {name: report["conditions"][name] for name in names}


def write_report(path, document) -> None:
    """Writes `document` as JSON to the file `path`; does nothing if `path` is empty or None."""
    if path:
        pathlib.Path(path).write_text(json.dumps(document, indent=1) + "\n")
