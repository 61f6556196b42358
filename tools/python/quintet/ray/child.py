"""Runs `quintet serve` for a replica: the `quintet` command, which ends with its parent.

A replica that is killed cannot stop its server, so the kernel does it: PR_SET_PDEATHSIG sends
SIGTERM when the thread that started this process ends. The setting outlives exec.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from quintet.command import main

PR_SET_PDEATHSIG = 1


def run() -> None:
    parent = int(sys.argv.pop(1))
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it ended before the call
        sys.exit(1)
    sys.argv[0] = "quintet"
    main()


if __name__ == "__main__":
    run()
