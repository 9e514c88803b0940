"""What carries weights without CUDA: shared memory, and a group over gloo."""

import os
import socket
import subprocess
import sys
import threading

import pytest
import torch

from vime_adapters.carriers.gloo import Group
from vime_adapters.carriers.segments import FOLDER, Segment, read


def test_tensors_come_out_as_they_went_in():
    """Of any kind, in any order, and as copies: the segment is gone before they are looked at."""
    tensors = [torch.randn(3, 5), torch.randn(7).to(torch.bfloat16), torch.arange(4), torch.tensor(2.5), torch.zeros(0)]
    with Segment(tensors) as segment:
        asked = [(h, t.dtype, t.shape) for h, t in zip(segment.handles, tensors, strict=True)]
        found = list(read(reversed(asked)))
        assert (FOLDER / segment.handles[0][0]).exists()
    assert not (FOLDER / segment.handles[0][0]).exists()
    assert all(torch.equal(one, other) for one, other in zip(reversed(found), tensors, strict=True))


def test_another_process_reads_them():
    """By name and offset alone."""
    with Segment([torch.tensor([1.0, 2.0, 3.0])]) as segment:
        script = (
            "import sys, torch\nfrom vime_adapters.carriers.segments import read\n"
            "print(*next(read([((sys.argv[1], 0), torch.float32, (3,))])).tolist())"
        )
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", script, segment.handles[0][0]],
            capture_output=True, text=True, check=True, timeout=120,
        )  # fmt: skip
    assert done.stdout.split() == ["1.0", "2.0", "3.0"]


def test_handles_that_lead_nowhere():
    """A name from outside opens nothing else, and a segment that is gone is told."""
    with pytest.raises(ValueError, match="no segment of weights"):
        next(read([(("../../etc/passwd", 0), torch.uint8, (1,))]))
    with Segment([torch.zeros(1)]) as segment:
        pass
    with pytest.raises(FileNotFoundError):
        next(read([(segment.handles[0], torch.float32, (1,))]))


def test_no_room_is_told_at_once(monkeypatch):
    """Not by SIGBUS when the memory is written to; and nothing is left."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        Segment([torch.zeros(8)])
    assert not [name for name in os.listdir(FOLDER) if name.startswith(f"vime-weights-{os.getpid()}-")]


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def test_a_group_sends_from_rank_0():
    """To all others, beside whatever groups they are in."""
    port, got = free_port(), {}

    def receive(rank: int) -> None:
        group = Group("127.0.0.1", port, rank, 3, "127.0.0.1", 60.0)
        tensor = torch.empty(4)
        group.broadcast(tensor)
        got[rank] = tensor.tolist()

    others = [threading.Thread(target=receive, args=(rank,)) for rank in (1, 2)]
    for other in others:
        other.start()
    Group("127.0.0.1", port, 0, 3, "127.0.0.1", 60.0).broadcast(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    for other in others:
        other.join(60)
    assert got == {1: [1.0, 2.0, 3.0, 4.0], 2: [1.0, 2.0, 3.0, 4.0]}


def test_a_group_whose_others_do_not_come():
    """It is told within the time limit."""
    with pytest.raises(RuntimeError):
        Group("127.0.0.1", free_port(), 0, 2, "127.0.0.1", 1.0)
