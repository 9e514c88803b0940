"""Starting one program so that it cannot outlive its supervisor. Standard library only; for callers of one thread."""

from __future__ import annotations

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int) -> None:
    """Call prctl(2) for this process; raises OSError when the kernel refuses."""
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _become(argv: list[str], env: dict[str, str], cwd: str | None, parent: int) -> None:
    """Turn this freshly forked child into the program; returns only by an exception."""
    os.setsid()
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before we asked to follow it
        os._exit(127)
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these, and exec keeps what is ignored
        signal.signal(ignored, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    if cwd is not None:
        os.chdir(cwd)
    os.execve(argv[0], argv, env)  # noqa: S606 - no shell is wanted; argv is a list


def start(argv: list[str], env: dict[str, str], cwd: str | None) -> int:
    """Start a program in a session of its own and return its pid; both its outputs go to our standard error.

    argv[0] is a path. The kernel kills the program with SIGKILL when the calling process dies. Raises OSError, saying
    why, when it cannot be started; the failed child is then left for `waitpid`. Forking by hand is safe because the
    caller has one thread.
    """
    parent = os.getpid()
    reader, writer = os.pipe()  # closed by a successful exec, so that silence means success
    pid = os.fork()
    if pid == 0:
        try:
            _become(argv, env, cwd, parent)
        except BaseException as error:
            os.write(writer, str(error).encode(errors="replace")[:2000] or b"unknown error")
        finally:
            os._exit(127)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        fault = pipe.read()
    if fault:
        raise OSError(fault.decode(errors="replace"))
    return pid
