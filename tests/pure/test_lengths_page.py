"""bench/'s rules for docs/performance.md: the opponent's rate, the ratio of steps, equal tokens, the far end."""

import bench_scripts  # noqa: F401  (puts bench on the path)

# isort: split
from bench.far_end import far_end, predicted
from bench.length_rules import opponents_best_rate
from bench.lengths_section import loss_table
from bench.lengths_verdict import by_place, verdict
from bench.plots import short
from bench.soak_rules import growth
from bench.step_cost_section import nearest_cost, section, step_costs

WHOLE = 2_000_896


def run(recipe, loss, rate=None, seed=1, share=1.0, budget="small"):
    curve = [{"tokens": round(WHOLE * share), "loss": loss}]
    known = {"corpus": "code", "budget": budget, "recipe": recipe, "rate": rate, "seed": seed}
    return {**known, "share": share, "curve": curve}


def test_rates_are_compared_with_the_first_seed_alone():
    """Another seed may end lower at a rate that is not the best one."""
    first = [run("gpt2", loss, rate) for rate, loss in ((1e-3, 5.4), (2e-3, 5.2), (4e-3, 5.3))]
    assert opponents_best_rate([*first, run("gpt2", 5.0, 4e-3, seed=2)]) == (2e-3, True)
    assert opponents_best_rate(first[:2]) == (2e-3, False)


def test_equal_tokens_are_compared_seed_by_seed():
    opponents = [run("gpt2", 5.0, 2e-3), run("gpt2", 6.0, 2e-3, seed=2)]
    modern = [run("modern", 5.6, share=0.25), run("modern", 4.5, seed=2)]
    places = by_place([*opponents, *modern, run("gpt2", 4.0, 2e-3, budget="large")])
    found = {place: verdict(rows) for place, rows in places.items()}
    assert list(found) == [("code", "small"), ("code", "large")]
    lines = loss_table(found)
    assert "equal tokens" in lines[2]
    assert lines[4].endswith("| 5.5000 (2) | 5.6000 (1) | 4.5000 (1), -1.5000 |")


def result(ratio, processor="EPYC", date="2026-11-18", **more):
    shape = {"n_layer": 5, "n_embd": 128, "batch_size": 8, "block_size": 256, "vocab_size": 4096}
    row = {"shape": shape, "goal": 1.2, "flops_share": 1.1}
    row["compiled"] = {"ratio": ratio, "cpu_ratio": ratio}
    machine = {"processor": processor, "instructions": "AVX512", "threads": 2}
    return {"date": date, "machine": machine, "shapes": {"small": row}, **more}


def test_a_steps_ratio_is_the_one_measured_as_the_runs_were_made():
    costs = step_costs(
        [
            result(1.3, "Xeon", "2026-11-17"),
            result(1.1),
            result(1.25, dtype="bfloat16", threads=1),
        ]
    )
    assert nearest_cost(costs, "small", "bfloat16", 1).ratio == 1.25
    assert nearest_cost(costs, "small", "float32", 1).ratio == 1.1  # the dtype, then the newest
    assert nearest_cost(costs, "large", "float32", 1) is None
    page = "\n".join(section(costs))
    assert page.index("Xeon") > page.index("bfloat16, 1 thread;")
    assert page.count("**not reached**") == 2


def test_a_tuned_opponent_makes_the_predicted_share_larger():
    opponent = far_end().opponent
    published, tuned = (predicted(opponent, best) for best in (False, True))
    assert tuned.loss < published.loss
    assert 0.1 < published.share < tuned.share < 1


def test_numbers_and_growth():
    assert [short(x) for x in (2_000_896, 15_998_976, 10.2551e9, 249_856)] == [
        "2 M",
        "16 M",
        "10.3 B",
        "250 k",
    ]
    assert growth([(0, 10), (20, 100), (100, 103)], 100) > 0.02
