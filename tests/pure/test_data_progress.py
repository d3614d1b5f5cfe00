"""What `onecard data` says of its progress where nobody looks at a terminal."""

import io

from onecard.cli import data_progress
from onecard.cli.data_progress import ProgressBar
from onecard.data.preparation.encode import Event


def test_a_line_now_and_then_has_the_share_the_rate_and_the_time_left(monkeypatch):
    now, out = [0.0], io.StringIO()
    monkeypatch.setattr(data_progress.time, "monotonic", lambda: now[0])
    monkeypatch.setattr("sys.stderr", out)
    with ProgressBar() as bar:
        for seconds, done in ((0, 0), (5, 10e6), (20, 40e6), (25, 50e6)):
            now[0] = seconds
            bar.update(Event("tokenising", done, 100e6, round(done / 4)))
    (line,) = out.getvalue().splitlines()
    assert line == "tokenising: 40%, 2 MB/s, 10.00 M tokens, 30.0 s left"
