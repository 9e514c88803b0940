"""The test command: asks the server of judge.py; the exit status is 0 when the mutant survives."""

import socket
import sys

with socket.socket(socket.AF_UNIX) as judge:
    judge.connect(sys.argv[1])
    with judge.makefile() as answer:
        sys.exit(answer.read() == "noticed")
