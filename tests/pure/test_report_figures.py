"""Rows and sentences of reports that depend on what is known: there where it is, and left out or named where it is not."""

import io
import re
from dataclasses import replace
from itertools import pairwise

import pytest
from rich.console import Console
from run_logs import small_run

from onecard import find_gpu, load, plan
from onecard.cli import main
from onecard.messages import T
from onecard.planner.memory.explain import explain_memory
from onecard.planner.result import Range
from onecard.report import compare_tables, language, memory_view, svg
from onecard.report.document import Level, LineChart, Quantity, Series
from onecard.report.language import language as language_of
from onecard.report.plan_summary import _short_span, device_name, summary
from onecard.report.terminal_charts import line_chart
from onecard.runs.figures import figures
from onecard.runs.foreign.text_log import read_text
from onecard.units import YEAR, show_duration


def markdown(capsys, *words):
    assert main([*words, "--markdown"]) == 0
    return capsys.readouterr().out


def test_epochs_are_counted_where_the_data_is_known(capsys):
    text = markdown(capsys, "plan", "fineweb-41M-12gb", "--gpu", "RTX 4070", "--full")
    assert re.search(r"\| Epochs \| \*\*1\.05\*\* \| over the 9\.95 B tokens", text)
    text = markdown(capsys, "plan", "gpt2", "--dataset=mine", "--gpu", "RTX 4070", "--full")
    assert re.search(r"\| Epochs \| \*\*unknown\*\*", text)


def test_cards_side_by_side_have_one_loss(capsys):
    cards = ("--gpu", "RTX 4070", "--gpu", "RTX 4090")
    known = markdown(capsys, "plan", "fineweb-41M-12gb", *cards)
    assert re.search(r"The loss does not depend on the card: 3\.\d\d\.", known)
    remarks = known[known.index("## Remarks") : known.index("## In short")]
    assert remarks.count("heads are 32 wide") == 1  # of both cards, named once
    unknown = markdown(capsys, "plan", "train_shakespeare_char", *cards)
    assert "The loss does not depend" not in unknown


def test_a_remark_about_all_cards_names_none_of_them(capsys):
    words = ["plan", "gpt2", "--gpu", "4070", "--gpu", "4090", "--learning_rate=1", "--lang", "en"]
    remarks = markdown(capsys, *words).split("## Remarks")[1].replace("\\_", "_")
    assert remarks.count("learning_rate = 1 is far from") == 1
    assert "RTX 4070: learning_rate" not in remarks
    assert "RTX 4070: vocab_size" in remarks  # whose gain is another on each card
    assert "RTX 4090: vocab_size" in remarks


def test_the_what_if_nearest_to_the_plan_is_marked(capsys):
    text = markdown(capsys, "plan", "fineweb-41M-12gb", "--gpu", "RTX 4070", "--full")
    table = text[text.index("| What if a step takes") :].split("\n\n")[0].splitlines()[2:]
    seconds = [float(re.search(r"([\d.]+) s", row)[1]) for row in table]
    marked = [second for second, row in zip(seconds, table, strict=True) if "**" in row]
    planned = plan(load("fineweb-41M-12gb"), "RTX 4070").time.step_seconds.mid
    assert marked == [min(seconds, key=lambda second: abs(second - planned))]
    assert marked[0] not in (seconds[0], seconds[-1])
    total = planned_run().time.total_seconds.mid
    for second, row in zip(seconds, table, strict=True):
        hours, dollars = (float(cell.strip(" *$")) for cell in row.split("|")[3:5])
        assert hours == pytest.approx(second * 20_000 / 3600, rel=0.02)
        share = dollars / planned_run().energy.cost.mid
        assert share == pytest.approx(hours * 3600 / total, rel=0.03)


def planned_run():
    return plan(load("fineweb-41M-12gb"), "RTX 4070")


@pytest.mark.parametrize(
    ("mid", "unit_seconds", "unit"),
    [(90, 1, "s"), (100, 60, "min"), (6000, 3600, "h"), (2 * 86400, 86400, "d")],
)
def test_a_headline_has_one_unit(mid, unit_seconds, unit):
    low, high = _short_span(Range(mid / 2, mid, mid * 2))
    assert (low.value, high.value) == (mid / 2 / unit_seconds, mid * 2 / unit_seconds)
    assert str(low.unit) == unit


def test_the_room_for_tensors_is_what_the_card_has_left():
    memory = planned_run().memory
    taken = memory.desktop_bytes + memory.parts["context"] + memory.parts["slack"]
    assert memory_view._room(planned_run()) == memory.card_bytes - taken
    explained = explain_memory(planned_run().config, find_gpu("RTX 4070"), "bfloat16")
    chart = memory_view._course(planned_run(), explained)
    assert [level.y for level in chart.levels] == [(memory.card_bytes - taken) / 2**30]
    assert max(y for each in chart.series for _, y in each.points) == explained.peak.bytes / 2**30


def test_the_room_for_tensors_is_named_beside_the_card():
    """10.6 GiB in the chart and 11.72 GiB above it are two things."""
    planned = planned_run()
    explained = explain_memory(planned.config, planned.device, "bfloat16")
    page = memory_view.memory_document(planned, explained)
    card = page.headline[-1]
    assert str(card.label) == "The card"
    assert str(card.note) == f"{memory_view._room(planned) / 2**30:.2f} GiB of it for tensors"
    (level,) = memory_view._course(planned, explained).levels
    assert str(level.label) == "the card's room for tensors"


def test_a_run_that_does_not_fit_would_take_its_time():
    assert any(str(text).startswith("It takes about") for text in summary(planned_run()))
    too_large = plan(load("gpt2-xl"), find_gpu("RTX 4070"))
    assert any(str(text).startswith("It would take about") for text in summary(too_large))
    assert any(str(text).startswith("Started now, it would end") for text in summary(too_large))


def test_the_axis_of_a_chart_is_as_wide_as_its_frame():
    chart = LineChart(T("loss"), (Series(T("a"), ((0.0, 5.0), (100.0, 3.0))),), T("steps"), T("y"))
    with io.StringIO() as out:
        Console(file=out, width=60).print(line_chart(chart, 60, str, False, True))
        lines = out.getvalue().rstrip().splitlines()
    frame = next(i for i, line in enumerate(lines) if "+---" in line)
    assert abs(len(lines[frame + 1].rstrip()) - len(lines[frame].rstrip())) <= 1
    # and the curve falls through every row of it
    marks = [(line.find("#"), line.rfind("#")) for line in lines[1:frame]]
    assert all(0 < left <= right for left, right in marks)
    assert all(above[1] + 1 == below[0] for above, below in pairwise(marks))


@pytest.mark.parametrize("lang", ["es", "hi"])
def test_large_tensors_have_names_in_every_language(lang):
    explained = explain_memory(load("gpt2"), find_gpu("RTX 4070"), "bfloat16")
    words = language(lang)
    names = {t.name: words.text(memory_view.tensor_name(t.name)) for t in explained.largest}
    assert {name for name, shown in names.items() if name == shown} <= {"logits"}


def test_a_level_is_drawn_at_its_height():
    series = (Series(T("a"), ((0.0, 5.0), (1.0, 5.0))), Series(T("b"), ((0.0, 3.0), (1.0, 3.0))))
    chart = LineChart(T("loss"), series, T("x"), T("y"), levels=(Level(T("goal"), 4.0),))
    with io.StringIO() as out:
        Console(file=out, width=60).print(line_chart(chart, 60, str, False, True, rows=5))
        lines = out.getvalue().splitlines()
    frame = next(i for i, line in enumerate(lines) if "+---" in line)
    marked = ["|" in line and line.split("|")[1].strip() != "" for line in lines[1:frame]]
    assert marked == [True, False, True, False, True]


def test_a_legend_is_not_broken_within_a_name():
    series = tuple(Series(f"a long name {n}", ((0.0, 1.0), (1.0, 2.0))) for n in range(5))
    chart = LineChart(T("title"), series, T("x"), T("y"))
    out = io.StringIO()
    Console(file=out, width=60).print(line_chart(chart, 60, str, color=False, ascii_only=True))
    assert all(f"* a long name {n}" in out.getvalue() for n in range(5))
    legend = [line for line in out.getvalue().splitlines() if "a long name" in line]
    assert len(legend) > 1
    assert len({line.index("*") for line in legend}) == 1  # below each other
    drawn = svg.line_chart(chart, language("en"))
    places = re.findall(r'<text x="([\d.]+)" y="([\d.]+)"[^>]*>(a long name \d)<', drawn)
    assert len(set(places)) == 5
    assert all(float(x) + svg.LETTER * len(name) <= svg.WIDTH for x, _, name in places)
    tall = re.search(r'viewBox="0 0 500 (\d+)"', drawn)
    assert tall is not None
    assert all(float(y) <= float(tall[1]) for _, y, _ in places)


def test_no_saver_no_sentence_about_the_best_one():
    explained = explain_memory(load("gpt2"), find_gpu("RTX 4070"), "bfloat16")
    assert "takes away the most" in " ".join(
        map(str, memory_view._summary(planned_run(), explained))
    )
    none = replace(explained, savings=())
    assert "takes away the most" not in " ".join(
        map(str, memory_view._summary(planned_run(), none))
    )


def test_the_cores_of_a_processor_are_named_where_they_are_known():
    here = replace(find_gpu("cpu"), name="CPU, 2 cores", units=2)
    assert language("es").text(device_name(here)) == "CPU, 2 núcleos"
    assert language("es").text(device_name(find_gpu("cpu"))) == "cpu"  # of a log that names no more
    assert language("es").text(device_name(find_gpu("RTX 4070"))) == "RTX 4070"


def test_only_what_was_inferred_is_marked_so():
    log = read_text(io.BytesIO(small_run().encode()), "run")[-1]
    f = replace(figures(log, find_gpu("RTX 4070")), gpus=4, kwh=None)
    for inferred, marked in (((), False), (("gpus", "kwh"), True)):
        shown = replace(f, inferred=frozenset(inferred))
        assert isinstance(compare_tables._figure(shown, "gpus", "int"), T) == marked  # "≈ 4"
        assert compare_tables._figure(shown, "kwh", ".2f") == compare_tables.NONE


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--init_from=gpt2"], "the law is for runs from scratch, not from gpt2"),
        (["--dataset=mine"], "no public runs on data like this"),
    ],
)
def test_why_no_loss_is_predicted(capsys, words, reason):
    text = markdown(capsys, "plan", "gpt2", *words, "--gpu", "RTX 4070", "--full")
    assert f"No loss is predicted: {reason}." in text


def test_each_convention_of_flops_is_explained_by_its_formula_per_token(capsys):
    text = markdown(capsys, "plan", "gpt2", "--gpu", "RTX 4070", "--full", "--explain")
    for formula in ("block\\_size, N as nanoGPT prints it", "6·N, N as", "6 × parameters in"):
        assert formula in text


def test_what_fits_already_is_not_made_to_fit(capsys):
    fits = markdown(capsys, "recommend", "--fit", "gpt2", "--gpu", "RTX 3060 12GB")
    assert "fastest that fits" in fits
    assert "made to fit" not in fits
    tight = markdown(capsys, "recommend", "--fit", "gpt2-medium", "--gpu", "RTX 3050 8GB")
    assert "made to fit" in tight
    assert "fastest that fits" not in tight


def test_thousands_of_years_are_set_apart():
    assert show_duration(2509.1 * YEAR) == "2,509.1 y"
    assert language_of("es").value(Quantity(2509.1 * YEAR, "duration")) == "2.509,1\xa0años"


def test_a_plan_for_a_processor_does_not_speak_of_a_card(capsys):
    page = markdown(capsys, "plan", "gpt2", "--gpu", "cpu", "--lang", "en")
    words = page.replace("whatever the card", "")  # nanoGPT's MFU, which is the same for all
    assert "MFU of this machine" in words
    assert "against the machine" in words
    assert not re.search(r"\bcard\b", words)


def test_a_learning_rate_far_from_the_usual_makes_the_loss_a_rough_estimate(capsys):
    words = ("plan", "gpt2", "--gpu", "4070", "--lang", "en")
    far = markdown(capsys, *words, "--learning_rate=0.01")
    assert "usual for adamw at this size; a loss expected there is a rough estimate" in far
    assert "The expected loss is" in far


def test_a_learning_rate_that_no_run_survived_gets_no_loss(capsys):
    words = ("plan", "gpt2", "--gpu", "4070", "--lang", "en")
    for keys in (("--learning_rate=1",), ("--recipe=modern", "--learning_rate=6e-4")):
        page = markdown(capsys, *words, *keys)
        assert "so no loss is predicted" in page
        assert "xpected loss" not in page
