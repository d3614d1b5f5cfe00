"""Mistakes in configs: nothing is run, and each is answered with a sentence and a hint."""

import os
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_config import written

from onecard.config import KEYS, RunConfig, load
from onecard.config.literal import read_python
from onecard.errors import UserError


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
