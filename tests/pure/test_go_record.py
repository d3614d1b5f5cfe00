"""What `onecard go` keeps in its folder: an interrupted one continues, another question does not."""

from dataclasses import replace

import pytest

from onecard.cli.go_record import FILE, Expectation, Progress, Question, recall
from onecard.errors import UserError

QUESTION = Question(("hours", "20"), "stdlib", None, None, None, "RTX 4070", ("n_layer=4",))
EXPECTED = Expectation(
    words=["--gpu", "RTX 4070"],
    card="RTX 4070",
    source=None,
    data="data/stdlib",
    tokenizer=None,
    fetch_tokens=None,
    params=1000,
    tokens=10_000,
    memory_bytes=1e9,
    train_seconds=60.0,
    data_seconds=1.0,
    download_bytes=0,
    data_bytes=20_000,
    kwh=0.1,
    cost=(0.02, "USD"),
    loss=(3.0, 3.1, 3.2),
    device="cuda",
)


def test_the_same_question_continues_where_it_was(tmp_path):
    assert recall(tmp_path, QUESTION) is None
    Progress(tmp_path, QUESTION, EXPECTED, []).mark("data")
    found = recall(tmp_path, QUESTION)
    assert found is not None
    assert (found.question, found.expected) == (QUESTION, EXPECTED)
    assert (found.done("data"), found.done("train")) == (True, False)


def test_another_question_needs_another_folder(tmp_path):
    Progress(tmp_path, QUESTION, EXPECTED, []).write()
    with pytest.raises(UserError) as error:
        recall(tmp_path, replace(QUESTION, limit=("hours", "10")))
    was = "--gpu RTX 4070 --hours 20 --set n_layer=4 --data stdlib"
    assert error.value.message == f"{tmp_path} was started with other options ({was})"


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"question": {}, "expected": {}}', "\0"])
def test_a_damaged_record_is_a_sentence(tmp_path, content):
    (tmp_path / FILE).write_text(content)
    with pytest.raises(UserError, match="is damaged"):
        recall(tmp_path, QUESTION)
