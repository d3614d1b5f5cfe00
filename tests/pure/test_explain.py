"""The rules, one by one: each applies where it should and is silent where it does not apply."""

import io
import math
import random
import re
from dataclasses import replace

import pytest
from run_logs import nanogpt_log, small_run, wide_run

from onecard.facts import find_gpu
from onecard.facts.here import cpu
from onecard.report.compare_view import explain_document
from onecard.runs.explain import explain
from onecard.runs.figures import figures
from onecard.runs.foreign.text_log import read_text
from onecard.runs.run import ConfigChange, Eval
from onecard.runs.step_times import StepTimesBuilder, _spread

CARD = find_gpu("RTX 4070")
CURVE = {0: 10.9, 100: 6.5, 500: 5.0, 2000: 4.2}


def of(text, gpu=CARD):
    return figures(read_text(io.BytesIO(text.encode()), "run")[0], gpu)


def found(f):
    return {finding.note.code: finding for finding in explain(f)}


def test_a_healthy_run_raises_no_alarm():
    f = of(
        nanogpt_log(
            768, 6e-4, 9.34, 8, 64, {0: 10.9, 250: 5.6, 1000: 4.25, 2000: 3.85}, 2000, evals=500
        )
    )
    message = found(f)
    alarms = {
        "unreadable",
        "stuck",
        "diverging",
        "spikes",
        "not-finite",
        "slows-down",
        "uneven-steps",
        "other-programs",
        "compile-off",
        "data-repeats",
        "overfitting",
        "learning-rate-high",
        "learning-rate-low",
        "perplexity-for-loss",
        "params-disagree",
        "tokens-disagree",
        "mfu-disagrees",
        "one-iteration",
        "clock-back",
        "memory-spill",
    }
    assert not alarms & set(message)
    assert {"mfu-against-a100", "compile-in-first-step", "evaluation-in-steps"} <= set(message)
    assert {"as-planned", "slower-unexplained", "faster-than-planned"} & set(message)


def test_compile_off_names_its_gain_and_fallback_is_seen():
    off = of(small_run().replace("n_embd = 384", "n_embd = 384\ncompile = False"))
    assert found(off)["compile-off"].gain > 0.05
    fell = of("torch._dynamo hit config.suppress_errors\n" + small_run())
    assert "compile-fell-back" in found(fell)
    assert "compile-off" not in found(of(small_run()))


def test_slow_attention_is_seen():
    slow = of(
        "WARNING: using slow attention. Flash Attention requires PyTorch >= 2.0\n" + small_run()
    )
    assert found(slow)["attention-slow"].gain > 0
    assert "attention-slow" not in found(of(small_run()))


def test_a_small_micro_batch_names_the_larger_one():
    small = of(nanogpt_log(768, 6e-4, 14.0, 1, 512, CURVE, 1000))
    finding = found(small)["micro-batch-small"]
    assert finding.evidence["try"] >= 2
    assert finding.gain == pytest.approx(finding.evidence["gain"])
    assert "micro-batch-small" not in found(
        of(nanogpt_log(768, 6e-4, 9.34, 8, 63, CURVE, 500))
    )  # cannot be halved


def test_a_narrow_model_is_logits_bound():
    assert found(of(small_run()))["logits-bound"].evidence["head_share"] == pytest.approx(
        0.386, abs=0.01
    )
    assert "logits-bound" not in found(of(wide_run()))


def test_evaluation_too_often():
    often = of(small_run(evals=50, losses={0: 10.9, 1000: 4.5}))
    assert found(often)["evaluation-often"].evidence["share"] == pytest.approx(
        25 * 20 / (25 * 20 + 3900), abs=0.02
    )
    assert "evaluation-often" not in found(of(small_run()))


def test_when_every_logged_step_follows_an_evaluation_the_time_is_only_a_bound():
    f = of(small_run(log_interval=500))
    message = found(f)
    assert message["every-time-leaks"].evidence["step_seconds_at_most"] == pytest.approx(
        28.9, rel=0.01
    )
    assert "slower-unexplained" not in message


def test_throttling_is_a_drift():
    lines = small_run(evals=0).splitlines()
    hot = [line if not line.startswith("iter") else _slower(line) for line in lines]
    message = found(of("\n".join(hot)))
    assert "mfu-disagrees" not in message
    finding = message["slows-down"]
    assert finding.evidence["drift"] == pytest.approx(1.2, abs=0.05)
    assert "slows-down" not in found(of(small_run()))


def _slower(line):
    step = int(line.split()[1].rstrip(":"))
    time, mfu = (
        float(line.split("time ")[1].split("ms")[0]),
        float(line.split("mfu ")[1].rstrip("%")),
    )
    hot = 1.2 if step > 500 else 1.0
    line = line.replace(f"time {time:.2f}ms", f"time {time * hot:.2f}ms")
    return line.replace(f"mfu {mfu:.2f}%", f"mfu {mfu / hot:.2f}%")


def test_uneven_steps_are_not_explained_away():
    finding = found(of(small_run(jitter=0.4)))["uneven-steps"]
    assert "the log does not show what" in str(finding.note)
    assert "uneven-steps" not in found(of(small_run()))


def test_uneven_steps_beside_other_programs_have_a_reason():
    f = with_times(spread=0.4)
    message = found(replace(f, run=replace(f.run, cpu_wait=0.41)))
    assert "other-programs" in message
    assert "uneven-steps" not in message


def test_far_slower_than_planned_without_a_reason_says_so():
    message = found(of(nanogpt_log(384, 1e-3, 12.0, 16, 32, CURVE, 1000)))
    assert "The log does not show why" in str(message["slower-unexplained"].note)
    with_reason = found(
        of("WARNING: using slow attention\n" + nanogpt_log(384, 1e-3, 12.0, 16, 32, CURVE, 1000))
    )
    assert "slower-than-planned" in with_reason
    # what there is to gain stands beside the reason that can be removed, not beside the verdict as well
    assert with_reason["slower-than-planned"].gain is None
    assert message["slower-unexplained"].gain > 0.5


def test_on_a_processor_the_advice_is_not_about_a_card():
    slow = of(nanogpt_log(384, 1e-3, 6000.0, 16, 32, CURVE, 1000), cpu())
    words = {code: str(finding.note) for code, finding in found(slow).items()}
    assert "other programs on the processor" in words["slower-unexplained-cpu"]
    assert not [code for code, text in words.items() if re.search(r"\bcards?\b", text)]
    answer = str(explain_document(slow, explain(slow)).answer)
    assert "of the processor's peak" in answer
    assert "of the card's peak" in str(explain_document(of(small_run()), ()).answer)
    small = replace(cpu(), memory_bytes=2**31)
    swapping = found(of(nanogpt_log(768, 6e-4, 6000.0, 32, 16, CURVE, 1000), small))
    assert "swapped to disk" in str(swapping["memory-swap"].note)
    assert "memory-spill" not in swapping


def test_memory_spill_needs_both_signs():
    spilling = of(nanogpt_log(768, 6e-4, 60.0, 32, 16, CURVE, 1000))
    assert "memory-spill" in found(spilling)
    assert "memory-spill" not in found(of(nanogpt_log(768, 6e-4, 60.0, 8, 64, CURVE, 1000)))


def test_signs_in_words():
    message = found(of(small_run() + "torch.cuda.OutOfMemoryError: CUDA out of memory.\n"))
    assert "out-of-memory" in message
    message = found(of("torch._dynamo hit config.recompile_limit (8)\n" + small_run()))
    assert "recompiles" in message


def test_stuck_diverging_spiking_and_lost():
    flat = {step: 10.7 for step in (0, 2000)}
    assert "stuck" in found(of(nanogpt_log(384, 1e-3, 3.9, 16, 32, flat, 1000)))
    bad = {0: 10.9, 500: 4.5, 520: 7.5, 1000: 7.4}
    message = found(of(nanogpt_log(384, 1e-3, 3.9, 16, 32, bad, 1000, evals=0)))
    assert message["diverging"].evidence["lowest"] == pytest.approx(4.5, abs=0.5)
    assert "spikes" not in message
    spiky = (
        small_run(evals=0)
        .replace("iter 700: loss 4.", "iter 700: loss 8.")
        .replace("iter 800: loss 4.", "iter 800: loss 9.")
    )
    assert found(of(spiky))["spikes"].evidence["count"] == 2
    assert "diverging" not in found(of(spiky))
    lost = small_run(evals=0)
    at = lost.index("iter 900: loss ")
    lost = lost[:at] + lost[at:].replace("loss 4", "loss nan, x 4")
    assert found(of(lost))["not-finite"].evidence["steps"][0] == 900


def test_normal_and_not():
    good = of(
        nanogpt_log(768, 6e-4, 9.34, 8, 64, {0: 10.9, 250: 5.6, 1000: 4.25, 2000: 3.85}, 2000)
    )
    assert found(good)["loss-normal"]
    high = of(nanogpt_log(768, 6e-4, 9.34, 8, 64, {0: 10.9, 2000: 6.5}, 2000))
    assert found(high)["loss-high"]
    early = of(nanogpt_log(768, 6e-4, 9.34, 8, 64, {0: 10.9, 90: 7.5}, 90))
    assert "too early to say" in str(found(early)["loss-early"].note)
    unknown = small_run().replace("dataset = 'fineweb'", "dataset = 'my_mails'")
    assert not {"loss-normal", "loss-high", "loss-low"} & set(found(of(unknown)))


def test_learning_rates_far_from_the_usual():
    assert "learning-rate-low" in found(of(nanogpt_log(768, 3e-5, 9.34, 8, 64, CURVE, 1000)))
    assert "learning-rate-high-calm" in found(
        of(nanogpt_log(768, 5e-3, 9.34, 8, 64, CURVE, 1000, evals=0))
    )
    wild = nanogpt_log(
        768, 5e-3, 9.34, 8, 64, {0: 10.9, 500: 4.5, 520: 7.5, 1000: 7.4}, 1000, evals=0
    )
    assert "learning-rate-high" in found(of(wild))
    late = small_run().replace("lr_decay_iters = 20000", "lr_decay_iters = 600000")
    assert "never-decays" in found(of(late))


def test_repeated_data_and_overfitting():
    f = of(small_run())
    f = replace(f, run=replace(f.run, dataset_tokens=10_000_000))
    assert found(f)["data-repeats"].evidence["epochs"] == pytest.approx(52.4, abs=0.1)
    lines = [
        f"step {i * 100}: train loss {3 - i / 10:.4f}, val loss {3 + (i - 3) ** 2 / 50:.4f}"
        for i in range(10)
    ]
    assert found(of("\n".join(lines)))["overfitting"].evidence["best_step"] == 300
    # two evaluations after the lowest one are enough, one is not
    assert found(of("\n".join(lines[:6])))["overfitting"].evidence["best_step"] == 300
    assert "overfitting" not in found(of("\n".join(lines[:5])))
    # where the training loss rises too, nothing is memorised
    both = [
        re.sub(r"train loss [\d.]+", f"train loss {3 + i / 10}", each)
        for i, each in enumerate(lines)
    ]
    assert "overfitting" not in found(of("\n".join(both)))
    assert "overfitting" not in found(of(small_run(evals=100, losses={0: 10.9, 1000: 4.5})))


def test_a_loss_of_22_is_a_perplexity():
    lines = [
        f"step {i * 500}: train loss {math.exp(3.4 - i / 50):.4f}, val loss {math.exp(3.4 - i / 50):.4f}"
        for i in range(16)
    ]
    message = found(of("\n".join(lines)))
    assert str(message["perplexity-for-loss"].note).endswith("as a perplexity it is a loss of 3.10")
    assert "perplexity-for-loss" not in found(of(small_run()))


def test_nothing_is_corrected_on_an_a100():
    f = of(small_run(), find_gpu("A100 40GB"))
    assert "mfu-against-a100" not in found(f)


def test_gaps_are_named():
    bare = of(small_run(header=False), gpu=None)
    message = found(bare)
    assert {"no-card", "no-config"} <= set(message)
    assert all("unknown" in str(message[code].note) for code in ("no-card", "no-config"))
    one = of("iter 0: loss 10.9000, time 40000.00ms, mfu -100.00%\n")
    assert {"one-iteration"} <= set(found(one))
    assert one.tokens_per_second is None
    few = of("".join(f"iter {i}: loss 10.9000, time 4000.00ms, mfu -100.00%\n" for i in range(4)))
    assert "few-iterations" in found(few)
    assert "no-times" in found(
        of("s:1 trl:10.9000 lr:0.0006 norm:1.0\ns:2 trl:10.8000 lr:0.0006 norm:1.0\n")
    )


def test_the_step_times_that_count():
    builder = StepTimesBuilder()
    source = random.Random(0)
    for step in range(1000):
        time = (
            40.0 if step == 0 else 4.0 + source.uniform(-0.1, 0.1) + (20 if step % 100 == 0 else 0)
        )
        builder.add(time, after_eval=step % 100 == 0)
    times = builder.done()
    assert times.median == pytest.approx(4.0, abs=0.02)
    assert (times.first, times.leaks, times.stalls) == (40.0, 9, 0)
    assert times.leaked_seconds == pytest.approx(180, abs=2)


def test_the_spread_of_step_times_needs_twenty_of_them():
    for count, known in ((19, False), (20, True)):
        assert (_spread([1.0, 2.0] * (count // 2) + [1.0] * (count % 2)) is not None) == known


def test_a_loss_that_is_only_as_good_as_before_is_not_back_below_it():
    f = of(small_run())
    evals = tuple(
        Eval(step, loss) for step, loss in ((100, 3.0), (200, 3.3), (300, 3.0), (400, 2.9))
    )
    longer = (ConfigChange(100, "max_iters", 100, 400),)
    lengthened = replace(f, run=replace(f.run, evals=evals, changes=longer))
    assert found(lengthened)["rewarmed-back"].evidence["back_at"] == 400


def with_times(**times):
    f = of(small_run())
    return replace(f, run=replace(f.run, times=replace(f.run.times, **times)))


def test_rules_on_times_apply_at_their_bound_and_not_below():
    usual = of(small_run()).step_seconds
    compiled = found(with_times(first=3 * usual))["compile-in-first-step"]
    assert compiled.note.values["extra"] == pytest.approx(2 * usual)  # what is not the usual step
    for applies, silent, rule in (
        ({"first": 2.001 * usual}, {"first": 1.999 * usual}, "compile-in-first-step"),
        ({"drift": 1.051}, {"drift": 1.049}, "slows-down"),
        ({"spread": 0.051}, {"spread": 0.049}, "uneven-steps"),
        ({"count": 5}, {"count": 6}, "few-iterations"),
        ({"leaks": 1, "leaked_seconds": 20.0}, {"leaks": 0}, "evaluation-in-steps"),
    ):
        assert rule in found(with_times(**applies)), rule
        assert rule not in found(with_times(**silent)), rule


def test_rules_on_the_log_apply_at_their_bound_and_not_below():
    f = of(small_run())
    for applies, silent, rule in (
        ({"data_wait": 0.051}, {"data_wait": 0.05}, "data-wait"),
        ({"cpu_wait": 0.051}, {"cpu_wait": 0.05}, "other-programs"),
        ({"clock_jumps": 1}, {"clock_jumps": 0}, "clock-back"),
        ({"superseded": 1}, {"superseded": 0}, "resumed"),
        ({"not_finite": (7,)}, {"not_finite": ()}, "not-finite"),
        ({"dataset_tokens": 131_000_000}, {"dataset_tokens": 132_000_000}, "data-repeats"),
    ):
        assert rule in found(replace(f, run=replace(f.run, **applies))), rule
        assert rule not in found(replace(f, run=replace(f.run, **silent))), rule


def test_rules_on_the_learning_rate_apply_beyond_a_factor_of_three():
    f = of(small_run())
    usual = found(of(nanogpt_log(384, 1e-5, 3.9, 16, 32, CURVE, 1000)))["learning-rate-low"]
    usual = usual.evidence["usual"]
    for factor, rule in ((3.01, "learning-rate-high-calm"), (1 / 3.01, "learning-rate-low")):
        rate = f.config.replace(learning_rate=usual * factor, min_lr=1e-6)
        assert rule in found(replace(f, config=rate))
    for factor in (2.99, 1 / 2.99):
        rate = f.config.replace(learning_rate=usual * factor, min_lr=1e-6)
        assert not {"learning-rate-high-calm", "learning-rate-low"} & set(
            found(replace(f, config=rate))
        )


def test_tokens_seen_exactly_four_times_are_no_repetition():
    f = of(small_run())
    for times, repeats in ((4.0, False), (4.01, True)):
        seen = replace(f, run=replace(f.run, dataset_tokens=1_000_000), tokens_seen=times * 1e6)
        assert ("data-repeats" in found(seen)) == repeats


def test_the_time_of_evaluations_in_steps_is_the_mean_of_them():
    f = of(small_run())
    times = replace(f.run.times, leaks=4, leaked_seconds=20.0)
    note = found(replace(f, run=replace(f.run, times=times)))["evaluation-in-steps"].note
    assert (note.values["n"], note.values["each"]) == (4, 5.0)


def test_jumps_within_a_hundredth_of_the_run_are_one():
    f = of(nanogpt_log(768, 6e-4, 9.34, 8, 64, CURVE, 2000, log_interval=1, jitter=0.0))
    curve = f.run.curve
    assert curve.steps[-1] - 2000 < 2
    for apart, count in ((15, 1), (30, 2)):
        losses = [
            loss + 3.0 * (step in (1000, 1000 + apart))
            for step, loss in zip(curve.steps, curve.losses, strict=True)
        ]
        run = replace(f.run, curve=replace(curve, losses=losses))
        assert found(replace(f, run=run))["spikes"].evidence["count"] == count
