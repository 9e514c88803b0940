"""What is kept of a fleet's events."""

from vime_core.lifecycle.events import (
    CloseAsked,
    EngineProbed,
    Exited,
    LogRead,
    Phase,
    PhaseSeen,
    Replanned,
    RouterProbed,
    SyncBegun,
    Wished,
)
from vime_core.lifecycle.journal import Journal
from vime_core.lifecycle.wishes import Sleep, SleepLevel


def test_a_row_has_what_says_something():
    """A row has its time, its name and the fields that are set; logs and plans are kept elsewhere."""
    journal = Journal()
    assert journal.row(PhaseSeen("m-0.0", Phase.LOADING), 1.5) == {
        "at": 1.5,
        "event": "PhaseSeen",
        "process": "m-0.0",
        "phase": "loading",
    }
    gone = Exited("m-0.0", -9, "lost", tail=("boo",), taken=("http",))
    assert journal.row(gone, 2) == {
        "at": 2,
        "event": "Exited",
        "process": "m-0.0",
        "code": -9,
        "reason": "lost",
        "taken": ["http"],
    }
    assert journal.row(Exited("m-0.0", 0), 3) == {"at": 3, "event": "Exited", "process": "m-0.0", "code": 0}
    assert journal.row(LogRead("m-0.0", ("boo",)), 3) is None
    assert journal.row(SyncBegun("v1", ("m-0",)), 4) == {
        "at": 4,
        "event": "SyncBegun",
        "version": "v1",
        "engines": ["m-0"],
    }
    row = journal.row(Wished(("m-0",), Sleep(SleepLevel.KEEP_WEIGHTS)), 5)
    assert row is not None
    assert str(row["wish"]).startswith("Sleep(")
    assert journal.row(Replanned(None, added=("m-1",)), 6) == {"at": 6, "event": "Replanned", "added": ["m-1"]}


def test_what_is_repeated_is_kept_once():
    """Probes that are answered alike are kept once for each unit, until something else happens to it."""
    journal = Journal()
    bad = EngineProbed("m-0", "refused")
    assert journal.row(bad, 1)
    assert journal.row(bad, 2) is None
    assert journal.row(EngineProbed("m-1", "refused"), 2)
    assert journal.row(RouterProbed("r", "refused"), 2)
    assert journal.row(EngineProbed("m-0", "timeout"), 3)
    assert journal.row(bad, 4)
    assert journal.row(CloseAsked("done"), 5)
    assert journal.row(CloseAsked("done"), 6)
