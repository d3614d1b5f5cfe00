"""What does not agree is reported and not used: configs that the log contradicts, cards that cannot be, MFUs that sag."""

import dataclasses
import io
import json
import re

import pytest
from run_logs import nanogpt_log, small_run, wide_run
from test_runs_folder import CONFIG, PEAK, make

from onecard.cli import main
from onecard.facts import find_gpu
from onecard.report import show
from onecard.report.compare_tables import won
from onecard.report.compare_view import compare_document, explain_document
from onecard.runs.compare import compare
from onecard.runs.explain import explain, explained
from onecard.runs.figures import figures
from onecard.runs.folder import read_folder
from onecard.runs.foreign.text_log import read_text
from onecard.runs.log import LogWriter
from onecard.runs.read import read_runs
from onecard.runs.resolve import resolve

CARD = find_gpu("RTX 4070")
AHEAD = ("plan", "projected_loss", "seconds_left")


def of(text, gpu=CARD):
    return figures(read_text(io.BytesIO(text.encode()), "run")[0], gpu)


def codes(f):
    return {finding.note.code for finding in explain(f)}


def test_every_stage_is_frozen(tmp_path):
    run = read_text(io.BytesIO(small_run().encode()), "run")[0]
    for value in (run, run.curve, run.times, resolve(run, CARD), figures(run, CARD)):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, dataclasses.fields(value)[0].name, None)


@pytest.mark.parametrize("processes", [1, 4])
def test_the_logged_peak_is_of_all_cards_together(tmp_path, processes):
    """The trainer divides by peak x processes and logs that product."""
    record = make(tmp_path / "out")
    start, *rest = record.log_path.read_text().splitlines()
    started = json.loads(start) | {"processes": processes, "peak_flops": PEAK * processes}
    faster = [
        line.replace('"step_seconds": 3.9', f'"step_seconds": {3.9 / processes}') for line in rest
    ]
    record.log_path.write_text("\n".join([json.dumps(started), *faster]) + "\n")
    f = figures(read_folder(record.path))
    assert f.gpus == processes
    assert f.mfu_card == pytest.approx(0.69, abs=0.005)
    named = figures(read_folder(record.path), CARD)  # the table's peak is of one card
    assert named.mfu_card == pytest.approx(0.69, abs=0.005)


def test_a_config_that_the_log_contradicts_is_not_planned_from(tmp_path, capsys):
    log = tmp_path / "a.log"
    log.write_text(small_run())
    wrong = {"n_embd": 768, "batch_size": 16, "gradient_accumulation_steps": 32}
    (run,) = read_runs(str(log), flags=wrong)
    f = figures(run, CARD)
    assert [problem.code for problem in f.problems] == ["params-disagree"]
    assert f.config is None
    assert all(getattr(f, name) is None for name in AHEAD)
    assert not f.predicted
    assert not codes(f) & {"as-planned", "slower-than-planned", "loss-normal", "loss-high"}
    assert f.params_nanogpt == 40.56e6  # what the log printed
    assert f.mfu_card == pytest.approx(0.69, abs=0.02)  # by the printed MFU
    assert main(["explain", str(log), "--gpu", "4070", "--n_embd=768", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["run"]["predicted"] == {}
    assert shown["run"]["projected"] == {"loss": None, "seconds_left": None}
    text = next(each for each in shown["findings"] if each["rule"] == "params-disagree")["text"]
    assert text.startswith("the config makes 123.59 M parameters, but the log printed 40.56 M")


def test_what_a_log_contradicts_is_in_the_short_comparison(tmp_path, capsys):
    for name, text in (("small", small_run()), ("wide", wide_run())):
        (tmp_path / f"{name}.log").write_text(text)
    logs = [str(tmp_path / "small.log"), str(tmp_path / "wide.log")]
    assert main(["compare", *logs, "--config", "fineweb-41M-12gb", "--lang", "en"]) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "wide: the config makes 40.56 M parameters, but the log printed 123.59 M" in shown
    assert "Not every run has a config that its log confirms" in shown


def test_a_config_that_only_the_mfu_could_confirm_is_not_planned_from_when_it_does_not(tmp_path):
    bare = small_run(header=False)
    path = tmp_path / "a.log"
    path.write_text(bare)
    keys = {"n_layer": 12, "n_head": 12, "block_size": 1024, "gradient_accumulation_steps": 32}
    right = figures(read_runs(str(path), flags={**keys, "n_embd": 384, "batch_size": 16})[0], CARD)
    assert right.plan is not None
    assert not right.problems
    wrong = figures(read_runs(str(path), flags={**keys, "n_embd": 768, "batch_size": 13})[0], CARD)
    assert [problem.code for problem in wrong.problems] == ["mfu-disagrees"]
    assert wrong.config is None
    assert wrong.plan is None


def test_an_mfu_that_disagrees_costs_no_config_that_the_log_confirms():
    """Parameters and tokens are printed and fit: the MFU is what is wrong."""
    text = re.sub(r"mfu (\d+\.\d+)%", lambda m: f"mfu {0.7 * float(m[1]):.2f}%", small_run())
    f = of(text)
    assert [problem.code for problem in f.problems] == ["mfu-disagrees"]
    assert f.config is not None
    assert f.plan is not None


def test_a_batch_that_the_mfu_confirms_keeps_the_config():
    printed_wrong = of(small_run().replace("will be: 524,288", "will be: 24,288"))
    assert printed_wrong.tokens_per_step == 524_288
    assert printed_wrong.config is not None
    config_wrong = of(small_run().replace("batch_size = 16", "batch_size = 18"))
    assert config_wrong.tokens_per_step == 524_288
    assert config_wrong.config is None


def test_our_own_log_contradicts_a_config_too(tmp_path):
    record = make(tmp_path / "out", config=CONFIG.replace(dataset="openwebtext"))
    good = figures(read_runs(str(record.path))[0])
    assert good.config is not None
    wrong = figures(read_runs(str(record.path), flags={"n_embd": 768})[0])
    assert [problem.code for problem in wrong.problems] == ["params-disagree"]
    assert wrong.plan is None


@pytest.mark.parametrize(("seconds", "impossible"), [(3.9, False), (2.9, False), (0.334, True)])
def test_a_card_that_cannot_be(seconds, impossible):
    """0.334 s a step are 470 TFLOPS, and an RTX 4070 has 58."""
    f = of(nanogpt_log(384, 1e-3, seconds, 16, 32, {0: 10.9, 1000: 4.5}, 1000))
    assert ("card-impossible" in codes(f)) is impossible
    assert "no-card" not in codes(f)
    for name in ("kwh", "cost", "mfu_card", "plan"):
        assert (getattr(f, name) is None) is impossible
    if (
        not impossible
    ):  # nothing logged the draw: it is the card's rated one, over the time of the steps
        assert f.kwh == pytest.approx(find_gpu("RTX 4070").watts * f.seconds / 3.6e6)
        assert f.seconds == pytest.approx(seconds * 1000, rel=0.05)
    if impossible:
        text = str(next(x.note for x in explain(f) if x.note.code == "card-impossible"))
        assert "471 TFLOPS are more than 1 × RTX 4070 can do (58 TFLOPS)" in text
    answer = str(explain_document(f, explain(f)).answer)
    assert ("which that card cannot reach" in answer) is impossible
    assert "card-impossible" not in codes(of(small_run(), find_gpu("H100 SXM")))


def test_no_run_wins_by_a_speed_that_its_card_cannot_reach():
    fast = of(nanogpt_log(384, 1e-3, 0.334, 16, 32, {0: 10.9, 1000: 4.5}, 1000))
    comparison = explained(compare([of(small_run()), fast]))
    assert comparison.winners["tokens_per_second"] is None
    assert str(won(comparison).rows[0].value) == "not known"
    answer = str(compare_document(comparison).answer)
    assert "times the tokens per second" not in answer


def test_keys_that_nobody_gave_are_named_as_the_logs_and_nanogpts(tmp_path):
    """A log that was cut before its config: it is not the user's config that makes 123.59 M parameters."""
    head = small_run().splitlines()
    bare = "\n".join(line for line in head if " = " not in line and "Overriding" not in line)
    f = of(bare)
    assert [problem.code for problem in f.problems] == ["params-disagree-defaults"]
    assert "nanoGPT's defaults" in str(f.problems[0])
    assert "--config FILE" in str(f.problems[0])
    log = tmp_path / "a.log"
    log.write_text(bare)
    given = read_runs(str(log), flags={"n_embd": 768})[0]
    assert [problem.code for problem in figures(given, CARD).problems] == ["params-disagree"]


def test_long_contexts_may_count_more_than_the_peak():
    """nanoGPT counts attention in full, causal kernels do half: 120 % of the peak by its count can be."""
    run = read_text(io.BytesIO(small_run().encode()), "run")[0]
    known = {key: dataclasses.replace(known) for key, known in run.config.items()}
    known["block_size"] = dataclasses.replace(known["block_size"], value=16384)
    long = dataclasses.replace(
        run, config=known, tokens_per_step=None, params_printed=None, mfu_settled=None
    )
    rate = resolve(long, CARD).flops_per_token * resolve(long, CARD).tokens_per_step / 3.9

    def at(share):
        times = dataclasses.replace(run.times, median=3.9 * rate / (share * PEAK))
        return {p.code for p in resolve(dataclasses.replace(long, times=times), CARD).problems}

    assert at(1.2) == set()
    assert at(2.2) == {"card-impossible"}


def test_evaluations_in_the_step_times_do_not_make_the_printed_mfu_wrong():
    """An evaluation in every third logged step pulls nanoGPT's running mean far below the true one."""
    f = of(small_run(evals=30, losses={0: 10.9, 1000: 4.5}))
    assert f.run.mfu_settled < 0.95 * 0.1293
    assert "evaluation-in-steps" in codes(f)
    assert "mfu-disagrees" not in codes(f)
    without = "\n".join(line for line in small_run(evals=0).splitlines())
    assert "mfu-disagrees" in codes(
        of(without.replace("mfu 12.9", "mfu 11.9").replace("mfu 12.8", "mfu 11.9"))
    )


def test_evaluation_time_is_a_share_of_the_steps_that_the_log_holds():
    whole = small_run(evals=50, losses={0: 10.9, 1000: 4.5})
    shifted = whole.replace("iter ", "iter 28").replace("step ", "step 28")
    lines = [
        line
        for line in shifted.splitlines()
        if not line.startswith(("iter", "step")) or len(line.split()[1].rstrip(":")) == 5
    ]
    f = of("\n".join(lines))
    assert f.run.first_step >= 28_000
    found = {finding.note.code: finding for finding in explain(f)}
    share = found["evaluation-often"].evidence["share"]
    logged = f.run.logged_seconds
    assert share == pytest.approx(
        f.run.times.leaked_seconds / (f.run.times.leaked_seconds + logged)
    )
    assert share > 0.08
    assert f.seconds > 20 * logged  # hours of training still count from step 0


def test_compare_takes_presets_as_configs(tmp_path, capsys):
    (tmp_path / "a.log").write_text(small_run(header=False))
    words = [str(tmp_path / "a.log"), "--config", "fineweb-41M-12gb", "--gpu", "4070", "--json"]
    assert main(["explain", *words]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["run"]["params_nanogpt"] == 40_560_000
    # its schedule ends with its run, for nanoGPT and as a config of a log too
    assert "never-decays" not in {finding["rule"] for finding in shown["findings"]}
    words[2] = "fineweb-42M-12gb"
    assert main(["explain", *words]) == 2
    assert "did you mean fineweb-41M-12gb" in capsys.readouterr().err


def test_what_a_resume_changed_is_shown(tmp_path, capsys):
    record = make(tmp_path / "out")
    log = LogWriter(record.log_path)
    log.write(
        kind="event",
        step=1000,
        text="x",
        event="config_changed",
        key="learning_rate",
        before=1e-3,
        after=3e-4,
    )
    log.write(
        kind="event",
        step=1000,
        text="x",
        event="config_changed",
        key="odd",
        before=[1],
        after={"a": 1},
    )
    log.close()
    assert main(["compare", str(record.path), str(record.path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    change = {"step": 1000, "key": "learning_rate", "before": 0.001, "after": 0.0003}
    assert shown["runs"][0]["changes"][0] == change
    texts = [each["text"] for each in shown["findings"] if each["rule"] == "config-changed"]
    assert "a resume at step 1,000 changed learning_rate from 0.001 to 0.0003" in texts[0]
    assert len(texts) == 4


def test_hours_and_money_that_nothing_logged_are_marked():
    """The steps before the log's first one are counted at the speed of the others."""
    whole = small_run()
    late = "\n".join(
        line
        for line in whole.splitlines()
        if not line.startswith(("iter", "step")) or int(line.split()[1].rstrip(":")) >= 500
    )
    assert "seconds" not in of(whole).inferred
    assert {"seconds", "kwh", "cost"} <= of(late).inferred
    shown = show(explain_document(of(late), ()), "markdown", "en")
    assert re.search(r"hours of training \| ≈ 1\.\d\d", shown)
    assert re.search(r"cost so far \| ≈ \$0\.0\d", shown)
    assert re.search(
        r"hours of training \| 1\.", show(explain_document(of(whole), ()), "markdown", "en")
    )


def test_a_part_prepared_here_is_not_what_another_programs_log_read(tmp_path, monkeypatch):
    """The 1,000 tokens in data/fineweb-edu are a try of onecard's; the log is of a run elsewhere."""
    text = small_run().replace("dataset = 'fineweb'", "dataset = 'fineweb-edu'")
    whole = of(text)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "fineweb-edu").mkdir(parents=True)
    (tmp_path / "data" / "fineweb-edu" / "train.bin").write_bytes(bytes(2000))
    here = of(text)
    assert here.plan.tokens.epochs == whole.plan.tokens.epochs
    assert here.projected_loss == whole.projected_loss
    assert "data-repeats" not in codes(here)
