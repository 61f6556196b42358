"""The `quintet` command: runs the program that the package ships, in place of this process."""

from __future__ import annotations

import os
import pathlib
import sys

from quintet.cuda import use_cublas_wheel


def main() -> None:
    program = pathlib.Path(__file__).with_name("bin") / "quintet"
    use_cublas_wheel()
    try:
        os.execv(program, [sys.argv[0], *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"quintet: {program}: {error.strerror}: install quintet-engine again")


if __name__ == "__main__":
    main()
