"""Configs: read without being run, written back, and mistakes answered with a sentence."""

import ast
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onecard import plan
from onecard.config import KEYS, PRESETS, RunConfig, load, to_nanogpt, to_toml
from onecard.config.literal import read_python
from onecard.config.model_rules import evaluation_due, evaluations
from onecard.config.recipes import RECIPES
from onecard.config.run import HINTS

NANOGPT_SHAKESPEARE = """
# train a miniature character-level shakespeare model
out_dir = 'out-shakespeare-char'
eval_interval = 250 # keep frequent because we'll overfit
always_save_checkpoint = False
gradient_accumulation_steps = 1
batch_size = 64
learning_rate = 1e-3 # with baby networks can afford to go a bit higher
max_iters = 5000
lr_decay_iters = 5000 # make equal to max_iters usually
"""


def written(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_defaults_are_nanogpts():
    config = RunConfig()
    assert (config.n_layer, config.n_head, config.n_embd, config.block_size) == (12, 12, 768, 1024)
    assert (config.batch_size, config.gradient_accumulation_steps, config.max_iters) == (
        12,
        40,
        600_000,
    )
    assert (config.learning_rate, config.min_lr, config.warmup_iters, config.beta2) == (
        6e-4,
        6e-5,
        2000,
        0.95,
    )
    assert config.dropout == 0.0
    assert config.bias is False


def test_reads_a_nanogpt_file(tmp_path):
    config = load(written(tmp_path, "train_shakespeare_char.py", NANOGPT_SHAKESPEARE))
    assert config.out_dir == "out-shakespeare-char"
    assert config.learning_rate == 1e-3
    assert config.always_save_checkpoint is False


def test_arithmetic_and_earlier_names(tmp_path):
    source = "width = 64\nheads = 6\nn_head = heads\nn_embd = width * heads\ngradient_accumulation_steps = 5 * 8\n"
    config = load(written(tmp_path, "a.py", source))
    assert (config.n_embd, config.gradient_accumulation_steps) == (384, 40)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(("write", "suffix"), [(to_toml, ".toml"), (to_nanogpt, ".py")])
def test_presets_survive_both_formats(tmp_path, preset, write, suffix):
    config = load(preset)
    assert (
        load(
            written(tmp_path, "c" + suffix, write(config, head="a\nb", comments={"n_layer": "why"}))
        )
        == config
    )


TEXT = st.text(
    st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), min_size=1, max_size=30
)


@given(
    n_layer=st.integers(1, 1000),
    learning_rate=st.floats(1e-9, 100),
    max_iters=st.integers(1, 10**9),
    dropout=st.floats(0, 0.999),
    out_dir=TEXT,
    wandb_run_name=st.text(st.characters(blacklist_categories=["Cs"])),
    compile=st.booleans(),
    max_hours=st.none() | st.floats(0.01, 1e5),
    seed=st.integers(-(2**53), 2**53),
)
def test_any_config_survives_both_formats(tmp_path_factory, **values):
    base = {"min_lr": 0.0, "warmup_iters": 0, "lr_decay_iters": values["max_iters"]}
    config = RunConfig.from_values({**values, **base})
    folder = tmp_path_factory.mktemp("c")
    assert load(written(folder, "c.toml", to_toml(config))) == config
    assert load(written(folder, "c.py", to_nanogpt(config))) == config


def test_overrides_in_both_spellings():
    config = load(
        "gpt2",
        ["--n_layer=6", "batch_size=4", "--compile=False", "--learning_rate=1", "out_dir=here"],
    )
    assert (config.n_layer, config.batch_size, config.compile, config.out_dir) == (
        6,
        4,
        False,
        "here",
    )
    assert config.learning_rate == 1.0
    assert isinstance(config.learning_rate, float)


@pytest.mark.parametrize("word", ["none", "None", "'none'"])
def test_no_recompute_is_said_as_the_help_spells_it(word):
    assert load("gpt2", [f"--recompute={word}"]).recompute == "none"


def test_a_shorter_run_takes_its_schedule_along():
    config = load(None, ["--max_iters=1000"])
    assert (config.lr_decay_iters, config.warmup_iters) == (1000, 100)


def test_init_from_brings_the_released_shape():
    config = load("finetune_shakespeare")
    assert (config.n_layer, config.n_embd, config.bias, config.vocab_size) == (
        48,
        1600,
        True,
        50257,
    )


def test_a_recipe_brings_its_optimizer_and_a_file_may_overrule_it(tmp_path):
    modern = load("train_shakespeare_char", ["recipe=modern"])
    assert (modern.optimizer, modern.learning_rate, modern.tied, modern.warmup_iters) == (
        "muon",
        0.02,
        False,
        0,
    )
    assert modern.batch_size == 64  # the file's own, where the recipe says nothing
    assert (
        load("train_shakespeare_char", ["recipe=modern", "learning_rate=0.01"]).learning_rate
        == 0.01
    )
    assert load("train_shakespeare_char", ["recipe=gpt2"]) == load("train_shakespeare_char")
    file = tmp_path / "mine.toml"
    file.write_text('recipe = "modern"\ntied = true\n')
    assert load(file).tied
    assert load(file).optimizer == "muon"


def test_another_recipe_of_known_blocks_is_one_entry(monkeypatch):
    """Its values are set, and it is planned by its blocks; nothing asks for its name."""
    modern = RECIPES["modern"]
    slower = replace(modern, values={**modern.values, "learning_rate": 0.01})
    monkeypatch.setitem(RECIPES, "slower", slower)
    monkeypatch.setitem(HINTS, "recipe", Literal["gpt2", "modern", "slower"])
    config = load("gpt2", ["recipe=slower"])
    like = load("gpt2", ["recipe=modern", "learning_rate=0.01"])
    assert (config.learning_rate, config.changed()) == (
        0.01,
        {**like.changed(), "recipe": "slower"},
    )
    ours, theirs = (plan(run, "RTX 4070", data="fineweb-edu-10B") for run in (config, like))
    for part in ("params", "memory", "loss"):
        assert getattr(ours, part) == getattr(theirs, part)
    assert ours.time.step_seconds == theirs.time.step_seconds
    assert [note.code for note in ours.warnings] == [note.code for note in theirs.warnings]


@pytest.mark.parametrize("overrides", [[], ["tied=true", "optimizer=adamw", "learning_rate=6e-4"]])
def test_a_modern_config_is_written_and_read_back_the_same(tmp_path, overrides):
    config = load(None, ["recipe=modern", *overrides])
    file = tmp_path / "written.toml"
    file.write_text(to_toml(config), encoding="utf-8")
    assert load(file) == config


def test_the_keys_with_choices_are_listed_with_them():
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    assert "| `dtype` | `'auto'` | number format of the matmuls" in page
    assert "(auto, float32, bfloat16, float16) | speed memory |" in page
    assert "| `schedule` | `'cosine'` | how the rate decays" in page
    assert "(cosine, linear, wsd) | learning |" in page


def test_a_resume_may_change_what_does_not_change_the_run():
    free = {key for key in KEYS if RunConfig.facts(key).may_change_on_resume}
    assert {"out_dir", "eval_interval", "max_hours", "compile", "recompute", "device"} <= free
    fixed = ("n_layer", "batch_size", "learning_rate", "dataset", "seed", "dropout", "optimizer")
    assert not free & {*fixed, "vocab_size", "mask_documents", "schedule", "init_from"}


def test_shape_is_what_the_weights_depend_on():
    """Exactly the keys that change the parameters, their layout or what the model is."""
    base = RunConfig(vocab_size=512, n_embd=64, n_head=4, n_layer=2)
    others = {"n_layer": 3, "n_head": 8, "n_embd": 128, "vocab_size": 576, "block_size": 512}
    others |= {"bias": True, "tied": False, "recipe": "modern"}
    assert {key for key in KEYS if "shape" in RunConfig.facts(key).affects} == set(others)
    for key, value in others.items():
        assert base.replace(**{key: value}).shape != base.shape, key


@pytest.mark.parametrize(
    ("size", "padded"), [(65, 65), (999, 999), (1000, 1024), (5001, 5056), (50257, 50304), (64, 64)]
)
def test_one_rule_for_padding_the_vocabulary(size, padded):
    assert RunConfig().for_vocabulary(size).vocab_size == padded
    assert RunConfig(vocab_size=7).for_vocabulary(size).vocab_size == 7


@pytest.mark.parametrize(
    ("steps", "interval", "count"), [(2000, 500, 4), (2001, 500, 5), (499, 500, 1), (500, 500, 1)]
)
def test_evaluations_are_counted_as_the_loop_makes_them(steps, interval, count):
    config = load(None, [f"max_iters={steps}", f"eval_interval={interval}"])
    assert evaluations(config) == count
    assert sum(evaluation_due(config, step) for step in range(1, steps + 1)) == count


def test_the_keys_can_be_listed(capsys):
    from onecard.cli import main

    with pytest.raises(SystemExit, match="0"):
        main(["plan", "--keys"])
    shown = capsys.readouterr().out
    assert [line.split()[0] for line in shown.splitlines()] == list(KEYS)
    assert "size of a micro-batch, in sequences" in shown


@pytest.mark.parametrize("write", [to_toml, to_nanogpt])
def test_a_written_config_has_what_changed_and_what_is_commented_on(write):
    config = RunConfig(n_embd=256, n_head=8)
    text = write(config, comments={"n_layer": "as in GPT-2", "max_hours": "none"})
    lines = dict(line.split(" = ", 1) for line in text.splitlines())
    assert lines == {"n_layer": "12  # as in GPT-2", "n_head": "8", "n_embd": "256"}


def test_a_warm_up_may_be_as_long_as_the_run():
    config = load("gpt2", ["max_iters=100", "warmup_iters=100", "lr_decay_iters=100"])
    assert config.warmup_iters == config.max_iters


def test_configs_are_parsed_by_one_thread_at_a_time(monkeypatch):
    # Python 3.11 and 3.12 raise SystemError where two threads are inside ast.parse (python/cpython#106905)
    parse, inside, most = ast.parse, [], []

    def slow_parse(*args, **named):
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.005)
        inside.pop()
        return parse(*args, **named)

    monkeypatch.setattr(ast, "parse", slow_parse)
    with ThreadPoolExecutor(4) as pool:
        read = list(pool.map(lambda _: read_python("n_layer = 6", "a.py"), range(12)))
    assert read == [{"n_layer": 6}] * 12
    assert max(most) == 1
