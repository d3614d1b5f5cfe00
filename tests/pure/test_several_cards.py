"""Plans for several cards and machines: memory of a card and the exchange for each way of sharing out; bad input."""

import pytest

from onecard.config import RunConfig, load
from onecard.errors import UserError
from onecard.facts.data_files import table
from onecard.facts.gpus import all_gpus, find_gpu
from onecard.planner import plan
from onecard.planner.exchange import exchange_of
from onecard.planner.workload import Workload

XL = load("gpt2-xl", ["batch_size=2", "gradient_accumulation_steps=256"])
H100 = find_gpu("H100 SXM")


def by_way(result):
    return {way.shard: way for way in result.ways}


def test_each_way_takes_less_memory_than_the_one_before():
    ways = by_way(plan(XL, "A100 40GB", gpus=8))
    assert list(ways) == ["none", "grads", "full"]
    memory = [ways[way].process_bytes for way in ways]
    assert memory[0] > memory[1] > memory[2]
    # moments, gradients and fp32 weights are shared out: 16 of 16 bytes a parameter, less an eighth
    saved = memory[0] - memory[2]
    assert saved == pytest.approx(16 * 1.5576e9 * 7 / 8, rel=0.15)
    assert [ways[way].fits for way in ways] == ["yes", "yes", "yes"]
    tight = by_way(plan(XL, "RTX 4090", gpus=8))
    assert (tight["none"].fits, tight["full"].fits) == ("no", "yes")


def test_the_plan_is_of_the_way_in_the_config_and_suggests_the_others():
    replicated = plan(XL, "RTX 4090", gpus=8)
    assert any("shard = 'full'" in str(note) for note in replicated.memory.changes)
    shared = plan(XL.replace(shard="full"), "RTX 4090", gpus=8)
    assert shared.memory.process_bytes.mid == by_way(replicated)["full"].process_bytes
    assert shared.time.step_seconds == by_way(replicated)["full"].step_seconds
    assert plan(XL.replace(shard="full"), "A100 80GB").ways == []  # one card has nothing to share


def test_what_is_sent_by_formula():
    """(n-1)/n of the fp32 gradients both ways once; of the bf16 weights once and the gradients every micro-batch; of the
    weights twice and the gradients every micro-batch."""
    sent = {}
    for way in ("none", "grads", "full"):
        work = Workload.of(XL.replace(shard=way), "bfloat16", 8)
        sent[way] = exchange_of(work, H100)
    params, share = work.params, 7 / 8
    assert sent["none"].once_bytes == pytest.approx(2 * share * 4 * params)
    assert sent["grads"].once_bytes == pytest.approx(share * 2 * params)
    assert sent["grads"].each_pass_bytes == pytest.approx(share * 4 * params)
    assert sent["full"].each_pass_bytes == pytest.approx(share * 8 * params)
    assert sent["full"].accumulation == 32


def test_a_slower_link_takes_longer():
    fast = by_way(plan(XL, "A100 80GB", gpus=8, link="nvlink"))
    slow = by_way(plan(XL, "A100 80GB", gpus=8, link="pcie3"))
    for way in fast:
        assert slow[way].exchange_seconds > 10 * fast[way].exchange_seconds
        assert slow[way].step_seconds.mid > fast[way].step_seconds.mid


def test_several_machines():
    """Each has a copy of the model; equal parts are summed between them, once a step."""
    one, two = plan(XL, "A100 80GB", gpus=8), plan(XL, "A100 80GB", gpus=8, nodes=2)
    assert (one.gpus, two.gpus, two.nodes) == (8, 16, 2)
    memory = [by_way(each)["full"].process_bytes for each in (one, two)]
    assert memory[0] == pytest.approx(memory[1], rel=1e-3)  # fewer rows a card
    network = 2 / 2 * 4 * Workload.of(XL, "bfloat16", 16, 2).params / 12e9
    for way in ("none", "full"):
        assert by_way(two)[way].waiting_seconds > network
    assert any(note.code == "network_assumed" for note in two.warnings)
    named = plan(XL, "A100 80GB", gpus=8, nodes=2, link="ib400")
    assert not any(note.code == "network_assumed" for note in named.warnings)
    assert named.time.step_seconds.mid < two.time.step_seconds.mid


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"gpus": 8, "link": "nvlimk"}, "unknown link 'nvlimk'"),
        ({"gpus": 0}, "0 cards cannot train anything"),
        ({"gpus": 2, "nodes": 0}, "0 machines cannot train anything"),
        ({"gpus": 4}, "4 processes are more than the 3 rows of a step"),
    ],
)
def test_bad_input(arguments, sentence):
    config = RunConfig(batch_size=1, gradient_accumulation_steps=3)
    with pytest.raises(UserError, match=sentence):
        plan(config, "A100 80GB", **arguments)


def test_nvlink_is_refused_where_a_card_has_none():
    for card in ("RTX 4090", "RTX 5090", "L40S", "Titan V", "MI300X"):
        with pytest.raises(UserError, match=f"the {card} has no NVLink"):
            plan(XL, card, gpus=2, link="nvlink")
    with pytest.raises(UserError, match="NVLink joins two of the RTX 3090, not 4"):
        plan(XL, "RTX 3090", gpus=4, link="nvlink")


def test_a_bridge_counts_only_where_it_is_named():
    assumed, bridged = (plan(XL, "RTX 3090", gpus=2, link=link) for link in (None, "nvlink"))
    assert bridged.time.parts["exchange"] < 0.5 * assumed.time.parts["exchange"]
    board = [plan(XL, "A100 80GB", gpus=8, link=link) for link in (None, "nvlink")]
    assert board[0].time.parts["exchange"] == board[1].time.parts["exchange"]


def test_every_card_with_nvlink_is_in_the_table_of_cards():
    names = {device.name for device in all_gpus()}
    rows = table("nvlink")
    assert {row["card"] for row in rows} <= names
    assert all(row["source"] for row in rows)
    assert {row["joins"] for row in rows} == {"all", "pair"}
