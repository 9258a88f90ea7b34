"""What a person sees: progress and time left, live or in plain lines."""

import io

from rich.console import Console

from crossbert import display as module
from crossbert.display import LiveDisplay, PlainDisplay


def test_plain_lines_come_at_intervals_and_tell_the_time_left(monkeypatch):
    clock, lines = [100.0], []
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    shown = PlainDisplay("step", seconds=10, write=lines.append)
    for step in range(1, 41):
        shown.advance(step, 40, f"loss {step}")
        clock[0] += 2
    assert lines[0] == "step 1/40  loss 1"
    assert lines[1] == "step 6/40  loss 6  0:01:08 left"
    assert lines[-1] == "step 40/40  loss 40"
    assert len(lines) == 9
    shown.advance(7, None, "")
    shown.note("a validation")
    assert lines[-1] == "note: a validation"


def test_the_live_display_shows_the_same():
    out = io.StringIO()
    with LiveDisplay("step", Console(file=out, force_terminal=True, width=120)) as shown:
        shown.advance(25, 100, "loss 3.2100")
        shown.note("step 25: validation_loss 3.3")
    assert "loss 3.2100" in out.getvalue()
    assert "validation_loss 3.3" in out.getvalue()
