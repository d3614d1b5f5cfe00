"""A run is what its folder says: what would make it another one is refused, or named, recorded and shown."""

import dataclasses
import json
import os
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from runs_in_tests import events, weights
from test_resume import StopAt

from onecard.cli import main
from onecard.config import load, to_toml
from onecard.errors import RunFailure, UserError
from onecard.model.checkpoint import CorruptError, checkpoints, read_state
from onecard.model.checkpoint_state import checksum
from onecard.model.weights import load_weights
from onecard.train.run.identity import changes_since
from onecard.train.run.loop import train
from run_folders import new_folder


@pytest.fixture
def stopped(config):
    train(config, view=StopAt(5))
    return config


def everything(folder):
    return {
        p: (p.read_bytes(), p.stat().st_mtime_ns) for p in Path(folder).rglob("*") if p.is_file()
    }


@pytest.mark.parametrize(
    "change",
    [
        {"learning_rate": 2e-2},
        {"seed": 1},
        {"dropout": 0.2},
        {"gradient_accumulation_steps": 4},
        {"max_iters": 12},
        {"weight_decay": 0.0},
        {"schedule": "wsd", "decay_fraction": 0.6},
        {"learning_rate": 2e-2, "beta2": 0.9},
    ],
    ids=str,
)
def test_a_change_is_refused_unless_named(stopped, change):
    before = everything(stopped.out_dir)
    other = stopped.replace(**change)
    with pytest.raises(UserError, match="another one") as caught:
        train(other, resume=True)
    assert all(key in caught.value.message for key in change)
    assert f"--change {','.join(key for key in other.changed() if key in change)}" in (
        caught.value.hint or ""
    ) or all(key in (caught.value.hint or "") for key in change)
    after = everything(stopped.out_dir)
    assert {p: after[p] for p in after if p.name != "run.lock"} == {
        p: before[p] for p in before if p.name != "run.lock"
    }


def test_a_named_change_is_recorded_saved_and_shown(stopped, capsys):
    other = stopped.replace(learning_rate=2e-2)
    assert train(other, resume=True, change=["learning_rate"], view=StopAt(6)).step == 6
    found = [event for event in events(stopped.out_dir) if event["event"] == "config_changed"]
    assert [(e["step"], e["key"], e["before"], e["after"]) for e in found] == [
        (5, "learning_rate", 0.01, 0.02)
    ]
    assert load(Path(stopped.out_dir) / "config.toml").learning_rate == 2e-2
    with pytest.raises(UserError, match=r"learning_rate: 0.02 → 0.01"):
        train(stopped, resume=True)  # now the new value is the run's own
    assert train(other, resume=True).state == "finished"
    assert len([e for e in events(stopped.out_dir) if e["event"] == "config_changed"]) == 1
    assert main(["compare", stopped.out_dir, stopped.out_dir]) == 0
    assert "changed learning_rate from 0.01 to 0.02" in " ".join(capsys.readouterr().out.split())


def test_a_change_lasts_through_a_kill_right_after_it(stopped):
    """The change is in a checkpoint before its first step, so a crash does not ask for it again."""

    class Killed(BaseException):
        pass

    class KillAtOnce(StopAt):
        def step(self, fields):
            raise Killed

    other = stopped.replace(learning_rate=2e-2)
    with pytest.raises(Killed):
        train(other, resume=True, change=["learning_rate"], view=KillAtOnce(0))
    assert train(other, resume=True).state == "finished"
    assert any(e["event"] == "config_changed" for e in events(stopped.out_dir))


def test_output_speed_and_the_split_of_the_batch_may_change(stopped):
    other = stopped.replace(
        eval_interval=5,
        keep_checkpoints=3,
        max_hours=1.0,
        batch_size=8,
        gradient_accumulation_steps=1,
        chunked_loss=True,
        decay_fraction=0.6,  # which only schedule = "wsd" reads
        init_from="resume",
    )
    assert train(other).state == "finished"
    found = {e["key"] for e in events(stopped.out_dir) if e["event"] == "setting_changed"}
    assert {"eval_interval", "max_hours", "batch_size"} <= found
    assert load(Path(stopped.out_dir) / "config.toml").eval_interval == 5


def test_a_resume_with_the_same_config_leaves_config_toml_alone(stopped):
    path = Path(stopped.out_dir) / "config.toml"
    before = path.read_bytes(), path.stat().st_mtime_ns
    train(stopped, resume=True)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


def test_other_data_is_noticed_by_content(stopped, tmp_path):
    data = Path(stopped.dataset)
    moved = data.rename(tmp_path / "moved")
    tokens = np.fromfile(moved / "train.bin", "<u2")
    tokens[[100, 101]] = tokens[[101, 100]] if tokens[100] != tokens[101] else [1, 2]
    tokens.tofile(moved / "train.bin")  # the same size
    other = stopped.replace(dataset=str(moved))
    with pytest.raises(UserError, match="dataset"):
        train(other, resume=True)
    assert train(other, resume=True, change=["dataset"]).state == "finished"


def test_the_same_data_elsewhere_is_the_same_run(stopped, tmp_path):
    moved = Path(stopped.dataset).rename(tmp_path / "moved")
    assert train(stopped.replace(dataset=str(moved)), resume=True).state == "finished"


def test_another_tokeniser_is_noticed(stopped):
    path = Path(stopped.dataset) / "meta.pkl"
    meta = pickle.loads(path.read_bytes())
    meta["itos"][0], meta["itos"][1] = meta["itos"][1], meta["itos"][0]
    path.write_bytes(pickle.dumps(meta))
    with pytest.raises(UserError, match="tokenizer"):
        train(stopped, resume=True)
    assert train(stopped, resume=True, change=["tokenizer"]).state == "finished"


def test_change_at_the_command_line(stopped, tmp_path, capsys):
    out = f"--out_dir={stopped.out_dir}"
    words = ["train", "--resume", out, "--learning_rate=0.02", "--dropout=0.0", "--quiet"]
    assert main(words) == 2
    assert "--change learning_rate,dropout" in capsys.readouterr().err.replace(
        "dropout,learning_rate", "learning_rate,dropout"
    )
    assert main([*words, "--change", "learning_rat"]) == 2
    assert "learning_rate" in capsys.readouterr().err
    assert main(["train", "--change", "learning_rate", f"--out_dir={tmp_path / 'new'}"]) == 2
    assert main([*words, "--change", "learning_rate,dropout"]) == 0


@pytest.mark.parametrize("case", ["nowhere", "empty", "no_checkpoint", "config"])
def test_a_resume_that_finds_nothing_is_an_error(config, tmp_path, capsys, case):
    folder = tmp_path / "nosuch"
    words = ["train", "--resume", f"--out_dir={folder}"]
    if case == "empty":
        folder.mkdir()
    elif case == "no_checkpoint":
        record = new_folder(folder, config.replace(out_dir=str(folder)))
        record.begin()
        record.end("stopped")
        (folder / "log.jsonl").write_text('{"kind": "start"}\n')
    elif case == "config":
        file = tmp_path / "tiny.toml"
        file.write_text(to_toml(config))
        words = ["train", str(file), "--resume", f"--out_dir={folder}"]
    before = everything(folder)
    assert main(words) == 2
    err = capsys.readouterr().err
    assert "nothing to resume" in err
    assert str(folder) in err
    assert everything(folder) == before
    assert folder.exists() == (case in ("empty", "no_checkpoint"))
    with pytest.raises(UserError, match="nothing to resume"):
        train(config.replace(out_dir=str(folder)), resume=True)


def test_weights_that_are_not_finite_are_never_a_good_checkpoint(stopped, capsys):
    """An older onecard saved them; a resume, a sample and a new start all go to the one before."""
    newest = checkpoints(Path(stopped.out_dir))[-1]
    assert newest.name == "step_00000005"
    remake(newest, lambda tensors: tensors["transformer.wte.weight"].fill_(float("nan")))
    assert main(["sample", stopped.out_dir, "--tokens", "3", "--device", "cpu"]) == 0
    assert "transformer.wte.weight in model.safetensors is not finite" in capsys.readouterr().err
    outcome = train(stopped, resume=True)
    assert outcome.state == "finished"
    message = [e["text"] for e in events(stopped.out_dir) if "is not finite" in e["text"]]
    assert message
    assert message[0].startswith("checkpoint step_00000005 is damaged")
    assert all(torch.isfinite(t).all() for t in weights(stopped.out_dir).values())


def remake(folder, spoil):
    """A checkpoint with other weights and with checksums that fit them."""
    import hashlib

    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    spoil(tensors)
    save_file(tensors, folder / "model.safetensors")
    state = json.loads((folder / "state.json").read_text())
    content = (folder / "model.safetensors").read_bytes()
    state["files"]["model.safetensors"]["sha256"] = hashlib.sha256(content).hexdigest()
    del state["checksum"]
    (folder / "state.json").write_text(json.dumps({**state, "checksum": checksum(state)}))


def test_weights_that_became_infinite_are_not_saved(config, monkeypatch):
    from onecard.train.run import setup

    made, make = [], setup.make_model
    monkeypatch.setattr(setup, "make_model", lambda c: made.append(make(c)) or made[-1])

    class Spoil(StopAt):
        def step(self, fields):
            if fields["step"] == 6:
                with torch.no_grad():
                    made[0].transformer.h[0].mlp.c_fc.weight[0, 0] = float("inf")
            super().step(fields)

    with pytest.raises(RunFailure):
        train(config, view=Spoil(6))
    assert checkpoints(Path(config.out_dir))[-1].name == "step_00000004"
    failed = [e for e in events(config.out_dir) if e["event"] == "checkpoint_failed"]
    assert "transformer.h.0.mlp.c_fc.weight is not finite" in failed[0]["text"]


def test_a_new_run_from_another_checks_its_weights(stopped, tmp_path):
    """Eight flipped bytes: init_from goes to the checkpoint before, as a resume does."""
    newest = checkpoints(Path(stopped.out_dir))[-1] / "model.safetensors"
    content = bytearray(newest.read_bytes())
    content[-8:] = bytes(8)
    newest.write_bytes(content)
    message = []
    from onecard.model.build import make_model

    model = make_model(stopped)
    load_weights(model, stopped.out_dir, message.append)
    assert "step_00000005 is damaged" in message[0]
    good = weights_of(checkpoints(Path(stopped.out_dir))[-2])
    assert all(torch.equal(p, good[name]) for name, p in model.named_parameters())
    with pytest.raises(UserError, match="is damaged"):
        load_weights(model, str(newest.parent))
    assert train(stopped.replace(init_from=stopped.out_dir, out_dir=str(tmp_path / "b"))).step == 10
    assert any("step_00000005 is damaged" in e["text"] for e in events(tmp_path / "b"))


def weights_of(folder):
    from onecard.model.checkpoint import MODEL, read_tensors

    return read_tensors(folder, MODEL, read_state(folder))


@pytest.mark.parametrize(
    "wrongs",
    [[None, "x"], pytest.param([-1, 2**70, 1.5, [], {}, [1, "x"], True], marks=pytest.mark.long)],
    ids=["some", "all"],
)
def test_a_state_made_by_hand_is_a_result_or_a_sentence(stopped, capsys, wrongs):
    """Every field of state.json, each with wrong values and a checksum that fits: never an internal error."""
    newest = checkpoints(Path(stopped.out_dir))[-1]
    whole = json.loads((newest / "state.json").read_text())
    del whole["checksum"]
    places = [(key,) for key in whole] + [
        (key, inner) for key in ("watch", "files", "config", "identity") for inner in whole[key]
    ]
    places.append(("watch", "of_a_later_version"))
    from onecard.model.checkpoint import CorruptError

    for place in places:
        for wrong in wrongs:
            state = json.loads(json.dumps(whole))
            inside = state if len(place) == 1 else state[place[0]]
            inside[place[-1]] = wrong
            text = json.dumps({**state, "checksum": checksum(state)})
            (newest / "state.json").write_text(text)
            try:
                read_state(newest)
            except CorruptError:
                continue
            code = main(["train", "--resume", f"--out_dir={stopped.out_dir}", "--eval_only=True"])
            assert code in (0, 1, 2), (place, wrong, capsys.readouterr().err)
            assert main(["sample", str(newest), "--tokens=1", "--device=cpu"]) in (0, 1, 2)


@pytest.mark.parametrize("name", ["step_²", "step_", "step_9999999999999", "step_-1", "step_7x"])
def test_a_folder_with_an_odd_name_is_no_checkpoint(stopped, name):
    (Path(stopped.out_dir) / "checkpoints" / name).mkdir()
    assert train(stopped, resume=True).state == "finished"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_an_out_dir_that_is_not_utf_8_is_a_sentence(config, tmp_path, capsys):
    file = tmp_path / "tiny.toml"
    file.write_text(to_toml(config))
    out = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    assert main(["train", str(file), f"--out_dir={out}", "--quiet"]) == 2
    assert "out_dir" in capsys.readouterr().err
    assert not os.path.exists(out)


def test_an_out_dir_that_cannot_be_written_is_a_sentence(config, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    file = tmp_path / "tiny.toml"
    file.write_text(to_toml(config))
    assert main(["train", str(file), f"--out_dir={tmp_path / 'file' / 'run'}", "--quiet"]) == 2
    assert "run folder" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_resumed_run_maps_no_checkpoint(stopped):
    """On Windows a mapped file cannot be removed."""

    class Look(StopAt):
        def step(self, fields):
            mapped.append(Path("/proc/self/maps").read_text())

    mapped: list[str] = []
    train(stopped, resume=True, view=Look(0))
    assert mapped
    assert not any(".safetensors" in text for text in mapped)


def test_a_record_without_the_datas_content_asks_for_its_name(config):
    """A checkpoint of an older version: with its content unknown, another data set counts as another run."""
    state = {"config": dataclasses.asdict(config)}
    assert changes_since(state, config, {}, ()) == []
    elsewhere = config.replace(dataset="elsewhere")
    with pytest.raises(UserError, match="another one") as caught:
        changes_since(state, elsewhere, {}, ())
    assert "the option `change=dataset`" in caught.value.hint
    assert [change.key for change in changes_since(state, elsewhere, {}, ["dataset"])] == [
        "dataset"
    ]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ("a folder", "state.json cannot be read (Is a directory)"),
        ("not JSON", "state.json cannot be read ("),
        ("no checksum", "state.json has no checksum"),
    ],
)
def test_why_a_checkpoint_is_passed_over(stopped, damage, reason):
    folder = checkpoints(Path(stopped.out_dir))[-1]
    file = folder / "state.json"
    content = json.loads(file.read_text())
    file.unlink()
    if damage == "a folder":
        file.mkdir()
    else:
        file.write_text("{" if damage == "not JSON" else json.dumps({**content, "checksum": None}))
    with pytest.raises(CorruptError) as caught:
        read_state(folder)
    assert str(caught.value).startswith(reason)
    assert "None" not in str(caught.value)
