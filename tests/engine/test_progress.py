"""The live bars, as they stand on a terminal."""

import io

from rich.console import Console

from crossbert.display import LiveDisplay
from frozenprobe.engine.progress import LiveReporter


def shown(bars):
    console = Console(file=io.StringIO(), width=120)
    console.print(bars)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_time_says_whether_it_is_past_or_to_come():
    reporter = LiveReporter(Console(file=io.StringIO(), width=120))
    clock = [0.0]
    reporter._bars.get_time = lambda: clock[0]
    with reporter:
        reporter.plan(2, 0)
        reporter.start("cola")
        clock[0] = 5.0
        assert [line[-15:].strip() for line in shown(reporter._bars)] == ["0:00:05 elapsed"] * 2
        for now in (6.0, 7.0, 8.0):
            clock[0] = now
            reporter.advance("forward", int(100 * (now - 5)), 1000)
        assert shown(reporter._bars)[1].endswith(" 0:00:07 left")


def test_training_has_the_same_time():
    display = LiveDisplay("step", Console(file=io.StringIO(), width=120))
    clock = [0.0]
    display._bars.get_time = lambda: clock[0]
    with display:
        assert shown(display._bars)[0].endswith(" 0:00:00 elapsed")
        for now in (1.0, 2.0, 3.0):
            clock[0] = now
            display.advance(int(now), 10, "loss 3")
        assert shown(display._bars)[0].endswith(" 0:00:07 left")
        display.advance(10, 10, "loss 2")
        assert shown(display._bars)[0].endswith(" 0:00:03 elapsed")
