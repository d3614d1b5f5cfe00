"""Comparing runs: the worked example's figures and words, and runs that do not compare."""

import io
import json
import math
import re
from dataclasses import replace

import pytest
from run_logs import nanogpt_log, small_run, wide_run

from onecard.cli import main
from onecard.errors import UserError
from onecard.facts import find_gpu
from onecard.report import show
from onecard.report.compare_tables import won
from onecard.report.compare_view import compare_document, explain_document
from onecard.runs.compare import compare
from onecard.runs.explain import explain, explained
from onecard.runs.figures import figures
from onecard.runs.foreign.text_log import read_text

CARD = find_gpu("RTX 4070")


def of(text, name="run", gpu=CARD):
    run = read_text(io.BytesIO(text.encode()), name)[-1]
    return figures(run, gpu)


def rules(found):
    return [finding.note.code for finding in found]


@pytest.fixture(scope="module")
def worked():
    return explained(
        compare([of(small_run(jitter=0.0), "small"), of(wide_run(jitter=0.0), "wide")])
    )


def test_the_worked_example_gives_the_right_figures(worked):
    small, wide = worked.to_json()["runs"]
    assert (small["params_nanogpt"], wide["params_nanogpt"]) == (40_560_000, 123_587_328)
    assert (small["tokens_per_step"], wide["tokens_per_step"]) == (524_288, 524_288)
    assert (small["step_seconds"], wide["step_seconds"]) == (3.9, 9.34)
    assert (round(small["tokens_per_second"]), round(wide["tokens_per_second"])) == (
        134_433,
        56_134,
    )
    assert (round(small["tflops"], 1), round(wide["tflops"], 1)) == (40.3, 48.0)
    assert (round(small["mfu_card"], 2), round(wide["mfu_card"], 2)) == (0.69, 0.82)
    assert small["mfu_printed"] == pytest.approx(
        0.129, abs=0.004
    )  # its running mean sags after evaluations
    assert wide["mfu_printed"] == pytest.approx(0.154, abs=0.004)
    assert (small["final_loss"], wide["final_loss"]) == (4.4593, 5.5194)
    assert small["seconds"] == pytest.approx(3900, rel=0.001)


def test_the_worked_example_is_explained_rightly(worked):
    message = worked.to_json()
    (row,) = message["at_equal"]["steps"]
    assert (row["at"], row["losses"], row["winner"]) == (500, [5.5328, 5.5194], None)
    assert message["winners"] | {"projected_loss": None} == {
        "tokens_per_second": "small",
        "mfu_card": "wide",
        "equal_steps": None,
        "equal_tokens": None,
        "equal_hours": "small",
        "equal_flops": "small",
        "projected_loss": None,
        "loss": "small",
    }
    text = {finding["rule"]: finding["text"] for finding in message["findings"]}
    assert (
        "2.4 times fewer tokens a second: each token costs 2.85 times the FLOPs"
        in text["mfu-is-not-speed"]
    )
    assert "82.3% against 69.2%" in text["mfu-is-not-speed"]
    assert "2.4 times as long for 2.85 times the FLOPs" in text["larger-is-slower"]
    assert "did not raise its MFU: its larger model did" in text["micro-batch-and-mfu"]
    assert "micro-batch 16 does not fit on the RTX 4070" in text["micro-batch-and-mfu"]
    assert "changes no optimizer step" in text["accumulation"]
    assert "0.001 and 0.0003" in text["learning-rate-and-width"]
    assert "5.5328 (small) and 5.5194 (wide)" in text["too-close"]
    assert "small is ahead" in text["hours-decide"]
    assert "312 TFLOPS; against the RTX 4070's own 58.3 TFLOPS" in text["mfu-against-a100"]
    changed = {difference["key"]: difference["values"] for difference in message["differences"]}
    assert changed == {
        "batch_size": [16, 8],
        "gradient_accumulation_steps": [32, 64],
        "n_embd": [384, 768],
        "learning_rate": [1e-3, 3e-4],
    }


def test_where_one_run_has_no_evaluation_nearby_training_losses_are_compared(worked):
    message = worked.to_json()["at_equal"]
    assert [row["kind"] for row in message["steps"]] == ["val"]  # step 500: both evaluated there
    assert {row["kind"] for row in message["flops"]} == {"train"}


def test_equal_hours_take_the_faster_runs_extra_steps_into_account(worked):
    row = worked.to_json()["at_equal"]["hours"][-1]
    assert row["at"] == pytest.approx(3900 / 3600, rel=0.01)
    assert row["losses"][0] == pytest.approx(4.46, abs=0.04)  # step 1000
    assert row["losses"][1] == pytest.approx(
        10.9 - 5.3806 * math.log1p(417.6) / math.log1p(500), abs=0.05
    )


@pytest.mark.parametrize("lang", ["en", "es", "hi"])
@pytest.mark.parametrize("how", [["--full"], ["--markdown"], ["--html"]])
def test_the_worked_example_in_every_language_and_form(tmp_path, capsys, lang, how):
    (tmp_path / "small.log").write_text(small_run())
    (tmp_path / "wide.log").write_text(wide_run())
    logs = [str(tmp_path / "small.log"), str(tmp_path / "wide.log")]
    assert main(["compare", *logs, "--gpu", "4070", "--lang", lang, *how]) == 0
    shown = capsys.readouterr().out
    figure = {
        "en": ("40.3", "5.5328", "2.85"),
        "es": ("40,3", "5,5328", "2,85"),
        "hi": ("40.3", "5.5328", "2.85"),
    }
    for part in figure[lang]:
        assert part in shown
    words = {"en": "uses the card better", "es": "aprovecha mejor la tarjeta", "hi": "कार्ड का बेहतर"}
    assert words[lang] in " ".join(shown.replace("│", " ").split())
    if how == ["--html"]:
        assert shown.count("<svg") >= 3


def test_json_has_what_is_promised(tmp_path, capsys):
    (tmp_path / "a.log").write_text(small_run() + wide_run())  # two runs in one file, named alone
    assert main(["compare", str(tmp_path / "a.log"), "--gpu", "4070", "--json"]) == 0
    message = json.loads(capsys.readouterr().out)
    for key in (
        "name",
        "params_nanogpt",
        "tokens_per_step",
        "step_seconds",
        "tokens_per_second",
        "tflops",
        "mfu_card",
        "mfu_printed",
        "final_loss",
    ):
        assert all(key in run for run in message["runs"])
    assert set(message["at_equal"]) == {"steps", "tokens", "hours", "flops"}
    assert all({"rule", "text", "evidence"} <= set(finding) for finding in message["findings"])
    assert message["differences"]
    assert message["winners"]["equal_hours"] == "a"


def test_explain_shows_how_the_figures_are_worked_out(tmp_path, capsys):
    (tmp_path / "a.log").write_text(small_run() + wide_run())
    for verb in ("compare", "explain"):
        assert (
            main([verb, str(tmp_path / "a.log"), "--gpu", "4070", "--explain", "--markdown"]) == 0
        )
        shown = capsys.readouterr().out
        assert "PaLM, appendix B" in shown.split("## How this was found")[1]
        for row in re.findall(r"^- (.*?): ", shown.split("## How this was found")[1], re.M):
            assert (
                row == "expected loss" or f"| {row} |" in shown
            )  # the names are those of the table


def test_findings_name_their_run_only_beside_others(tmp_path, capsys):
    for name, text in (("a", small_run()), ("b", wide_run())):
        (tmp_path / f"{name}.log").write_text(text)
    logs = [str(tmp_path / "a.log"), str(tmp_path / "b.log")]
    main(["explain", logs[0], "--gpu", "RTX 4070", "--md"])
    alone = capsys.readouterr().out
    main(["compare", *logs, "--gpu", "RTX 4070", "--md"])
    together = capsys.readouterr().out
    assert "- the first step took" in alone
    assert "a: the first step took" not in alone
    assert "- a: the first step took" in together
    assert "- b: the first step took" in together


def test_a_micro_batch_that_does_not_fit_is_not_advised(worked):
    """16 rows of the 124M model are 12.5 GiB, and an RTX 4070 has 11.72."""
    note = next(f.note for f in worked.findings if f.note.code == "micro-batch-and-mfu")
    assert "micro-batch 16 does not fit on the RTX 4070" in str(note)
    larger = find_gpu("RTX 4090")
    roomy = explained(compare([of(small_run(), "a", larger), of(wide_run(), "b", larger)]))
    note = next(f.note for f in roomy.findings if f.note.code == "micro-batch-and-mfu")
    assert "micro-batch 16 would" in str(note)


def test_a_sentence_about_several_pairs_is_shown_once():
    comparison = explained(
        compare([of(small_run(), "small"), of(wide_run(), "wide"), of(wide_run(seed=3), "again")])
    )
    page = show(compare_document(comparison), "markdown", "en")
    assert page.count("accumulating 32 or 64 micro-batches") == 1


def test_one_run_is_no_comparison(tmp_path, capsys):
    (tmp_path / "a.log").write_text(small_run())
    assert main(["compare", str(tmp_path / "a.log")]) == 2
    assert "takes two runs" in capsys.readouterr().err


def test_the_same_run_twice_wins_at_nothing():
    c = compare([of(small_run(), "a"), of(small_run(), "a")])
    assert [f.name for f in c.runs] == ["a (1)", "a (2)"]
    assert set(c.winners.values()) == {None}
    assert not c.differences


def test_noise_is_no_victory_and_a_real_lead_is_one():
    curve = {1: 10.0, 100: 6.0, 1000: 4.0}
    lead = {step: loss - 0.1 for step, loss in curve.items()}
    one = of(nanogpt_log(384, 1e-3, 3.9, 16, 32, curve, 1000, evals=0, seed=1), "one")
    two = of(nanogpt_log(384, 1e-3, 3.9, 16, 32, curve, 1000, evals=0, seed=2), "two")
    better = of(nanogpt_log(384, 1e-3, 3.9, 16, 32, lead, 1000, evals=0, seed=3), "better")
    assert compare([one, two]).winners["equal_steps"] is None
    assert compare([one, better]).winners["equal_tokens"] == "better"
    assert compare([one, two, better]).winners["loss"] == "better"


def test_who_leads_can_depend_on_where_one_looks():
    fast = of(
        nanogpt_log(384, 1e-3, 3.9, 16, 32, {1: 10.0, 500: 5.0, 1000: 4.9}, 1000, evals=0), "fast"
    )
    late = of(
        nanogpt_log(384, 3e-4, 3.9, 16, 32, {1: 10.0, 500: 5.6, 1000: 4.4}, 1000, evals=0), "late"
    )
    assert compare([fast, late]).winners["equal_steps"] == "it depends"


def char_level(text):
    return text.replace(
        "defaulting to vocab_size of GPT-2 to 50304 (50257 rounded up for efficiency)",
        "found vocab_size = 65 (inside data/shakespeare_char/meta.pkl)",
    )


def test_different_tokenizers_do_not_compare():
    chars = nanogpt_log(384, 1e-3, 3.9, 16, 32, {0: 4.2, 500: 1.5, 1000: 1.4}, 1000)
    chars = (
        char_level(chars)
        .replace("40.56M", "21.31M")
        .replace("num decayed", "x")
        .replace("num non-decayed", "x")
    )
    c = compare([of(small_run(), "gpt2"), of(chars, "chars")])
    assert c.comparable.code == "tokenizers-differ"
    assert c.at_equal == {"steps": (), "tokens": (), "hours": (), "flops": ()}
    assert c.winners["loss"] is None
    assert "tokenizers-differ" in rules(explained(c).findings)
    assert c.winners["tokens_per_second"] is None  # 3.9 s both


def test_different_tokenizers_compare_in_bits_per_byte_where_both_have_them():
    runs = []
    for name, vocab, bits in (("one", 65, 1.5), ("two", 50304, 1.2)):
        f = of(small_run(evals=0), name)
        evals = tuple(
            type(e)(e.step, bits_per_byte=bits + 100 / (e.step + 100))
            for e in of(small_run()).run.evals
        )
        runs.append(
            replace(
                f,
                run=replace(f.run, evals=evals),
                final_bits_per_byte=evals[-1].bits_per_byte,
                config=f.config.replace(vocab_size=vocab),
            )
        )
    c = compare(runs)
    assert c.comparable.code == "tokenizers-differ-bytes"
    assert c.at_equal["steps"][-1].kind == "bits_per_byte"
    assert c.winners["equal_steps"] == "two"


def test_different_data_sets_are_said_and_nobody_wins():
    other = wide_run().replace("dataset = 'fineweb'", "dataset = 'openwebtext'")
    c = compare([of(small_run(), "a"), of(other, "b")])
    assert "datasets-differ" in rules(explained(c).findings)
    assert c.winners["loss"] is None
    assert c.at_equal["steps"][0].losses[0].value == 5.5328  # still shown


def test_clocks_that_go_backwards(tmp_path):
    from onecard.runs.read import read_runs

    rows = ["_step,_timestamp,train/loss"] + [
        f"{i},{1.7e9 + 4.0 * i - (5000 if i > 50 else 0)},{9 - i / 100}" for i in range(100)
    ]
    (tmp_path / "a.csv").write_text("\n".join(rows))
    (run,) = read_runs(str(tmp_path / "a.csv"))
    f = figures(run)
    assert (run.clock_jumps, f.step_seconds) == (1, 4.0)
    assert f.seconds == pytest.approx(99 * 4, rel=0.02)
    assert all(a <= b for a, b in zip(run.curve.seconds, run.curve.seconds[1:], strict=False))


def test_a_config_that_contradicts_its_log_is_shown_not_believed():
    for damaged, problem in (
        (small_run().replace("n_embd = 384", "n_embd = 396"), "params-disagree"),
        (small_run().replace("batch_size = 16", "batch_size = 18"), "tokens-disagree"),
        (small_run().replace("will be: 524,288", "will be: 24,288"), "tokens-disagree"),
        (small_run().replace("n_head = 12", "n_head = 13"), "config-wrong"),
    ):
        f = of(damaged)
        assert problem in [note.code for note in f.problems]
        assert f.tokens_per_step in (
            None,
            524_288,
        )  # the printed MFU tells which of the two is right
        assert f.mfu_card is None or f.mfu_card == pytest.approx(0.69, abs=0.02)


def test_several_cards_are_inferred_from_the_printed_mfu():
    text = small_run()
    lines = [
        line if not line.startswith("iter") else _mfu_over(line, 4) for line in text.splitlines()
    ]
    f = of("\n".join(lines))
    assert (f.gpus, "gpus" in f.inferred) == (4, True)
    assert f.mfu_card == pytest.approx(0.69 / 4, abs=0.01)


def _mfu_over(line, cards):
    head, _, mfu = line.partition("mfu ")
    return f"{head}mfu {float(mfu.rstrip('%')) / cards:.2f}%" if "-100" not in mfu else line


def test_unknown_card_and_wrong_options(tmp_path, capsys):
    (tmp_path / "a.log").write_text(small_run())
    log = str(tmp_path / "a.log")
    assert main(["compare", log, log, "--gpu", "RTX 4071"]) == 2
    assert (
        main(["compare", log, log, "--config", "x.py", "--config", "y.py", "--config", "z.py"]) == 2
    )
    assert main(["compare", "-", "-"]) == 2
    assert main(["compare", log, log, "--n_layr=3"]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_no_card_is_an_honest_gap():
    f = of(small_run(), gpu=None)
    assert f.mfu_card is None
    assert f.tflops == pytest.approx(40.3, abs=0.1)
    with pytest.raises(UserError):
        compare([f])


def test_rules_that_blame_the_model_are_silent_where_it_is_the_same():
    """Another learning rate or micro-batch alone is no change of the model."""
    one = of(small_run(), "one")
    same = of(small_run().replace("learning_rate = 0.001", "learning_rate = 0.0005"), "two")
    assert one.config.learning_rate != same.config.learning_rate
    assert "learning-rate-and-width" not in rules(explained(compare([one, same])).findings)
    assert "learning-rate-and-width" in rules(explained(compare([one, of(wide_run())])).findings)
    batch = replace(
        one,
        config=one.config.replace(batch_size=8, gradient_accumulation_steps=64),
        mfu_card=one.mfu_card * 1.2,
    )
    assert "micro-batch-and-mfu" not in rules(explained(compare([one, batch])).findings)
    wider = replace(batch, config=batch.config.replace(n_embd=768))
    assert "micro-batch-and-mfu" in rules(explained(compare([one, wider])).findings)


def test_equally_fast_runs_are_a_tie_and_not_unknown():
    f = of(small_run(jitter=0.0))
    message = {str(figure.label): str(figure.value) for figure in won(compare([f, f])).rows}
    assert message["Tokens per second"] == "too close to call"
    assert message["Use of the card (MFU)"] == "too close to call"
    blind = replace(f, tokens_per_second=None)
    message = {str(figure.label): str(figure.value) for figure in won(compare([f, blind])).rows}
    assert message["Tokens per second"] == "not known"


def test_what_is_too_early_to_judge_is_not_judged_in_the_answer():
    slow = small_run().replace("warmup_iters = 100", "warmup_iters = 2000")
    early, usual = of(slow), of(small_run())
    assert "loss-early" in rules(explain(early))
    assert "expected)" not in str(explain_document(early, explain(early)).answer)
    assert "expected)" in str(explain_document(usual, explain(usual)).answer)
