"""What plan() says beside its figures: warnings, whether it fits, and words that suit the machine."""

import pytest

from onecard import find_gpu, load, plan
from onecard.facts.gpus import all_gpus


@pytest.mark.parametrize(
    ("changes", "code", "card"),
    [
        ({"dtype": "bfloat16"}, "bf16-emulated", "T4"),
        ({"vocab_size": 50257}, "vocab-padding", "RTX 4070"),
        ({"gradient_accumulation_steps": 1}, "batch-small", "RTX 4070"),
        ({"gradient_accumulation_steps": 4000}, "batch-huge", "RTX 4070"),
        ({"learning_rate": 0.01}, "learning-rate", "RTX 4070"),
        ({"learning_rate": 0.1}, "learning-rate-unknown", "RTX 4070"),
        ({"optimizer": "muon"}, "learning-rate-unknown", "RTX 4070"),  # AdamW's 6e-4
        ({"learning_rate": 1e-5, "min_lr": 1e-6}, "learning-rate", "RTX 4070"),
        ({"max_iters": 10**6, "lr_decay_iters": 10**6}, "epochs", "RTX 4070"),
        ({"warmup_iters": 4000}, "warmup", "RTX 4070"),
        ({"optimizer": "muon", "optimizer_state": "4bit"}, "muon-4bit", "RTX 4070"),
        ({"lr_decay_iters": 600_000}, "schedule-unfinished", "RTX 4070"),
        ({"n_embd": 672}, "head-width", "RTX 4070"),
        ({"dtype": "float32"}, "fp32-slow", "RTX 4070"),
        ({"eval_only": True}, "eval-only", "RTX 4070"),
        ({}, "compile-old", "GTX 1080 Ti"),
        ({}, "laptop", "RTX 4060 Laptop"),
    ],
)
def test_unwise_choices_are_named(changes, code, card):
    config = load("fineweb-124M-12gb")
    assert code in {note.code for note in plan(config.replace(**changes), card).warnings}
    if changes:
        assert code not in {note.code for note in plan(config, "RTX 4070").warnings}


def test_cards_whose_facts_are_unsure_say_so():
    unsure = next(d for d in all_gpus() if d.confidence == "C" and "Laptop" not in d.name)
    for card, message in ((unsure, True), (find_gpu("RTX 4070"), False), (find_gpu("cpu"), False)):
        warnings = plan(load("gpt2"), card).warnings
        assert ("card-unsure" in {note.code for note in warnings}) == message, card.name


def test_a_tenth_of_the_run_is_not_too_long_a_warm_up():
    config = load("fineweb-124M-12gb").replace(max_iters=1000, lr_decay_iters=1000)
    for steps, message in ((100, False), (101, True)):
        warnings = plan(config.replace(warmup_iters=steps), "RTX 4070").warnings
        assert ("warmup" in {note.code for note in warnings}) == message


def test_what_does_not_fit_says_what_to_change():
    planned = plan(load("fineweb-124M-80gb"), "RTX 4070")
    assert planned.memory.fits == "no"
    assert planned.memory.changes
    assert plan(load("fineweb-124M-80gb"), "A100 80GB").memory.fits == "yes"


def test_memory_taken_by_the_desktop_is_subtracted():
    from dataclasses import replace

    card = find_gpu("RTX 4070")
    config = load("fineweb-41M-12gb")
    assert plan(config, replace(card, taken_bytes=0)).memory.fits == "yes"
    busy = plan(config, replace(card, taken_bytes=8 * 2**30)).memory
    assert (busy.fits, busy.desktop_bytes) == ("no", 8 * 2**30)


def test_fits_depends_on_both_ends_of_the_range():
    from dataclasses import replace

    card, config = find_gpu("RTX 4070"), load("fineweb-124M-12gb")
    need = plan(config, card).memory.process_bytes
    for room, fits in (
        (need.high + 1, "yes"),
        (need.high - 1, "tight"),
        (need.low + 1, "tight"),
        (need.low - 1, "no"),
    ):
        small = replace(card, usable_bytes=round(room) + 2**30, taken_bytes=2**30)
        assert plan(config, small).memory.fits == fits


def test_every_size_is_compared_with_its_gpt2():
    for preset in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"):
        for data in ("fineweb-10B", "fineweb-edu-10B", "openwebtext"):
            message = plan(load(preset), "A100 80GB", data=data).loss.beats_gpt2
            assert message.code in ("beats-gpt2", "near-gpt2", "behind-gpt2")
            assert ("estimated from" in str(message)) == (
                data == "fineweb-edu-10B" and preset != "gpt2"
            )


def test_the_words_are_of_the_machine_planned_for():
    from onecard.report import show
    from onecard.report.plan_view import plan_document

    def shown(card, preset="gpt2"):
        return show(plan_document(plan(load(preset), card), explain=True), "markdown", lang="en")

    assert "nvidia-smi" in shown("RTX 4070")
    assert "CUDA context" in shown("RTX 4070")
    assert "As rocm-smi" in shown("RX 7900 XTX")
    on_cpu = shown("cpu", "train_shakespeare_char")
    assert "As nvidia-smi" not in on_cpu
    assert "CUDA context |" not in on_cpu
    assert "of its 0 TFLOPS" not in on_cpu
    assert "in use by other programs" in on_cpu
    assert "runs from scratch" in shown("RTX 4070", "eval_gpt2")


def test_dropout_is_remarked_where_there_is_some():
    def codes(**changes):
        run = load("fineweb-41M-12gb").replace(max_iters=5000, lr_decay_iters=5000, **changes)
        return [note.code for note in plan(run, "RTX 4070").warnings]

    assert "dropout" in codes(dropout=0.1)
    assert "dropout" not in codes(dropout=0.0)
