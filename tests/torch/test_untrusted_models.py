"""Untrusted models, damaged piece by piece: checkpoints, nanoGPT's ckpt.pt, folders as the hub has them.

A result or one sentence from every reader, in bounded time, nothing executed. Some hundred cases each in the ordinary run,
thousands in the long one.
"""

import contextlib
import json
import os
import random
import shutil
import sys
import time
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from runs_in_tests import TINY

from onecard.errors import OnecardError, UserError
from onecard.export.write import export
from onecard.model import checkpoint
from onecard.model.checkpoint_state import checksum
from onecard.model.opening import open_model
from onecard.model.tensor_file import checksum_of, write_tensors
from onecard.model.weights import read_weights
from onecard.train.optim.sharded_rows import Slices

sys.path.append(os.path.join(os.path.dirname(__file__), "..", "pure"))
from test_data_fuzz import damaged_bytes, damaged_json, odd_value

QUICK, LONG = 40, 3000
PARTS = [checkpoint.part_name(checkpoint.MODEL, index, 2) for index in range(2)]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The same small model as a checkpoint, one in parts, a hub folder and a ckpt.pt, by name."""
    from onecard.data import prepare
    from onecard.train.run.loop import train

    place = tmp_path_factory.mktemp("models")
    (place / "text.txt").write_text("the cat sat on the mat " * 60)
    prepare([str(place / "text.txt")], place / "data", tokenizer="chars", workers=1)
    config = TINY.replace(
        **{"n_layer": 1, "n_embd": 8, "max_iters": 1, "lr_decay_iters": 1, "warmup_iters": 0},
        **{"eval_interval": 1, "eval_iters": 1, "vocab_size": None, "block_size": 8},
        **{"dataset": str(place / "data"), "out_dir": str(place / "run")},
    )
    train(config)
    in_parts(shutil.copytree(place / "run", place / "parts"))
    export(place / "run", "hf", place / "hub")
    export(place / "run", "nanogpt", place / "nanogpt")
    return place


def in_parts(folder: Path, count: int = 2) -> None:
    """The run's checkpoint as so many processes that share the model out would have written it."""
    newest = checkpoint.checkpoints(folder)[-1]
    state, *whole = checkpoint.read(newest)
    shapes = {name: tuple(tensor.shape) for name, tensor in whole[0].items()}
    files, names = {}, [name for tensors in whole for name in tensors]
    for index in range(count):
        slices = Slices.cut(shapes, index, count)
        for file, tensors in zip((checkpoint.MODEL, checkpoint.OPTIMIZER), whole, strict=True):
            spans = {name: slices.span(name, bits=32) for name in tensors}
            kept = {
                name: tensor if (span := spans[name]) is None else tensor[span.start : span.stop]
                for name, tensor in tensors.items()
                if index == 0 or spans[name] is not None
            }
            name = checkpoint.part_name(file, index, count)
            files[name] = write_tensors(newest / name, kept)
    (newest / checkpoint.MODEL).unlink()
    (newest / checkpoint.OPTIMIZER).unlink()
    parts = {"schema": checkpoint.SCHEMA_PARTS, "parts": count, "files": files}
    write_state(newest, {**state, **parts, "tensors": slices.places(names, bits=32)})


def write_state(folder: Path, state: dict) -> None:
    whole = {**state, "checksum": checksum(state)}
    (folder / checkpoint.STATE).write_text(json.dumps(whole))


def open_sealed(folder: Path) -> None:
    """With checksums that fit what is there, as somebody would write it who means harm."""
    newest = checkpoint.checkpoints(folder)[-1]
    state = json.loads((newest / checkpoint.STATE).read_text())
    del state["checksum"]
    for name, known in state["files"].items():
        known["sha256"] = checksum_of(newest / name)
    write_state(newest, state)
    open_run(folder)


def open_run(folder: Path) -> None:
    newest = checkpoint.checkpoints(folder)[-1]
    try:
        checkpoint.read(newest)
    except checkpoint.CorruptError as error:
        assert "\n" not in str(error)
    open_model(str(folder), "cpu")


def open_hub(folder: Path) -> None:
    sampler = open_model(str(folder), "cpu")
    sampler.tokenizer.decode(sampler.encode("the cat"))


def open_nanogpt(folder: Path) -> None:
    read_weights(str(folder))
    with contextlib.suppress(UserError):  # the file does not say which tokeniser it has
        open_model(str(folder), "cpu")


def damaged_tensors(content: bytes):
    """A safetensors file with its bytes damaged, or its header made again with odd values."""
    length = int.from_bytes(content[:8], "little")
    header, body = json.loads(content[8 : 8 + length]), content[8 + length :]
    of_bytes, of_header = damaged_bytes(content), damaged_json(header)

    def damage(rng: random.Random) -> bytes:
        if rng.random() < 0.5:
            return of_bytes(rng)
        text = of_header(rng)
        size = len(text) if rng.random() < 0.9 else rng.choice([0, 2**40, 2**63])
        return size.to_bytes(8, "little") + text + body

    return damage


def damaged_state(content: bytes):
    """state.json with odd values and a checksum that fits."""
    whole = json.loads(content)
    del whole["checksum"]
    damage_value = damaged_json(whole)

    def damage(rng: random.Random) -> bytes:
        state = json.loads(damage_value(rng))
        if not isinstance(state, dict) or rng.random() < 0.1:
            return content[: rng.randrange(len(content))]
        return json.dumps({**state, "checksum": checksum(state)}).encode()

    return damage


def damaged_pickle(content: bytes):
    """A ckpt.pt with damaged bytes, or with odd values in its place."""
    of_bytes = damaged_bytes(content)

    def damage(rng: random.Random) -> bytes:
        if rng.random() < 0.6:
            return of_bytes(rng)
        import io

        saved = torch.load(io.BytesIO(content), weights_only=True)
        at = rng.choice([saved, saved["model"], saved["model_args"]])
        at[rng.choice(list(at))] = rng.choice(
            [
                odd_value(rng),
                torch.zeros(0),
                torch.full((3,), float("nan")),
                torch.zeros(2, 2).int(),
            ]
        )
        out = io.BytesIO()
        torch.save(saved, out)
        return out.getvalue()

    return damage


# name → (folder, file in it, how it is damaged, who reads it)
CASES = {
    "checkpoint weights": ("run", checkpoint.MODEL, damaged_tensors, open_run),
    "checkpoint weights, sealed": ("run", checkpoint.MODEL, damaged_tensors, open_sealed),
    "checkpoint moments, sealed": ("run", checkpoint.OPTIMIZER, damaged_tensors, open_sealed),
    "checkpoint state": ("run", checkpoint.STATE, damaged_state, open_run),
    "first part, sealed": ("parts", PARTS[0], damaged_tensors, open_sealed),
    "second part, sealed": ("parts", PARTS[1], damaged_tensors, open_sealed),
    "state of parts": ("parts", checkpoint.STATE, damaged_state, open_run),
    "run's config": ("run", "config.toml", damaged_bytes, open_run),
    "hub weights": ("hub", "model.safetensors", damaged_tensors, open_hub),
    "hub config": ("hub", "config.json", lambda c: damaged_json(json.loads(c)), open_hub),
    "hub tokeniser": ("hub", "tokenizer.json", lambda c: damaged_json(json.loads(c)), open_hub),
    "nanoGPT": ("nanogpt", "ckpt.pt", damaged_pickle, open_nanogpt),
}


def run(name: str, models: Path, cases: int) -> None:
    folder, file, make_damage, reader = CASES[name]
    place = models / f"damaged {name}"
    shutil.copytree(models / folder, place, dirs_exist_ok=True)
    (path,) = [p for p in place.rglob(file) if p.is_file()]
    good = path.read_bytes()
    reader(place)
    damage = make_damage(good)

    @settings(
        max_examples=cases, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(st.integers(0, 2**64))
    def check(seed: int) -> None:
        path.write_bytes(damage(random.Random(seed)))
        began = time.thread_time()
        try:
            reader(place)
        except OnecardError as error:
            assert error.message
            assert "\n" not in error.message, error.message
        assert time.thread_time() - began < 20

    check()


@pytest.mark.parametrize("name", CASES)
def test_a_damaged_model_gives_a_result_or_a_sentence(name, models):
    run(name, models, QUICK)


@pytest.mark.parametrize("part", PARTS)
def test_a_part_with_a_number_in_the_place_of_rows_is_damage(part, models, tmp_path):
    place = shutil.copytree(models / "parts", tmp_path / "parts")
    (path,) = place.rglob(part)
    write_tensors(path, {"transformer.wte.weight": torch.tensor(1.0)})
    with pytest.raises(OnecardError, match="none of the 1 checkpoints"):
        open_sealed(place)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", CASES)
def test_damaged_models_at_length(name, models):
    run(name, models, LONG)
