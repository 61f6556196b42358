#!/usr/bin/env python3
"""Row 37 of the acceptance table (README.md): `quintet convert` is killed by SIGKILL at 100 random
points, half of them while it writes a new directory and half while it replaces an existing one.
Afterwards the directory must contain the complete new model, or the state before the run: no
directory or the complete old model. A complete model loads and gives its own results.
"""

import pathlib
import random
import shutil
import subprocess
import tempfile
import time

from serving import QUINTET, Verdict, arguments, spawn

WORDS = "phoneme\nquintet\nscheduler\n"


def convert(model, out, *flags) -> list[str]:
    return [QUINTET, "convert", "--model", str(model), "--out", str(out), *flags]


def answers_of(directory) -> str:
    """Returns the scores and token ids that the model in `directory` gives for a few words; "" if
    it does not load."""
    command = [
        QUINTET,
        "generate",
        "--model",
        str(directory),
        "--threads",
        "1",
        "--num-beams",
        "2",
        "--return-scores",
        "--output",
        "json",
    ]
    return subprocess.run(
        command,
        input=WORDS,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,
    ).stdout


def killed(command, seconds: float) -> bool:
    """Runs the command and kills it after `seconds`. Returns whether it had to be killed."""
    process = spawn(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        process.wait(seconds)
        return False
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return True


def main() -> int:
    args = arguments(__doc__, kills=100)
    verdict = Verdict("convert_killed", 37, f"convert killed {args.kills} times")
    chance = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        old, target, fresh = (pathlib.Path(folder) / name for name in ("old", "target", "fresh"))
        begin = time.monotonic()
        subprocess.run(
            convert(args.model, old),
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        whole_s = time.monotonic() - begin
        new = pathlib.Path(folder) / "new"
        subprocess.run(
            convert(args.model, new, "--dtype", "int8"),
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        expected = {"old": answers_of(old), "new": answers_of(new)}
        outcomes = {
            "old": 0,
            "new": 0,
            "broken": 0,
            "absent": 0,
            "fresh whole": 0,
            "fresh partial": 0,
        }
        kills = attempts = 0
        while kills < args.kills and attempts < 20 * args.kills:
            attempts += 1
            seconds = chance.uniform(0, 1.1 * whole_s)
            if attempts % 2:
                shutil.rmtree(fresh, ignore_errors=True)
                if killed(convert(args.model, fresh, "--dtype", "int8"), seconds):
                    kills += 1
                    found = (
                        "absent"
                        if not fresh.exists()
                        else "fresh whole"
                        if answers_of(fresh) == expected["new"]
                        else "fresh partial"
                    )
                    outcomes[found] += 1
            else:
                shutil.rmtree(target, ignore_errors=True)
                shutil.copytree(old, target)
                if killed(convert(args.model, target, "--dtype", "int8", "--force"), seconds):
                    kills += 1
                    found = answers_of(target)
                    outcomes[
                        next((name for name, text in expected.items() if text == found), "broken")
                    ] += 1
        leftovers = [
            path.name
            for path in pathlib.Path(folder).iterdir()
            if path.name not in ("old", "new", "target", "fresh")
        ]
        again = subprocess.run(
            convert(args.model, target, "--dtype", "int8", "--force"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        ).returncode
    verdict.figure("seconds of an undisturbed run", whole_s)
    verdict.figure("outcomes", outcomes)
    verdict.figure("temporary directories left next to the targets", len(leftovers))
    verdict.claim(
        "the two models differ in their answers",
        len(set(expected.values())),
        len(set(expected.values())) == 2 and "" not in expected.values(),
    )
    verdict.claim("kills that met a running convert", kills, kills == args.kills)
    verdict.claim(
        "replaced directories that do not load or mix both models",
        outcomes["broken"],
        outcomes["broken"] == 0,
    )
    verdict.claim(
        "new directories in part", outcomes["fresh partial"], outcomes["fresh partial"] == 0
    )
    verdict.claim("exit code of a convert after them", again, again == 0)
    return verdict.finish(args.out)


if __name__ == "__main__":
    raise SystemExit(main())
