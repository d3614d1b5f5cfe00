"""Tables of losses as other people write them: what their words mean, what is skipped and why, and who is scored on which rows."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from bench_scripts import ROOT, bench

LOSSES = ROOT / "fit" / "data" / "public_losses.csv"
ROW = {
    "id": "a",
    "source_family": "somebody",
    "dataset": "fineweb",
    "eval_set": "fineweb-val",
    "tokenizer": "gpt2",
    "vocab_size": "50257",
    "n_layer": "12",
    "n_head": "12",
    "n_embd": "768",
    "n_params_total_m": "",
    "n_params_nonemb_m": "",
    "n_params_active_m": "123.65",
    "recipe": "gpt2-adamw",
    "recipe_detail": "",
    "tokens_seen_b": "10",
    "unique_tokens_b": "",
    "batch_tokens": "",
    "lr": "",
    "schedule": "cosine->0",
    "schedule_point": "",
    "loss_nats": "3.3",
    "quality": "A",
}


def write(path: Path, rows: list[dict[str, str]], encoding: str = "utf-8") -> Path:
    with path.open("w", newline="", encoding=encoding) as out:
        table = csv.DictWriter(out, rows[0])
        table.writeheader()
        table.writerows(rows)
    return path


def run(*words: object) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(bench("loss_accuracy", *words, "--json"))
    return answer


def answers(folder: Path, *changes: dict[str, str]) -> list[dict[str, Any]]:
    """The answer to the plain row, then to each changed one."""
    rows = [ROW, *({**ROW, **change, "id": f"row-{i}"} for i, change in enumerate(changes))]
    return list(run(write(folder / "losses.csv", rows))["rows"])


def test_the_same_thing_in_other_words_is_predicted_alike(tmp_path: Path):
    same = [
        *(
            {"tokenizer": word}
            for word in ("GPT-2", "tiktoken gpt2", "gpt2 (50257)", "r50k_base", "gpt2-bpe", "")
        ),
        *({"recipe": word} for word in ("GPT-2", "GPT-2 AdamW", "nanogpt", "AdamW")),
        {"tokens_seen_b": "10B"},
        {"tokens_seen_b": "10 billion"},
        {"tokens_seen_b": "0.01T"},
        {"tokens_seen_b": "10,000M"},
        {"n_params_active_m": "123.65M"},
        {"n_params_active_m": "0.12365B"},
        {"eval_set": ""},
        {"eval_set": "validation"},
        {"dataset": "HuggingFaceFW/fineweb"},
        {"dataset": "fineweb10B"},
        {"n_layer": "", "n_embd": ""},
        {"n_layer": "", "n_embd": "", "n_params_active_m": "", "n_params_total_m": "123.65"},
        {"batch_tokens": "512 seqs"},
        {"batch_tokens": "512"},
        {"batch_tokens": "524,288"},
    ]
    plain, *others = answers(tmp_path, *same)
    assert plain["skipped"] is None
    for change, row in zip(same, others, strict=True):
        assert (row["skipped"], row["predicted"]) == (None, plain["predicted"]), change


def test_openwebtext_by_its_names(tmp_path: Path):
    names = ["openwebtext", "openwebtext (9B)", "openwebtext-9B", "Skylion007/openwebtext", "OWT"]
    _, *rows = answers(tmp_path, *({"dataset": name, "eval_set": "owt-val"} for name in names))
    assert {row["predicted"] for row in rows} == {rows[0]["predicted"]} != {None}


@pytest.mark.parametrize(
    "change",
    [
        {"dataset": "openwebtext2", "eval_set": ""},
        {"dataset": "fineweb-2"},
        {"tokenizer": "gpt-neox-20b"},
        {"tokenizer": "gpt2 retrained 32k"},
        {"tokenizer": "", "vocab_size": "32000"},
        {"eval_set": "c4-val"},
        {"eval_set": "wikitext-103"},
        {"eval_set": "hellaswag"},
        {"tokens_seen_b": "1e10"},
        {"n_params_active_m": "123650000"},
        {"dataset": "secret mix"},
        {"dataset": "50% FinePDFs, 30% DCLM, 20% FineWeb-Edu", "eval_set": ""},
        {"dataset": "fineweb + the stack", "eval_set": ""},
    ],
    ids=str,
)
def test_another_thing_is_skipped_with_its_loss_kept(change: dict[str, str], tmp_path: Path):
    row = answers(tmp_path, change)[1]
    assert row["skipped"]
    assert row["predicted"] is None
    assert row["measured"] == 3.3


def test_a_head_of_its_own_is_seen_without_the_active_parameters(tmp_path: Path):
    tied, untied = {"n_params_total_m": "124.4"}, {"n_params_total_m": "162.9"}
    bare = {"n_params_active_m": ""}
    both = answers(tmp_path, tied, untied, {**tied, **bare}, {**untied, **bare})[1:]
    with_active, without = (
        [row["predicted"] for row in both[:2]],
        [row["predicted"] for row in both[2:]],
    )
    assert with_active[0] > with_active[1]  # a head of its own helps
    assert without == pytest.approx(with_active, abs=2e-3)


def test_a_learning_rate_that_stays_up_costs(tmp_path: Path):
    words = [
        "constant",
        "warmup 700, constant",
        "no decay",
        "cosine->1.0x",
        "cosine->0.1x",
        "constant then 20% decay",
        "wsd(30% down)",
    ]
    plain, *rows = (
        row["predicted"] for row in answers(tmp_path, *({"schedule": word} for word in words))
    )
    assert len({round(row - plain, 3) for row in rows[:4]}) == 1
    assert 0.02 < rows[0] - plain < 0.12
    assert rows[4] == plain
    assert abs(rows[5] - plain) < 0.01


def test_curve_points_that_are_skipped_are_still_curve_points(tmp_path: Path):
    losses = write(tmp_path / "losses.csv", [ROW, {**ROW, "id": "b", "dataset": "secret mix"}])
    curve = [
        {"run_id": name, "tokens_b": at, "loss_nats": "3.5"}
        for name, at in (("a", "5"), ("b", "5"), ("none", "5"), ("a", "50"))
    ]
    rows = run(losses, write(tmp_path / "curves.csv", curve))["rows"][2:]
    assert [row["kind"] for row in rows] == ["curve"] * 4
    assert [row["at"] for row in rows] == [5e9, 5e9, 5e9, 50e9]
    assert [row["measured"] for row in rows] == [3.5] * 4
    assert [bool(row["skipped"]) for row in rows] == [False, True, True, True]


def test_a_spreadsheets_unicode_text(tmp_path: Path):
    curve = [{"run_id": "a", "tokens_b": "5", "loss_nats": "3.5"}]
    found = run(
        write(tmp_path / "l.csv", [ROW], "utf-16"), write(tmp_path / "c.csv", curve, "utf-16")
    )
    assert [(row["kind"], row["skipped"]) for row in found["rows"]] == [
        ("end", None),
        ("curve", None),
    ]


def test_all_are_scored_on_the_same_rows(tmp_path: Path):
    rows = [
        ROW,
        {**ROW, "id": "b", "quality": "C", "loss_nats": "4"},
        {**ROW, "id": "c", "dataset": "secret mix"},
    ]
    found = run(write(tmp_path / "losses.csv", rows))
    assert [found["trusted"]["n"], *(each["n"] for each in found["baselines"].values())] == [
        1,
        1,
        1,
    ]
    assert [
        found["loss"]["n"],
        *(each["n"] for each in found["baselines_with_quality_c"].values()),
    ] == [2, 2, 2]


def test_data_sets_with_runs_of_their_own(tmp_path: Path):
    found = run(LOSSES)
    rows = [
        row for row in found["rows"] if row["family"] == "datablations" and row["skipped"] is None
    ]
    assert len(rows) > 100
    assert all(row["foreign"] and "public runs" in row["note"] for row in rows)
    assert found["families"]["datablations"]["loss"]["median_abs_error_nats"] < 0.03
    assert found["law"]["n"] == 68
    # what was measured on another text, or counted in other tokens, has another level
    gpt2, neox = (
        {"dataset": "c4", "eval_set": "c4-val"},
        {"dataset": "refinedweb", "eval_set": "refinedweb-val", "tokenizer": "gpt-neox-20b"},
    )
    _, known, elsewhere, often = answers(tmp_path, gpt2, neox, {**gpt2, "unique_tokens_b": "0.1"})
    assert known["skipped"] is None
    assert elsewhere["skipped"]
    assert "epochs" in often["skipped"]


@pytest.fixture(scope="module")
def cross_validated() -> dict[str, Any]:
    """Every public loss and curve, predicted by what all families but its own say."""
    pytest.importorskip("scipy")
    tables = [LOSSES.with_name(f"public_losses{ending}.csv") for ending in ("", "_2", "_3", "_4")]
    return run(*tables, LOSSES.with_name("public_curves.csv"), "--cross-validate")


def test_losses_of_families_never_seen(cross_validated: dict[str, Any]):
    found = cross_validated
    assert found["trusted"]["n"] >= 110
    assert found["trusted"]["median_abs_error_nats"] <= 0.04
    assert found["trusted"]["mean_of_family_medians_nats"] <= 0.085
    assert 0.80 <= found["trusted"]["coverage"] <= 0.95
    for baseline in found["baselines"].values():
        assert (
            found["loss"]["mean_of_family_medians_nats"] < baseline["mean_of_family_medians_nats"]
        )
    assert found["curves"]["median_abs_error_nats"] < 0.06


def test_a_familys_own_runs_do_not_predict_it(cross_validated: dict[str, Any]):
    with LOSSES.open(encoding="utf-8", newline="") as table:
        ids = {row["id"] for row in csv.DictReader(table)}
    rows = [row for row in cross_validated["rows"] if row["foreign"] and row["id"] in ids]
    assert len(rows) > 100
    assert not [row["id"] for row in rows if row["predicted"] is not None]


def test_a_run_read_in_the_middle_was_planned_longer(tmp_path: Path):
    """10 B tokens of a run of 20 B: above one that ended there, below one of 10 B at the same share of its way."""
    middle = [
        {"schedule_point": "mid(50%)"},
        {"schedule_point": "mid", "schedule": "cosine->0, 40k it", "batch_tokens": "500000"},
        {"schedule_point": "mid(50%)", "tokens_seen_b": "5"},
    ]
    ended, *rows = (row["predicted"] for row in answers(tmp_path, *middle))
    assert rows[0] - ended == pytest.approx(0.03, abs=0.03)
    assert rows[0] > ended
    assert rows[1] == pytest.approx(rows[0], abs=0.01)
    assert rows[2] > rows[0]


def test_what_a_row_does_not_say_widens_its_range(tmp_path: Path):
    given = {"lr": "6e-4", "batch_tokens": "524288"}
    whole, no_rate, no_batch, detail = (
        round(row["high"] - row["low"], 6)
        for row in answers(
            tmp_path,
            given,
            {**given, "lr": ""},
            {**given, "batch_tokens": ""},
            {**given, "lr": "", "recipe_detail": "lr 6e-4, tied"},
        )[1:]
    )
    assert no_rate == no_batch > whole == detail


def test_recipes_by_the_optimizer_that_the_details_name(tmp_path: Path):
    plain, *rows = answers(
        tmp_path,
        {"recipe": "modern", "recipe_detail": "RoPE, Muon lr .02"},
        {"recipe": "modern-muon"},
        {"recipe": "modern", "recipe_detail": "RoPE, AdamW"},
        {"recipe": "modern-adamw"},
    )
    muon, same, adamw, also = (row["predicted"] for row in rows)
    assert muon == same < adamw == also < plain["predicted"]


def test_a_table_predicted_from_another_one(tmp_path: Path):
    pytest.importorskip("scipy")
    second = ROOT / "fit" / "data" / "public_losses_2.csv"
    found = run(write(tmp_path / "losses.csv", [ROW]), "--fitted-on", second)
    row, shipped = found["rows"][0], answers(tmp_path)[0]
    assert row["predicted"] != shipped["predicted"]
    assert row["predicted"] == pytest.approx(shipped["predicted"], abs=0.2)


def test_many_rows_at_once_are_what_the_planner_says_of_each():
    """The fit works on all rows together; it must be the planner's own arithmetic."""
    np = pytest.importorskip("numpy")
    pytest.importorskip("scipy")
    from fit.loss import RECIPES, SHAPE, Rows, unpack
    from fit.loss_expected import final, usable
    from fit.losses import all_losses

    rows = [point for point in all_losses() if usable(point)]
    keys = [*SHAPE, *RECIPES]
    shifted = np.array([middle + 0.3 * sigma for middle, sigma in {**SHAPE, **RECIPES}.values()])
    fit = unpack(dict(zip(keys, map(float, shifted), strict=True)))
    assert len({point.family for point in rows}) > 20
    assert Rows(rows, keys)(shifted[:, None])[:, 0] == pytest.approx(
        [final(point, fit) for point in rows]
    )


def test_many_places_on_curves_are_what_the_planner_says_of_each():
    np = pytest.importorskip("numpy")
    pytest.importorskip("scipy")
    from fit.loss_curves import Places, _curve
    from fit.loss_expected import on_curve
    from fit.losses import all_curves, all_losses

    from onecard.planner.expected_loss import running
    from onecard.planner.loss_settings import loss_fit

    curves = all_curves(all_losses())
    points = [point for point in curves if point.trouble is None and not point.foreign][::7]
    theta = np.array([*np.log([0.05, 1.0, 300.0]), 0.3])
    fit = {**loss_fit(), **_curve(theta)}
    assert len({point.family for point in points}) > 5
    wanted = [point.ratio * running(*on_curve(point, fit), fit) for point in points]
    assert Places(points, loss_fit())(theta) == pytest.approx(wanted)


def test_other_vocabularies_are_converted_by_their_bytes(tmp_path: Path):
    plain, small, large, again = answers(
        tmp_path,
        {"tokenizer": "own BPE 16384", "vocab_size": "16384"},
        {"tokenizer": "custom BPE", "vocab_size": "32768"},
        {"tokenizer": "bpe32k", "vocab_size": ""},
    )
    assert small["predicted"] < large["predicted"] < plain["predicted"]
    assert "of GPT-2's" in small["note"]
    assert again["predicted"] == pytest.approx(large["predicted"], abs=0.03)
    # what the law does not know of a tokenizer is in the range
    assert round(small["high"] - small["low"], 6) >= round(plain["high"] - plain["low"], 6)


def test_settings_far_outside_the_sweep_have_the_widest_range(tmp_path: Path):
    near, far = answers(
        tmp_path,
        {"batch_tokens": "524288", "lr": "6e-4"},
        {"batch_tokens": "4096", "lr": "1e-5", "schedule": "constant"},
    )[1:]
    assert far["high"] - far["low"] > 1.9 * (near["high"] - near["low"])
