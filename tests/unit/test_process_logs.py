"""Following a log and reading its end."""

from pathlib import Path

import pytest

from vime_adapters.subprocess import logs
from vime_adapters.subprocess.executor import log_name
from vime_core.lifecycle.events import Phase
from vime_core.units import ProcessId

PHASES = {"loading": Phase.LOADING, "compiling": Phase.COMPILING, "listening": Phase.LISTENING, "up": Phase.SPAWNED}


def follow(path: Path, start: int = 0) -> logs.PhaseFollower:
    """Return a follower that knows phases by their first word."""
    return logs.PhaseFollower(path, start, lambda line: PHASES.get(line.partition(" ")[0]))


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"plain", "plain"),
        (b"\x1b[1;36mcolour\x1b[0m \x1b[Kand more", "colour and more"),
        (b"\x1b]0;a title\x07after", "after"),
        (b"not \xff\xfe utf-8", "not  utf-8"),
        ("é ☃".encode(), "é ☃"),
        (b"spaces  \r", "spaces"),
    ],
)
def test_lines_are_cleaned(raw, text):
    """Terminal controls and undecodable bytes are left out of a line, all else stays."""
    assert logs.clean(raw) == text


@pytest.mark.parametrize(
    ("raw", "lines", "expected"),
    [
        (b"", 3, ()),
        (b"\n\n", 3, ()),
        (b"one", 3, ("one",)),
        (b"one\ntwo\nthree\n", 2, ("two", "three")),
        (b"one\n\ntwo\n", 3, ("one", "", "two")),
        (b"10%\r50%\r100%\ndone\r\n", 2, ("100%", "done")),
        (b"one\n", 0, ()),
    ],
)
def test_tail(tmp_path, raw, lines, expected):
    """The tail holds the last lines, a last one without newline included, and the last state of a progress bar."""
    log = tmp_path / "log"
    log.write_bytes(raw)
    assert logs.tail(log, 0, lines) == expected


def test_dull_lines_are_left_out_of_the_tail(tmp_path):
    """Lines that tell nothing are neither shown nor counted."""
    log = tmp_path / "log"
    log.write_bytes(b"cause\n" + b"noise\n" * 50 + b"end\n" + b"noise\n" * 50)
    assert logs.tail(log, 0, 3, lambda line: line == "noise") == ("cause", "end")
    assert logs.tail(log, 0, 3, lambda line: True) == ()


def test_tail_starts_at_its_run(tmp_path):
    """Only what was written from a given byte on belongs to the tail, unless the log was cut since."""
    log = tmp_path / "log"
    log.write_bytes(b"old\nnew\n")
    assert logs.tail(log, 4, 9) == ("new",)
    assert logs.tail(log, 8, 9) == ()
    log.write_bytes(b"cut\n")
    assert logs.tail(log, 8, 9) == ("cut",)


def test_tail_is_bounded(tmp_path):
    """Of a huge log and of a huge line only a bounded end and a bounded beginning are read."""
    log = tmp_path / "log"
    log.write_bytes(b"x" * (3 * logs.TAIL_BYTES) + b"\nend\n")
    assert [len(line) for line in logs.tail(log, 0, 9)] == [logs.LINE_BYTES, 3]


def test_no_log(tmp_path):
    """A log that is gone has no tail and announces nothing."""
    assert logs.tail(tmp_path / "none", 0, 5) == ()
    assert follow(tmp_path / "none").step() == ([], False)
    assert follow(tmp_path / "none").finish() == []


def test_phases_come_once_and_forward(tmp_path):
    """A phase is told when its line is complete, once, and never after a later one; the first one is not news."""
    log = tmp_path / "log"
    follower = follow(log)
    with log.open("wb", buffering=0) as out:
        out.write(b"up\nloading one\nload")
        assert follower.step()[0] == [Phase.LOADING]
        out.write(b"ing two\n\x1b[32mlisten")
        assert follower.step()[0] == []
        out.write(b"ing\x1b[0m\ncompiling\n")
        assert follower.step()[0] == [Phase.LISTENING]
        assert follower.done
        out.write(b"compiling\n")
        assert follower.step() == ([], False)


def test_phases_start_at_their_run(tmp_path):
    """What an earlier run wrote announces nothing; a log that was cut is read from its beginning."""
    log = tmp_path / "log"
    log.write_bytes(b"listening\nloading\n")
    follower = follow(log, len(b"listening\n"))
    assert follower.step()[0] == [Phase.LOADING]
    log.write_bytes(b"compiling\n")
    assert follower.step()[0] == [Phase.COMPILING]


def test_finish_takes_the_rest(tmp_path):
    """Once the writer is gone a last line counts without its newline."""
    log = tmp_path / "log"
    log.write_bytes(b"loading\ncompiling")
    follower = follow(log)
    assert follower.finish() == [Phase.LOADING, Phase.COMPILING]


def test_a_line_without_end_is_not_kept(tmp_path):
    """A line longer than any honest one is read in pieces, step by step, and what follows it is still seen."""
    log = tmp_path / "log"
    log.write_bytes(b"x" * (2 * logs.STEP_BYTES + 5) + b"\nloading\n")
    follower = follow(log)
    assert follower.step() == ([], True)
    assert follower.step() == ([], True)
    assert follower.step() == ([Phase.LOADING], False)


def test_log_names():
    """Ordinary process ids name their log as they are; odd ones are escaped, so that none leaves the folder."""
    assert log_name(ProcessId("default-0.1")) == "default-0.1.log"
    assert log_name(ProcessId("router-Qwen/Qwen3 é")) == "router-Qwen%2FQwen3 %C3%A9.log"
    assert log_name(ProcessId("..")) == "...log"
    assert "/" not in log_name(ProcessId("../../x"))
