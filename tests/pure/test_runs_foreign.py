"""Each foreign format, as its trainer writes it, and the ways logs are broken."""

import io
import json

import pytest
from run_logs import nanogpt_log, small_run

from onecard.runs.figures import figures
from onecard.runs.foreign.text_log import read_text
from onecard.runs.read import read_runs


def read(text, name="log"):
    return read_text(io.BytesIO(text.encode() if isinstance(text, str) else text), name)


def only(text):
    (run,) = read(text)
    return run


def test_nanogpt_with_everything_around_it():
    run = only(small_run())
    assert run.format == "nanogpt"
    assert {
        key: run.value(key)
        for key in ("n_embd", "batch_size", "learning_rate", "dataset", "wandb_log")
    } == {
        "n_embd": 384,
        "batch_size": 16,
        "learning_rate": 1e-3,
        "dataset": "fineweb",
        "wandb_log": True,
    }
    assert run.times.median == pytest.approx(3.9, rel=0.002)
    assert run.times.first == pytest.approx(43.9, rel=0.01)
    assert run.times.leaks == 2
    assert run.times.leaked_seconds == pytest.approx(50, rel=0.01)
    assert run.mfu_printed == pytest.approx(0.129, abs=0.005)
    assert [e.val_loss for e in run.evals] == [10.9, 5.5328, 4.4593]
    assert run.unreadable == 0
    assert run.params_total == 40_953_216


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n", "\r\n").encode(),
        lambda text: text.encode("utf-16"),  # PowerShell's >
        lambda text: b"\xef\xbb\xbf" + text.encode(),
        lambda text: text.replace("iter ", "\x1b[32miter ").encode(),
        lambda text: text.replace("\niter ", "\n[rank0] iter ").encode(),
        lambda text: text.replace("\n", "\nwandb: \xe9\xff noise\n").encode("latin-1"),
    ],
    ids=["crlf", "utf-16", "bom", "colour", "prefix", "bad utf-8"],
)
def test_nanogpt_however_it_reached_the_file(change):
    plain, run = only(small_run()), only(change(small_run()))
    assert run.curve.losses == plain.curve.losses
    assert run.times.median == plain.times.median
    assert run.unreadable == 0


def test_torn_lines_are_counted_and_left_out():
    lines = small_run().splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("iter 300:"))
    torn = [
        "iter 300: loss 5.",
        "iter 300: loss 5.12",
        "iter 300: loss 5.1234, ti",
        "iter 300: loss 5.1234, time 39",
        "iter 300: loss 5.1234, time 3901.22ms, mfu 12.9",
        "iter 30",
        "step 300: train loss 5.1, val lo",
        "iter 300: loss 5.1234, time 3901.22ms, mfu 12.93%iter 310: loss 5.1",
    ]
    for cut in torn:
        run = only("\n".join([*lines[:at], cut, *lines[at + 1 :]]))
        assert run.unreadable == 1, cut
        assert len(run.curve) == 100, cut


def test_several_runs_in_one_file():
    other = nanogpt_log(768, 3e-4, 9.34, 8, 64, {0: 10.9, 500: 5.5}, 500)
    first, second = read(small_run() + other, "both")
    assert (first.name, second.name) == ("both", "both#2")
    assert (first.value("n_embd"), second.value("n_embd")) == (384, 768)
    assert (first.last_step, second.last_step) == (1000, 500)
    bare = small_run(header=False)
    assert [run.last_step for run in read(bare + bare)] == [1000, 1000]


def test_a_resume_in_the_same_file_is_one_run():
    lines = small_run().splitlines()
    cut = next(i for i, line in enumerate(lines) if line.startswith("iter 800:"))
    back = next(i for i, line in enumerate(lines) if line.startswith("iter 510:"))
    run = only("\n".join([*lines[: cut + 1], "Resuming training from out-fineweb", *lines[back:]]))
    assert run.last_step == 1000
    assert run.superseded == 30
    assert run.curve.steps == tuple(sorted(set(run.curve.steps)))


@pytest.mark.parametrize("damaged", ["iter 7", "iter 99990", "iter 0"])
def test_one_damaged_step_number_does_not_cost_the_rest(damaged):
    run = only(small_run().replace("iter 770:", f"{damaged}:"))
    assert len(run.curve) == 100
    assert run.last_step == 1000
    assert run.unreadable + run.superseded == 1


def test_minus_one_hundred_per_cent_is_no_mfu():
    run = only(
        "iter 0: loss 10.9000, time 40000.00ms, mfu -100.00%\niter 10: loss 9.0000, time 3900.00ms, mfu -100.00%\n"
    )
    assert run.mfu_printed is None
    assert run.times.median == 3.9


def test_nan_is_seen():
    run = only(
        small_run()
        .replace("iter 500: loss 5", "iter 500: loss nan, x ", 1)
        .replace("nan, x .", "nan")
    )
    assert run.unreadable + len(run.not_finite) == 1
    text = "".join(
        f"iter {i}: loss {'nan' if i > 5 else 3.0:.4f}, time 10.00ms, mfu 1.00%\n"
        if i <= 5
        else f"iter {i}: loss nan, time 10.00ms, mfu 1.00%\n"
        for i in range(10)
    )
    assert only(text).not_finite == (6, 7, 8, 9)


LLMC = """\
| device                | NVIDIA A100-SXM4-40GB                              |
| precision             | BF16                                               |
| num_layers L          | 12                                                 |
| num_heads NH          | 12                                                 |
| channels C            | 768                                                |
| num_parameters        | 124475904                                          |
step    1/19560 | loss 11.010252 (+nanz)| norm 15.1374 (+nanz)| lr 8.57e-07 | 4688.25 ms | 28.8% bf16 MFU | 111830 tok/s
step    2/19560 | loss 10.954213 (+nanz)| norm 15.0014 (+nanz)| lr 1.71e-06 | 4339.91 ms | 31.1% bf16 MFU | 120807 tok/s
step    3/19560 | loss 10.854213 (+0.10z)| norm 14.0014 (-1.21z)| lr 2.57e-06 | 4341.00 ms | 31.1% bf16 MFU | 120790 tok/s
val loss 10.265413
step    4/19560 | loss 10.754213 (+0.10z)| norm 14.0014 (-1.21z)| lr 2.5
"""


def test_llmc_on_the_terminal_and_its_main_log():
    run = only(LLMC)
    assert (run.format, run.gpu, run.dtype, run.params_total) == (
        "llm.c",
        "NVIDIA A100-SXM4-40GB",
        "bfloat16",
        124475904,
    )
    assert run.curve.losses == (11.010252, 10.954213, 10.854213)
    assert run.times.median == pytest.approx(4.340455)
    assert run.evals[0].val_loss == 10.265413
    assert run.unreadable == 1
    main = only(
        "s:0 tel:11.0\n"
        + "".join(f"s:{i} trl:{11 - i / 10:.4f} lr:0.000600 norm:1.12\n" for i in range(1, 9))
        + "s:8 tel:10.2\ns:8 eval:0.2512\ns:9 trl:10."
    )
    assert main.curve.losses[0] == 10.9
    assert [e.val_loss for e in main.evals] == [11.0, 10.2]
    assert main.times.median is None


NANOCHAT = """\
GPU: NVIDIA H100 80GB HBM3 | Peak FLOPS (BF16): 9.89e+14
Vocab size: 65,536
  "n_layer": 20,
Estimated FLOPs per token: 3.491922e+09
Tokens / micro-batch / rank: 32 x 2048 = 65,536
Total batch size 524,288 => gradient accumulation steps: 8
Step 00000 | Validation bpb: 3.2345
step 00000/21400 (0.00%) | loss: 11.090355 | lrm: 1.00 | dt: 15087.22ms | tok/sec: 34,750 | bf16_mfu: 12.27 | epoch: 1 | total time: 0.00m
step 00001/21400 (0.00%) | loss: 10.990355 | lrm: 1.00 | dt: 3901.22ms | tok/sec: 134,390 | bf16_mfu: 47.45 | epoch: 1 | total time: 0.00m
step 00002/21400 (0.01%) | loss: 10.890355 | lrm: 1.00 | dt: 3900.22ms | tok/sec: 134,425 | bf16_mfu: 47.46 | epoch: 1 | total time: 0.00m
Step 00003 | Validation bpb: 2.9
step 00003/21400 (0.01%) | loss: 10.79
"""


def test_nanochat():
    run = only(NANOCHAT)
    f = figures(run)
    assert (run.format, run.gpu, f.tokens_per_step) == ("nanochat", "NVIDIA H100 80GB HBM3", 524288)
    assert [e.bits_per_byte for e in run.evals] == [3.2345, 2.9]
    assert run.unreadable == 1
    assert f.tflops == pytest.approx(0.4745 * 989, rel=0.01)
    assert f.mfu_card == pytest.approx(0.4745, rel=0.01)
    assert not f.problems


def test_modded_nanogpt_counts_training_time_only():
    lines = [
        "import torch  # step:{step}/{args.num_iterations}",
        "|   0  NVIDIA H100 80GB HBM3          On  | 00 |",
        "step:0/1480 val_loss:10.8258 train_time:0ms step_avg:nanms",
    ]
    lines += [f"step:{i}/1480 train_time:{454000 + i * 250}ms step_avg:nanms" for i in range(1, 11)]
    lines += [
        f"step:{i}/1480 train_time:{(i - 10) * 250}ms step_avg:250.00ms" for i in range(11, 126)
    ]
    lines += ["step:125/1480 val_loss:4.5123 train_time:28750ms step_avg:250.00ms"]
    run = only("\n".join(lines))
    assert (run.format, run.gpu, run.last_step, run.max_steps) == (
        "modded-nanogpt",
        "H100 80GB HBM3",
        125,
        1480,
    )
    assert run.times.median == pytest.approx(0.25)
    assert run.clock_jumps == 1  # its own reset after ten steps
    assert run.evals[-1].val_loss == 4.5123


def test_litgpt_counts_optimizer_steps():
    lines = [
        f"Epoch 1 | iter {4 * i} step {i} | loss train: {9 - i / 10:.3f}, val: n/a | iter time: 975.00 ms (step)"
        " remaining time: 2 days, 1:02:03"
        for i in range(1, 12)
    ]
    run = only("\n".join([*lines, "iter 44: val loss 7.1234, val time: 12345.67 ms"]))
    assert (run.format, run.last_step) == ("litgpt", 11)
    assert run.times.median == pytest.approx(3.9)
    assert run.evals[0].step == 11


def test_llamafactory_has_its_own_clock(tmp_path):
    """The lines of a real trainer_log.jsonl, with an evaluation, a NaN and a torn end."""
    step = '{{"current_steps": {}, "total_steps": 93, "loss": {}, "lr": 2e-06, "epoch": 0.3, "percentage": 5.4, "elapsed_time": "{}", "remaining_time": "0:33:29"}}'
    log = tmp_path / "out" / "trainer_log.jsonl"
    log.parent.mkdir()
    lines = [step.format(5 * i, 5.7 - i / 10, f"0:{2 * i:02}:00") for i in range(1, 15)]
    lines.append('{"current_steps": 70, "total_steps": 93, "eval_loss": 4.2, "epoch": 0.9}')
    lines.append(step.format(75, "NaN", "1 day, 0:30:00"))
    lines.append(step.format(80, 4.1, "1 day, 0:32:00")[:60])
    log.write_text("\n".join(lines))
    (run,) = read_runs(str(log.parent))
    assert (run.name, run.format, run.last_step) == ("out", "llama-factory", 75)
    assert run.times.median == pytest.approx(120 / 5)
    assert (run.max_steps, run.evals[0].val_loss, run.not_finite) == (93, 4.2, (75,))
    for nonsense in (-5, 10**12):
        log.write_text(log.read_text().replace('"total_steps": 93', f'"total_steps": {nonsense}'))
        assert read_runs(str(log.parent))[0].max_steps is None
        log.write_text("\n".join(lines))
    assert run.unreadable == 1


MEGATRON = (
    "  seq_length ...................................... 2048\n"
    + "".join(
        f" iteration {10 * i:8d}/  159576 | consumed samples: {960 * i:12d} | elapsed time per iteration (ms): {18700 + i:.1f} |"
        f" learning rate: 6.000E-05 | global batch size:    96 | lm loss: {11 - i / 10:.6E} | loss scale: 2048.0 |"
        " grad norm: 98258.265 | num zeros: 0.0 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
        for i in range(1, 30)
    )
    + " validation loss at iteration 290 | lm loss value: 7.174200E+00 | lm loss PPL: 1.305315E+03 |\n"
)


def test_megatron_and_its_relatives():
    """Lines as BigScience published them; relatives write the rank and the time before, and the mean time behind."""
    run = only(MEGATRON)
    assert (run.format, run.last_step, run.max_steps) == ("megatron", 290, 159576)
    assert (run.last_loss, run.evals[0].val_loss) == (8.1, 7.1742)
    assert run.times.median == pytest.approx(18.715, abs=0.01)
    assert run.tokens_per_step.value == 96 * 2048
    for change in (
        ("\n iteration", "\n[default0]: [2025-05-27 15:23:07] iteration"),
        (".0 | learning", ".0/18713.1 | learning"),
        ("iteration 290 |", "iteration 290 on validation set |"),
    ):
        other = only(MEGATRON.replace(*change))
        assert (other.last_loss, other.evals, other.times.median) == (
            run.last_loss,
            run.evals,
            run.times.median,
        )
    torn = only(MEGATRON + " iteration      300/  159576 | consumed samples:  288")
    assert (torn.last_step, torn.unreadable) == (290, 1)
    ramped = only(MEGATRON.replace("consumed samples:", "consumed samples: 1"))
    assert ramped.tokens_per_step is None
    lost = MEGATRON.splitlines()[29].replace("lm loss: 8.100000E+00 |", "")
    lost = lost.replace("  290/", "  300/").replace("nan iterations:   0", "nan iterations:  10")
    assert only(MEGATRON + lost).not_finite == (300,)


def test_a_history_may_have_tabs_between_its_columns(tmp_path):
    history = tmp_path / "history.tsv"
    rows = "".join(f"{step}\t{10 - step / 100}\t3e-4\n" for step in range(0, 100, 10))
    history.write_text(f"step\ttrain/loss\tlr\n{rows}")
    (run,) = read_runs(str(history))
    assert (run.last_step, run.last_loss) == (90, 9.1)


def test_wandb_csv_of_one_run_and_of_a_chart(tmp_path):
    history = tmp_path / "history.csv"
    rows = ["_step,_timestamp,iter,train/loss,val/loss,lr,mfu"]
    rows += [f"{i},{1.7e9 + 3.9 * i * 10},{i * 10},{9 - i / 100},,0.0006,12.93" for i in range(50)]
    rows += ["50,1700001950.0,500,8.5,8.51,0.0006,12.93", "51,oops,510,8.4,,,", '52,"']
    history.write_text("\n".join(rows))
    (run,) = read_runs(str(history))
    assert run.times.median == pytest.approx(3.9)
    assert run.mfu_printed == pytest.approx(0.1293)
    assert run.evals[0].val_loss == 8.51
    assert run.unreadable == 2
    chart = tmp_path / "chart.csv"
    chart.write_text(
        '"Step","small - train/loss","small - train/loss__MIN","wide - train/loss"\n'
        + "".join(
            f'"{i}","{9 - i / 100}","1","{"" if i > 5 else 8.5 - i / 100}"\n' for i in range(10)
        )
    )
    small, wide = read_runs(str(chart))
    assert (small.name, wide.name) == ("small", "wide")
    assert (small.last_step, wide.last_step) == (9, 5)
    assert small.curve.losses[0] == 9.0


def test_trainer_state_streams_and_tolerates_a_torn_end(tmp_path):
    state = tmp_path / "trainer_state.json"
    entries = [
        {"step": i, "loss": 9 - i / 1000, "grad_norm": 1.0, "epoch": 0.1}
        for i in range(10, 5000, 10)
    ]
    entries.insert(50, {"step": 500, "eval_loss": 8.6, "eval_runtime": 2.0})
    entries.append({"step": 5000, "train_runtime": 1000.0})
    text = json.dumps({"best_metric": None, "log_history": entries, "max_steps": 5000})
    state.write_text(text)
    (run,) = read_runs(str(state))
    assert (len(run.curve), run.evals[0].val_loss, run.wall_seconds) == (499, 8.6, 1000.0)
    state.write_text(text[:20_000])
    (run,) = read_runs(str(state))
    assert run.unreadable == 1
    assert run.curve.losses[0] == 8.99
