"""Configs: read without being run, written back, and mistakes answered with a sentence."""

import ast
import os
import string
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onecard.config import KEYS, PRESETS, RunConfig, keys_affecting, load, to_nanogpt, to_toml
from onecard.config.literal import read_python
from onecard.config.model_rules import evaluation_due, evaluations
from onecard.errors import UserError

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


@pytest.mark.parametrize(
    ("source", "line", "what"),
    [
        ("import time\n", 1, "import"),
        ("n_layer = 2\nwandb_run_name = 'ft-' + str(time.time())", 2, "call"),
        ("n_layer = 2\n\nprint('x')", 3, "call"),
        ("n_layer = [1]", 1, "List"),
        ("for x in y: pass", 1, "For"),
        ("n_layer = m", 1, "no value yet"),
        ("n_layer = 2 ** 999999999", 1, "power"),
        ("n_layer = 'a' * 10**9", 1, "not a number"),
        ("n_layer = 1 / 0", 1, "no result"),
        ("n_layer = 10 ** 30", 1, "10^18"),
        ("n_layer = (-8) ** 0.5", 1, "no result"),
        ("n_layer == 2", 1, "Expr"),
        ("def f(): pass", 1, "FunctionDef"),
        ("n_layer = __import__('os')", 1, "call"),
        ("n_layer = (lambda: 3)()", 1, "call"),
        ("n_layer = 12\nn_layer", 2, "Expr"),
    ],
)
def test_anything_else_is_refused_naming_the_line(tmp_path, source, line, what):
    with pytest.raises(UserError) as caught:
        load(written(tmp_path, "evil.py", source))
    assert f"evil.py, line {line}" in caught.value.message
    assert what in str(caught.value)


def test_nothing_is_executed(tmp_path):
    trap = tmp_path / "ran"
    source = f"open({str(trap)!r}, 'w').write('x')\n"
    with pytest.raises(UserError):
        load(written(tmp_path, "evil.py", source))
    assert not trap.exists()


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


@pytest.mark.parametrize(
    ("overrides", "message", "hint"),
    [
        (["--n_layers=6"], "unknown config key 'n_layers'", "n_layer"),
        (["--n_layer=six"], "n_layer must be a whole number", "12"),
        (["--n_layer=2.5"], "n_layer must be a whole number", "12"),
        (["--n_layer=True"], "n_layer must be a whole number", "12"),
        (["--compile=1"], "compile must be True or False", "True"),
        (["--n_embd=100"], "not divisible", "n_head = 10"),
        (["--max_iters=100", "--warmup_iters=200"], "longer than the run", "warmup_iters = 2"),
        (["--n_layer=0"], "at least 1", "n_layer"),
        (["--batch_size=-4"], "at least 1", "batch_size"),
        (["--n_embd=76800000"], "beyond anything", "200,000"),
        (["--n_embd=200001", "--n_head=1"], "beyond anything", "200,000"),
        (["--dropout=1.5"], "dropout", "0"),
        (["--learning_rate=0"], "learning_rate", "6e-4"),
        (["--learning_rate=1e400"], "learning_rate", ""),
        (["--min_lr=1"], "min_lr", "tenth"),
        (["--dtype=bf16"], "dtype must be", "bfloat16"),
        (["--recipe=llama"], "recipe must be gpt2 or modern", "gpt2"),
        (["--seed=1e30"], "seed", ""),
        (["--n_layer"], "--n_layer", "--n_layer=value"),
        (["--wat"], "--wat", "--key=value"),
        (["--out_dir="], "out_dir", "out"),
        (["--device=xpu"], "device = 'xpu'", "cuda"),
        (["--device=cuda:one"], "device = 'cuda:one'", "cuda:1"),
    ],
)
def test_mistakes_get_a_sentence_and_a_hint(overrides, message, hint):
    with pytest.raises(UserError) as caught:
        load("gpt2", overrides)
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.py", b"\x00\x01\x02", "binary"),
        ("a.py", b"n_layer = 2 # \xff\xfe", "UTF-8"),
        ("a.py", "n_layer = = 2", "line 1"),
        ("a.py", "(" * 5000, "line 1"),
        ("a.toml", "n_layer = ", "not TOML"),
        ("a.toml", "[model]\nn_layer = 2", "table"),
        ("a.toml", "n_layer = [2]", "list"),
        ("a.toml", "n_layers = 2", "unknown config key"),
        ("a.py", "x" * 2_000_000, "too large"),
    ],
)
def test_bad_files(tmp_path, name, content, message):
    with pytest.raises(UserError, match=message):
        load(written(tmp_path, name, content))


def test_missing_files_and_folders(tmp_path):
    with pytest.raises(UserError, match="no file"):
        load(tmp_path / "absent.py")
    with pytest.raises(UserError, match="no config file or preset"):
        load("absent.py")
    with pytest.raises(UserError, match="folder"):
        load(tmp_path)
    with pytest.raises(UserError) as caught:
        load("gpt2-xxl")
    assert "gpt2-xl" in (caught.value.hint or "")


@given(st.text(alphabet=string.printable, max_size=200))
def test_any_text_is_read_or_refused(source):
    try:
        read_python(source, "any.py", KEYS)
    except UserError as error:
        assert error.message


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


@pytest.mark.parametrize("overrides", [[], ["tied=true", "optimizer=adamw", "learning_rate=6e-4"]])
def test_a_modern_config_is_written_and_read_back_the_same(tmp_path, overrides):
    config = load(None, ["recipe=modern", *overrides])
    file = tmp_path / "written.toml"
    file.write_text(to_toml(config), encoding="utf-8")
    assert load(file) == config


def test_a_toml_number_of_thousands_of_digits(tmp_path):
    with pytest.raises(UserError, match="not TOML"):
        load(written(tmp_path, "long.toml", "n_layer = " + "9" * 6000))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes with a name are a thing of Unix")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.py")
    with pytest.raises(UserError, match="not a file"):
        load(tmp_path / "pipe.py")


@pytest.mark.parametrize(
    ("name", "hint"),
    [("GPT2", "gpt2"), ("./gpt2-xxl", "gpt2-xl"), ("", "preset"), ("  ", "preset")],
)
def test_names_that_are_nearly_presets(name, hint):
    with pytest.raises(UserError) as caught:
        load(name)
    assert hint in (caught.value.hint or "")


def test_a_stray_word_is_not_taken_for_a_key():
    with pytest.raises(UserError) as caught:
        load("gpt2", ["extra"])
    assert "beta" not in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("asked", "meant"),
    [("fp16", "float16"), ("half", "float16"), ("bf16", "bfloat16"), ("FP32", "float32")],
)
def test_short_names_of_dtypes_are_understood_in_the_hint(asked, meant):
    with pytest.raises(UserError) as error:
        RunConfig(dtype=asked)
    assert error.value.hint == f"did you mean {meant}?"


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
    assert set(keys_affecting("shape")) == set(others)
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


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("n_layer = ", "is not TOML"),
        ("[a]\nb = 1", "'a' is a table or a list"),
        ("x = " + "9" * 5000, "a value in it is too long or too deep"),
    ],
)
def test_each_kind_of_bad_toml_has_its_own_sentence(tmp_path, text, part):
    path = tmp_path / "a.toml"
    path.write_text(text)
    with pytest.raises(UserError, match=part):
        load(path)
    assert ("too long" in part) == ("9999" in text)


def test_a_word_that_is_no_override_names_what_it_could_be():
    from onecard.config import parse_overrides

    for word, hint in (
        ("--n_layer", "--n_layer=value"),
        ("--n_layr", "did you mean n_layer"),
        ("words", "write overrides as --key=value"),
    ):
        with pytest.raises(UserError) as caught:
            parse_overrides([word])
        assert hint in caught.value.hint


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


def test_the_largest_value_that_is_named_is_accepted():
    assert load("train_gpt2", ["n_embd=200_000", "n_head=1"]).n_embd == 200_000


@pytest.mark.parametrize(
    ("name", "why"),
    [("x" * 300 + ".toml", "File name too long"), ("a\0b.toml", "embedded null byte")],
)
def test_a_path_that_no_system_takes(name, why):
    with pytest.raises(UserError) as error:
        load(name)
    assert error.value.message == f"cannot read {name}: {why}"
