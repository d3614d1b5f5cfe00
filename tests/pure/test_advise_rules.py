"""The rules of `can`, the savers and `plan` at their boundaries, each with figures that were checked by hand."""

import dataclasses
import json
from pathlib import Path

import pytest

from onecard import UserError, find_gpu, load, plan
from onecard.advise.can import can
from onecard.advise.fit import fit
from onecard.advise.named_model import named_model
from onecard.advise.need import readings
from onecard.advise.savers import Savers, all_savers, fastest, micro_batches, with_memory
from onecard.cli import main
from onecard.units import DAY, GIB, MIB

pytestmark = pytest.mark.usefixtures("tuned_once")
CARD = find_gpu("RTX 4070")
ROOT = Path(__file__).parents[2]


# --- what a model needs


@pytest.mark.parametrize(
    ("model", "names"),
    [
        ("Chinchilla 70B", ["Chinchilla 70B"]),
        ("Gopher 1.4B", ["Gopher 1.4B", "Pythia 1.4B"]),  # 1.4 and 1.41 B: within 6 %
        ("gpt2-xl", ["GPT-2 1.5B (OpenAI)"]),
        ("gpt3", ["GPT-3 175B"]),
        ("llama-7b", ["LLaMA 7B", "Llama 2 7B"]),
    ],
)
def test_how_such_models_were_trained(model, names):
    found = readings(named_model(model), None)
    assert [reading.name for reading in found if reading.kind == "as_trained"] == names


def test_flops_are_six_n_d_of_the_tokens_asked_for():
    first, second = readings(named_model("gpt2"), 10e9)[:2]
    assert (first.kind, second.kind) == ("asked", "compute_optimal")
    assert first.needed_flops == 6 * 124_439_808 * 10e9
    assert first.published
    unknown = readings(named_model("gpt2"), None)[2]
    assert (unknown.tokens_low, unknown.tokens_high, unknown.published) == (10e9, 205e9, False)


@pytest.mark.parametrize(
    ("text", "hint"),
    [("mistral-7b", "7B"), ("falcon_1.3b", "1.3B"), ("gpt2-xll", "gpt2-xl"), ("what", "350M")],
)
def test_an_unknown_model_with_a_size_in_its_name_is_asked_for_by_size(text, hint):
    with pytest.raises(UserError) as caught:
        named_model(text)
    assert hint in (caught.value.hint or "")


# --- can


def test_the_desktop_s_share_is_named_where_the_verdict_rests_on_it():
    card = with_memory(find_gpu("RTX 4070"), 7.8)
    answer = can("gpt2-xl", card)
    least = answer.memory.least
    room = answer.memory.card_bytes - answer.memory.desktop_bytes
    assert answer.memory.desktop_bytes == 600 * MIB
    assert (answer.verdict, answer.because, least.fits) == ("no", "memory", "tight")
    assert least.process_bytes < room < least.process_high < answer.memory.card_bytes
    assert answer.verdict_text.code == "can-tight-desktop"
    assert "600 MiB of it kept for the desktop" in str(answer.verdict_text)
    assert can("gpt2-xl", "RTX 2060").verdict_text.code == "can-no-memory"
    with pytest.raises(UserError, match="600 MiB of it kept for the desktop"):
        fit(load("gpt2-xl"), card)


@pytest.mark.parametrize(("batch", "fits"), [(14, "tight"), (16, "no")])
def test_a_plan_names_the_desktop_s_share_too(batch, fits, capsys):
    words = ["plan", "gpt2", "--gpu", "RTX 4070", f"--batch_size={batch}", "--lang", "en"]
    assert plan(load("gpt2", [f"batch_size={batch}"]), CARD).memory.fits == fits
    assert main(words) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "of it kept for the desktop" in shown.partition("In short")[2]


@pytest.mark.parametrize(
    ("card", "words"),
    [
        ("RTX 4070", "the RTX 4070 has 11.72 GiB, 600 MiB of it kept for the desktop"),
        ("A100 80GB", "the A100 SXM 80GB has 79.15 GiB, all of it free"),
        ("cpu", "of it in use by other programs"),
    ],
)
def test_what_others_use_is_named_as_it_is(card, words):
    """A data-centre card has no desktop, and on a processor other programs were measured."""
    text = str(can("gpt3", card).verdict_text)
    assert text.endswith(words)
    assert "CPU, " not in text


def test_can_and_plan_have_one_rate():
    """Where the model does not fit, as if the card had the memory; where it fits, of the config that it hands back."""
    for model in ("gpt2-xl", "gpt2"):
        answer = can(model, "RTX 4070", tokens=10e9)
        config = load(model) if answer.compute.hypothetical else answer.config
        step = plan(config, "RTX 4070").time.step_seconds.mid
        seconds = 10e9 / config.tokens_per_step * step
        assert answer.compute.predicted_seconds == pytest.approx(seconds)


def test_the_time_decides_exactly_where_it_is_too_short():
    need = can("gpt2", "RTX 4070", tokens=10e9).compute.predicted_seconds
    assert can("gpt2", "RTX 4070", tokens=10e9, seconds=1.001 * need).verdict == "yes"
    short = can("gpt2", "RTX 4070", tokens=10e9, seconds=0.999 * need)
    assert (short.verdict, short.because) == ("no", "time")
    assert [way.kind for way in short.instead].count("cards") == 1


@pytest.mark.parametrize(
    "wrong",
    [{"utilization": 0.0}, {"utilization": 1.01}, {"gpus": 0}, {"seconds": 0.0}, {"tokens": 0}],
)
def test_shares_and_amounts_that_cannot_be(wrong):
    with pytest.raises(UserError):
        can("gpt2", "RTX 4070", **wrong)


def test_the_whole_peak_is_a_share_of_it():
    answer = can("gpt2", "RTX 4070 Ti", seconds=365.25 * DAY, utilization=1.0)
    assert answer.compute.deliveries[1].flops == pytest.approx(40.1e12 * 365.25 * DAY, rel=2e-3)


def test_what_is_kept_on_the_host_takes_its_time_over_the_slot():
    away = load("gpt2-xl", ["weights=bfloat16", "offload_optimizer=True"])
    found = plan(away, "RTX 4070 Ti")
    # fp32 weights and two moments of 1.56 B parameters; vectors have no fp32 weights beside their own
    assert found.memory.host_bytes == pytest.approx(12 * 1_557_611_200, rel=0.001)
    assert found.time.parts["host"] == pytest.approx(2 * found.memory.host_bytes / 25e9)
    newer = plan(away, "RTX 5070 Ti").time.parts["host"]
    assert newer == pytest.approx(found.time.parts["host"] / 2)
    note = next(note for note in found.warnings if note.code == "offload")
    assert "17.4" in str(note)
    assert note.values["share"] == note.values["seconds"] / found.time.step_seconds.mid
    assert "PCIe 4.0" in str(note)
    assert "host" not in plan(load("gpt2-xl"), "RTX 4070 Ti").time.parts


def test_copies_hide_behind_the_backward_pass_where_the_update_does():
    away = load("gpt2-xl", ["weights=bfloat16", "offload_optimizer=True", "grad_clip=0"])
    away = away.replace(batch_size=4, gradient_accumulation_steps=128)
    after, within = (
        plan(away.replace(update_in_backward=each), "RTX 4070 Ti") for each in (False, True)
    )
    parts = after.time.parts
    one = (parts["matmul"] + parts["memory"] + parts["launch"]) / 128
    assert within.time.parts["host"] == pytest.approx(parts["host"] - one * 2 / 3, rel=0.02)
    assert within.time.parts["host"] < 0.9 * parts["host"]
    assert "goes back to its last checkpoint" in " ".join(map(str, within.warnings))
    assert "goes back to its last checkpoint" not in " ".join(map(str, after.warnings))


def test_a_computer_without_room_is_no_place_for_moments(monkeypatch):
    """Of this computer, whose card it is, the memory is known; of another's it is not."""
    away = load("gpt2-xl", ["weights=bfloat16", "gradients=bfloat16", "offload_optimizer=True"])
    away = away.replace(chunked_loss=True, recompute="block", compile_unit="block")
    away = away.replace(batch_size=1, gradient_accumulation_steps=512)
    card = find_gpu("RTX 4070 Ti")
    here = dataclasses.replace(card, taken_bytes=0)
    for room, fits in ((16 * GIB, "no"), (32 * GIB, "yes")):
        monkeypatch.setattr("onecard.planner.memory.computer_bytes", lambda room=room: room)
        monkeypatch.setattr("onecard.planner.warnings.computer_bytes", lambda room=room: room)
        found = plan(away, here)
        assert found.memory.fits == fits
        words = "17.40 GiB are to be kept in the computer's memory, and this one has 16.00 GiB"
        assert (words in " ".join(map(str, found.warnings))) == (fits == "no")
        rows = can("gpt2-xl", here).memory.with_savers
        assert any(row.host_bytes > 14 * GIB and row.fits == "yes" for row in rows) == (
            fits == "yes"
        )
        assert plan(away, card).memory.fits == "yes"


# --- savers and fit


def test_each_saver_has_its_price():
    assert Savers().charge == 0
    assert Savers.setting(
        chunked_loss=True, recompute="cheap", optimizer_state="8bit"
    ).charge == pytest.approx(0.035)
    assert Savers.setting(
        chunked_loss=True, recompute="cheap", optimizer_state="4bit"
    ).charge == pytest.approx(0.055)
    assert all_savers(load("gpt2"))[0] == Savers()
    assert len(all_savers(load("gpt2"))) == 18 + 3 + 3 + 2 + 2
    assert len(all_savers(load("gpt2"), "float16")) == 18 + 3 + 2 + 2  # no bf16 weights without it
    assert len(all_savers(load("gpt2"), "float32", "cpu")) == 18 + 3
    muon = all_savers(load(None, ["recipe=modern"]))
    assert {savers.values["optimizer_state"] for savers in muon} == {
        "float32",
        "8bit",
    }  # 4 bits cost it loss
    asked = all_savers(load("gpt2", ["optimizer=adamw8bit"]))  # another name of 8bit
    assert {savers.values["optimizer_state"] for savers in asked} == {"8bit"}


def test_micro_batches_divide_the_total_batch():
    config = load("gpt2").replace(batch_size=6, gradient_accumulation_steps=10)
    assert micro_batches(config) == (1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30, 60)
    assert micro_batches(config, gpus=2) == (1, 2, 3, 5, 6, 10, 15, 30)
    assert micro_batches(config.replace(batch_size=64, gradient_accumulation_steps=4))[-1] == 128


def test_eight_bit_moments_are_explained_only_where_they_are_new():
    new = fit(load("gpt2-large", ["vocab_size=50304"]), "RTX 4080")
    assert "optimizer_state=8bit" in new.savers
    assert "fit-8bit" in {note.code for note in new.reasons}
    own = fit(load("gpt2-large", ["vocab_size=50304", "optimizer=adamw8bit"]), "RTX 4080")
    assert "fit-8bit" not in {note.code for note in own.reasons}


def test_nothing_tuned_is_slower_with_more_memory():
    config = load("gpt2", ["vocab_size=50304"])
    small, large = (
        fastest(config, with_memory(CARD, gib), "bfloat16", micro_batches(config))
        for gib in (8, 48)
    )
    assert small is not None
    assert large is not None
    assert large.seconds_per_token <= small.seconds_per_token
    assert small.memory.process_bytes.mid < 8 * GIB


# --- plan on the command line


def test_cards_side_by_side_and_tokens(capsys):
    words = ["plan", "gpt2", "--tokens", "3.7B", "--lang", "en"]
    assert main([*words, "--gpu", "RTX 4070", "--gpu", "4090"]) == 0
    shown = capsys.readouterr().out
    assert "RTX 4070" in shown
    assert "The RTX 4090 is the fastest" in shown
    assert main([*words, "--gpu", "RTX 4070", "--gpu", "4090", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert first["time"]["total_seconds"]["mid"] > second["time"]["total_seconds"]["mid"]
    per_step = first["tokens"]["per_step"]
    assert 3.7e9 <= first["tokens"]["total"] < 3.7e9 + per_step
    assert first["config"]["lr_decay_iters"] == first["config"]["max_iters"]
    assert main([*words, "--max_iters=5"]) == 2
    assert main(["plan", "gpt2", "--gpu", "RTX 4070", "--md", "--lang", "en"]) == 0
    assert "# " in capsys.readouterr().out


def test_a_plan_takes_names_and_refuses_the_rest_in_a_sentence():
    assert plan("gpt2", "RTX 4070") == dataclasses.replace(
        plan(load("gpt2"), CARD), time=plan("gpt2", "RTX 4070").time
    )
    with pytest.raises(UserError, match="a RunConfig, not of dict"):
        plan({"n_layer": 2}, "RTX 4070")
    with pytest.raises(UserError, match="not int"):
        plan("gpt2", 4070)


@pytest.mark.parametrize(
    ("card", "code"),
    [("V100 SXM2 16GB", "old-build"), ("GTX 1080", "old-build"), ("Arc A770", "not-trainable")],
)
def test_cards_that_torch_leaves_out_are_named(card, code):
    codes = {note.code for note in plan("gpt2", card).warnings}
    assert code in codes
    assert code in {note.code for note in can("gpt2", card).warnings}
    assert not codes & {"old-build", "not-trainable"} - {code}
    usual = {note.code for note in plan("gpt2", "RTX 4070").warnings}
    assert not usual & {"old-build", "not-trainable", "attention-guess"}
    assert not can("gpt2", "RTX 4070").warnings


@pytest.mark.parametrize("view", [[], ["--full"], ["--markdown"]])
def test_can_names_a_card_that_is_not_trained_on_in_every_form(view, capsys):
    assert main(["can", "gpt2", "--gpu", "Arc A770", "--lang", "en", *view]) == 0
    assert "onecard does not train on the Arc A770" in capsys.readouterr().out


def test_padding_the_vocabulary_has_its_share_of_the_time():
    note = next(n for n in plan("gpt2", "RTX 4070").warnings if n.code == "vocab-padding")
    slow, fast = (
        plan(load("gpt2", [f"vocab_size={size}"]), "RTX 4070").time.step_seconds.mid
        for size in (50257, 50304)
    )
    assert note.values["share"] == pytest.approx(1 - fast / slow)
    assert 0.05 < note.values["share"] < 0.3


def test_no_share_of_a_cpu_s_peak_is_above_one():
    share = plan("gpt2", "cpu").mfu.card
    assert share.low <= share.mid <= share.high <= 1


def test_a_file_that_computes_is_refused_naming_its_preset(tmp_path):
    file = tmp_path / "finetune_shakespeare.py"
    file.write_text("import time\nout_dir = 'out'\nwandb_run_name = 'ft-' + str(time.time())\n")
    with pytest.raises(UserError) as caught:
        load(file)
    assert "line 1" in caught.value.message
    assert "the preset finetune_shakespeare" in (caught.value.hint or "")
