"""Comparing a finished run with one in mid-schedule, whose loss has its last fall still to come."""

import io
import re
from dataclasses import replace

from run_logs import small_run

from onecard.facts import find_gpu
from onecard.runs.compare import compare
from onecard.runs.explain import explained
from onecard.runs.figures import figures
from onecard.runs.foreign.text_log import read_text


def scheduled(name, last, seconds, middle=5.5, stop=None, decay=True):
    """A run whose schedule ends at step `last`, stopped at `stop`."""
    text = small_run(jitter=0.0, losses={0: 10.9, 500: middle, 1000: 4.4}, steps=stop or last)
    for key in ("max_iters", "lr_decay_iters"):
        text = text.replace(f"{key} = 20000", f"{key} = {last}")
    text = text.replace("max_iters =", f"decay_lr = {decay}\nmax_iters =", 1)
    text = re.sub(r"time [\d.]+ms", f"time {1000 * seconds:.2f}ms", text)
    return figures(read_text(io.BytesIO(text.encode()), name)[-1], find_gpu("RTX 4070"))


def unequal(*runs):
    found = explained(compare(list(runs))).findings
    return [str(f.note) for f in found if f.note.code == "unequal-schedules"]


def test_a_finished_run_beside_one_in_mid_schedule_is_remarked():
    done, longer = scheduled("done", 500, 4.0), scheduled("longer", 1000, 2.0)
    (words,) = unequal(done, longer)
    assert "after 262.14 M tokens done is at its end" in words
    assert "longer is in mid-schedule" in words
    # at equal hours alone: as many tokens, in half of the time
    (words,) = unequal(scheduled("quick", 1000, 2.0), scheduled("slow", 1000, 4.0))
    assert re.search(r"after (33|34) min .*of training quick is at its end", words)


def test_runs_at_the_same_point_of_their_schedules_need_no_remark():
    assert not unequal(scheduled("a", 1000, 2.0), scheduled("b", 1000, 2.0))
    assert not unequal(scheduled("a", 1000, 2.0, stop=500), scheduled("b", 1000, 2.0, stop=500))
    constant = scheduled("b", 1000, 2.0, decay=False)
    assert not unequal(scheduled("a", 500, 4.0), constant)
    # the one in mid-schedule leads all the same
    assert not unequal(scheduled("a", 500, 4.0), scheduled("b", 1000, 4.0, middle=5.0))


def test_a_run_that_max_hours_ended_is_at_the_end_of_its_schedule():
    ended, longer = scheduled("ended", 1000, 4.0, stop=500), scheduled("longer", 1000, 4.0)
    assert not unequal(ended, longer)
    ended = replace(ended, run=replace(ended.run, state="finished"))
    assert "ended is at its end" in unequal(ended, longer)[0]
