"""The card table: every rate recomputes, every name resolves, none by accident."""

import csv
from pathlib import Path

import pytest

from onecard.errors import UserError
from onecard.facts import all_gpus, find_gpu, search_gpus
from onecard.facts.data_files import table
from onecard.facts.gpus import all_gpus as cached_gpus

ROOT = Path(__file__).parents[2]
RATES = {
    "bf16_fp32acc_tflops": ("fpc_bf16", "tensor_clock_mhz"),
    "fp16_fp32acc_tflops": ("fpc_fp16_32", "tensor_clock_mhz"),
    "fp16_fp16acc_tflops": ("fpc_fp16_16", "tensor_clock_mhz"),
    "tf32_tflops": ("fpc_tf32", "tensor_clock_mhz"),
    "fp8_fp32acc_tflops": ("fpc_fp8", "tensor_clock_mhz"),
    "fp32_nontensor_tflops": ("fpc_fp32", "fp32_clock_mhz"),
}


@pytest.mark.parametrize("row", table("gpus"), ids=lambda row: row["name"])
def test_every_rate_recomputes(row):
    if row["rate_class"] == "measured":
        assert "measured" in row["note"]
        return
    for rate, (per_clock, clock) in RATES.items():
        if row[rate]:
            computed = float(row["sm_count"]) * float(row[per_clock]) * float(row[clock]) * 1e-6
            assert computed == pytest.approx(float(row[rate]), rel=0.006), rate


def test_every_row_has_source_date_and_confidence():
    for row in table("gpus"):
        assert row["source"]
        assert row["checked"].startswith("20")
        assert row["confidence"] in "ABC"


@pytest.mark.parametrize(
    "name",
    ["4070", "rtx4070", "RTX-4070", "NVIDIA GeForce RTX 4070", "geforce rtx 4070", "RTX 4070 12GB"],
)
def test_names_people_write(name):
    assert find_gpu(name).name == "RTX 4070"


@pytest.mark.parametrize("name", ["A6000", "rtx a6000", "NVIDIA RTX A6000 48GB"])
def test_workstation_cards_without_their_prefix(name):
    assert find_gpu(name).name == "RTX A6000"


def test_a_size_that_is_not_sold_says_which_is():
    with pytest.raises(UserError) as caught:
        find_gpu("RTX 4070 8GB")
    assert "RTX 4070" in caught.value.message
    assert "12 GB" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("memory", "mib"), [("16GB", 10922.67), ("32GB", 21845.33), ("64GB", 49152), ("96GB", 73728)]
)
def test_what_metal_gives_a_program(memory, mib):
    assert find_gpu(f"M2 Max {memory}").usable_bytes / 2**20 == pytest.approx(mib, abs=0.01)


def test_never_by_substring():
    assert find_gpu("L4").name == "L4"
    assert find_gpu("L40").name == "L40"
    assert find_gpu("4070 Ti").name == "RTX 4070 Ti"
    with pytest.raises(UserError):
        find_gpu("407")


@pytest.mark.parametrize(
    ("name", "sizes"), [("A100", ("40GB", "80GB")), ("RTX 3060", ("12GB", "8GB"))]
)
def test_two_memory_sizes_ask_which(name, sizes):
    with pytest.raises(UserError) as caught:
        find_gpu(name)
    assert all(size in caught.value.message for size in sizes)
    assert "the option `gpu=" in (caught.value.hint or "")


def test_memory_tells_them_apart():
    assert find_gpu("A100", memory_gib=80).name == "A100 SXM 80GB"
    assert find_gpu("A100 40GB").name == "A100 SXM 40GB"
    assert find_gpu("NVIDIA GeForce RTX 4090", memory_gib=48).name == "RTX 4090 48GB"
    assert find_gpu("NVIDIA GeForce RTX 4090").name == "RTX 4090"
    assert find_gpu("M4 24GB").memory_bytes == 24 * 2**30


def test_an_unknown_card_is_an_error_with_the_nearest():
    with pytest.raises(UserError) as caught:
        find_gpu("RTX 4071")
    assert "RTX 4070" in (caught.value.hint or "")


def test_every_name_and_alias_of_the_table_resolves_to_its_row():
    for device in all_gpus():
        gib = device.memory_bytes / 2**30
        assert find_gpu(device.name).name == device.name
        for alias in device.aliases:
            assert find_gpu(alias, memory_gib=gib).name == device.name or alias.startswith(
                ("CPU", "cpu")
            )


@pytest.mark.parametrize(
    ("name", "column", "memory"),
    [("public_runs", "gpu", "gpu_vram_gb"), ("measured_matmul", "device", None)],
)
def test_every_card_of_the_public_tables_resolves(name, column, memory):
    path = ROOT / "fit" / "data" / f"{name}.csv"
    for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines()):
        if not row[column]:
            continue  # a run whose card is not known
        try:
            find_gpu(row[column], float(row[memory]) if memory and row[memory] else None)
        except UserError as error:
            assert "can mean" in error.message, row[
                column
            ]  # a name of two sizes, without its memory


def test_rented_cards_resolve():
    for row in table("gpu_rentals"):
        assert find_gpu(row["gpu"])


def test_dtypes():
    assert find_gpu("RTX 4070").training_dtype == "bfloat16"
    assert find_gpu("T4").training_dtype == "float16"
    assert find_gpu("V100 32GB").training_dtype == "float16"
    assert find_gpu("GTX 1080 Ti").training_dtype == "float16"
    assert find_gpu("M3 Max").training_dtype == "float32"
    assert find_gpu("T4").peak_flops("bfloat16") < find_gpu("T4").peak_flops("float32")


def test_search_words():
    assert {card.name for card in search_gpus(["ada", "12gb"])} >= {"RTX 4070", "RTX 4070 Ti"}
    assert all("Laptop" in card.name for card in search_gpus(["laptop", "ampere"]))
    assert search_gpus(["nothing-like-it"]) == []


@pytest.fixture
def own_cards(tmp_path, monkeypatch):
    monkeypatch.setenv("ONECARD_HOME", str(tmp_path))
    cached_gpus.cache_clear()
    yield tmp_path / "gpus.toml"
    cached_gpus.cache_clear()


def test_a_card_of_ones_own(own_cards):
    own_cards.write_text('[[gpu]]\nname = "RTX 4070 quiet"\nlike = "RTX 4070"\nwatts = 160\n')
    card = find_gpu("4070 quiet")
    assert (card.watts, card.bf16_flops) == (160, find_gpu("RTX 4070").bf16_flops)


def test_a_card_from_a_file_given_to_gpu(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        '[[gpu]]\nname = "Mine"\nmemory_gib = 10\nbandwidth_gbs = 400\nfp32_tflops = 10\nbf16_tflops = 40\nwatts = 100\n'
    )
    card = find_gpu(str(path))
    assert (card.name, card.training_dtype, card.peak_flops("bfloat16")) == (
        "Mine",
        "bfloat16",
        40e12,
    )


@pytest.mark.parametrize(
    "content",
    [
        "",
        "x = 1",
        "[[gpu]]",
        '[[gpu]]\nname = "a"',
        '[[gpu]]\nname = "a"\nlike = "4071"',
        "[[gpu]",
        "[[gpu]]\nname = 3",
        '[[gpu]]\nname = "a"\nwatts = ' + "9" * 6000,
        "a = " + "[" * 60_000,
        '[[gpu]]\nname = "a"\nlike = "RTX 4070"\nwatts = -1',
        '[[gpu]]\nname = "a"\nlike = "RTX 4070"\nwats = 1',
    ],
)
def test_bad_card_files(tmp_path, content):
    path = tmp_path / "mine.toml"
    path.write_text(content)
    with pytest.raises(UserError):
        find_gpu(str(path))


def test_an_own_file_with_nothing_in_it_is_no_mistake(own_cards):
    own_cards.write_text("# no cards yet\n")
    assert find_gpu("RTX 4070").name == "RTX 4070"


def test_an_own_card_named_by_a_sign_is_not_every_empty_name(own_cards):
    own_cards.write_text('[[gpu]]\nname = "✦"\nlike = "RTX 4070"\n', encoding="utf-8")
    assert find_gpu("✦").name == "✦"
    for nothing in ("", " ", "✧"):
        with pytest.raises(UserError):
            find_gpu(nothing)


def test_an_own_card_with_brackets_is_listed(own_cards, capsys):
    from onecard.cli import main

    own_cards.write_text('[[gpu]]\nname = "mine [/dim]"\nlike = "RTX 4070"\n')
    assert main(["gpus", "mine"]) == 0
    assert "mine [/dim]" in capsys.readouterr().out
