"""Sentences of explain: what one run shows, and why."""

from onecard.sentences.sentence import sentence

FINDINGS = dict(
    [
        sentence(
            "unreadable", "lines that could not be read and are left out: {n:int}, such as {line}"
        ),
        sentence(
            "one-iteration",
            "only one step is timed, and the first one includes the compilation, so its "
            "speed is unknown",
        ),
        sentence("few-iterations", "few steps are timed ({n:int}); its speed may still change"),
        sentence(
            "compile-in-first-step",
            "the first step took {first:duration}, {extra:duration} of it compilation and warm-up; it is left out",
        ),
        sentence(
            "every-time-leaks",
            "every logged step follows an evaluation, whose time is in it: {seconds:duration} is the most that a step takes, and the printed MFU is too low; log_interval below eval_interval would show",
        ),
        sentence(
            "evaluation-in-steps",
            "logged step times that include an evaluation: {n:int}, of about {each:duration} "
            "each; they are left out of the speed, but the printed MFU drops after each",
        ),
        sentence(
            "clock-back",
            "the clock goes backwards ({n:int}×); those stretches count as if they took the usual time",
        ),
        sentence(
            "resumed",
            "logged steps that were done again after a resume, or logged twice: {n:int}; the last ones count",
        ),
        sentence(
            "config-changed",
            "a resume at step {step:int} changed {key} from {before} to {after}: the steps before and after it are not of one recipe",
        ),
        sentence(
            "gaps",
            "the log jumps over steps ({n:int}×), at the widest from step {first:int} to {last:int}: lines are missing, or a number is damaged",
        ),
        sentence(
            "evaluation-apart",
            "at step {step:int} the validation loss {val:.3f} is far from the training loss {train:.3f} around it: other data, memorised text, or a damaged number",
        ),
        sentence(
            "no-card",
            "the log does not name its card, so how well it is used is unknown; give --gpu",
        ),
        sentence(
            "no-config",
            "the log does not hold its config, so its parameters, tokens and FLOPs are unknown; give --config FILE, or keys as --n_embd=384",
        ),
        sentence("no-times", "the log holds no times, so its speed is unknown"),
        sentence(
            "mfu-against-a100",
            "the printed MFU of {printed:.1%} is against an A100's 312 TFLOPS; against the {card}'s own {peak:.1f} TFLOPS it is {true:.1%}",
        ),
        sentence(
            "perplexity-for-loss",
            "{value:.2f} is not a loss in nats: an untrained model has {untrained:.1f}; as a perplexity it is a loss of {loss:.2f}",
        ),
        sentence(
            "not-finite",
            "the loss is NaN or infinite at step {step:int}: what comes after it is lost; try a lower learning rate, or bf16 instead of fp16",
        ),
        sentence(
            "loss-early",
            "at step {step:int} it is still in its warm-up of {warm:int} steps, where curves differ widely: too early to say whether the loss of {loss:.3f} is normal",
        ),
        sentence(
            "loss-normal",
            "a loss of {loss:.3f} at step {step:int} is normal for this model and schedule ({expected:.2f} ± {band:.2f})",
        ),
        sentence(
            "loss-high",
            "a loss of {loss:.3f} at step {step:int} is higher than is normal for this model and schedule ({expected:.2f} ± {band:.2f})",
        ),
        sentence(
            "loss-low",
            "a loss of {loss:.3f} at step {step:int} is lower than is normal for this model and schedule ({expected:.2f} ± {band:.2f}): easier data, or text that is seen again",
        ),
        sentence(
            "stuck",
            "after {step:int} steps the loss is {loss:.2f}, hardly below an untrained model's {untrained:.2f}: it does not learn. Look at the learning rate, the data and the targets' shift by one",
        ),
        sentence(
            "diverging",
            "the loss rose from {lowest:.2f} near step {at:int} to {last:.2f} and stays there: the run diverged. A lower learning rate or a longer warm-up, from a checkpoint before it",
        ),
        sentence(
            "spikes",
            "the loss jumps up and comes back ({n:int}×), first near step {step:int}: a few do no harm; many ask for a lower learning rate or beta2 = 0.95",
        ),
        sentence(
            "memory-spill",
            "it needs about {need:bytes} where the {card} has {have:bytes}, and steps take {times:.1f} times what they should: the driver is likely to spill into system memory. A smaller micro-batch or a memory saver",
        ),
        sentence(
            "memory-swap",
            "it needs about {need:bytes} where this machine has {have:bytes}, and steps take {times:.1f} times what they should: memory is likely to be swapped to disk. A smaller micro-batch or a memory saver",
        ),
        sentence(
            "out-of-memory", "the log says that memory ran out; `onecard plan` says what fits"
        ),
        sentence(
            "faster-than-planned",
            "a step takes {actual:duration}, less than the {low:duration} to {high:duration} that was expected: nothing is wrong; `onecard probe` makes the next plan fit this machine",
        ),
        sentence(
            "as-planned",
            "a step takes {actual:duration}, within the {low:duration} to {high:duration} "
            "expected of this machine",
        ),
        sentence(
            "slower-than-planned",
            "a step takes {actual:duration}; {low:duration} to {high:duration} was expected: {times:.1f} times slower than planned. What is named here explains it, at least in part",
        ),
        sentence(
            "slower-unexplained",
            "a step takes {actual:duration}; {low:duration} to {high:duration} was expected: {times:.1f} times slower than planned. The log does not show why: look for another program on the card, a power limit, or a laptop's card",
        ),
        sentence(
            "slower-unexplained-cpu",
            "a step takes {actual:duration}; {low:duration} to {high:duration} was expected: {times:.1f} times slower than planned. The log does not show why: look for other programs on the processor, heat, or a power-saving mode; `onecard probe` measures this machine",
        ),
        sentence(
            "data-repeats",
            "it has seen its {tokens:count} tokens {epochs:.1f} times; past about 4 times they teach little more",
        ),
        sentence(
            "overfitting",
            "since step {step:int} the training loss falls by {fall:.2f} while validation rises by {rise:.2f}: it memorises its text; stop there, take more data or dropout",
        ),
        sentence(
            "learning-rate-high",
            "a learning rate of {rate:g} is far above the {usual:.1e} that is usual for {optimizer} at {size:count} parameters, and the curve shows it",
        ),
        sentence(
            "learning-rate-high-calm",
            "a learning rate of {rate:g} is far above the {usual:.1e} that is usual for {optimizer} at {size:count} parameters; the curve is calm, so it may be right for this recipe",
        ),
        sentence(
            "learning-rate-low",
            "a learning rate of {rate:g} is far below the {usual:.1e} that is usual for {optimizer} at {size:count} parameters: it learns more slowly than it could",
        ),
        sentence(
            "never-decays",
            "lr_decay_iters = {decay:int} lies beyond max_iters = {last:int}: the learning rate never comes down, and the last fall of the loss is missed",
        ),
        sentence(
            "compile-fell-back",
            "torch.compile gave up and ran uncompiled, as the log says; its message names the reason",
        ),
        sentence(
            "compile-off",
            "compile = False costs speed: a compiled step is expected to take {gain:percent} "
            "less time",
        ),
        sentence(
            "recompiles",
            "torch compiled again and again until its limit, as the log says: a shape or a value changes between steps",
        ),
        sentence(
            "attention-slow",
            "attention ran without the flash kernel and keeps block × block scores; with it a step is expected to take {gain:percent} less time",
        ),
        sentence(
            "micro-batch-small",
            "micro-batch {now:int} is small for the {card}; {batch:int} with accumulation {steps:int} is the same training, fits, and is expected to take {gain:percent} less time",
        ),
        sentence(
            "logits-bound",
            "{share:percent} of its FLOPs go to the output head over {vocab:int} tokens: in "
            "a model this narrow, adding layers costs less than it seems",
        ),
        sentence(
            "data-wait",
            "{share:percent} of the time waits for data: a slow disk, or the data on a network; nothing is computed meanwhile",
        ),
        sentence(
            "other-programs",
            "{share:percent} of the time it waits for a core that other programs use: alone on the machine its steps are shorter",
        ),
        sentence(
            "evaluation-often",
            "evaluations and checkpoints take {share:percent} of the time; a longer eval_interval or fewer eval_iters gives it back",
        ),
        sentence(
            "slows-down",
            "the last quarter of its steps is {share:percent} slower than the first: heat, a power limit or another program{tool}",
        ),
        sentence(
            "uneven-steps",
            "its step times scatter by ± {share:percent}: something else uses the machine now and then; the log does not show what",
        ),
    ]
)
