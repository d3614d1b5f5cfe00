"""Sentences about which recipe `recommend` takes, and what follows from it."""

from onecard.sentences.sentence import sentence

RECIPES = dict(
    [
        sentence(
            "recipe-modern",
            "the modern recipe: {gain:.2f} nats lower ({low:.2f} to {high:.2f}) than the "
            "best run of GPT-2's recipe, which ends at {loss:.2f} after {tokens:count} "
            "tokens here{rate}",
        ),
        sentence(
            "recipe-unproven",
            "GPT-2's recipe: no public run of the modern one has this size and length; "
            "the modern one might end at {loss:.2f} instead of {ours:.2f}",
        ),
        sentence(
            "recipe-time",
            "recipe = {recipe} should reach the same loss in {time:duration} instead of "
            "{ours:duration}",
        ),
        sentence(
            "other-lower",
            "recipe = {recipe} should reach a loss of {loss:.2f} in the same budget instead of "
            "{ours:.2f}: {gain:.2f} nats lower ({low:.2f} to {high:.2f}){rate}",
        ),
        sentence(
            "other-higher",
            "recipe = {recipe} should reach a loss of {loss:.2f} in the same budget instead of "
            "{ours:.2f}: {gain:.2f} nats higher ({low:.2f} to {high:.2f}){rate}",
        ),
        sentence(
            "modern-exports",
            "onecard and transformers load a model of the modern recipe; llama.cpp and "
            "nanoGPT load only GPT-2's",
        ),
        sentence(
            "recipe-rate",
            "; {gain:.2f} with the best learning rate of the public runs instead of GPT-2's cautious one",
        ),
        sentence(
            "recipe-runs",
            "the gain of the modern recipe is estimated above all from {runs:int} public runs of "
            "{sources:int} projects ({low:count} to {high:count} parameters, {shortest:count} to "
            "{longest:count} tokens), {near:int} of them between half and twice this size",
        ),
        sentence(
            "recipe-runs-far",
            "no public run of the modern recipe is between half and twice this size: its "
            "gain is estimated from {runs:int} runs of {low:count} to {high:count} "
            "parameters and is less certain",
        ),
        sentence(
            "recipe-length-below",
            "what the modern recipe gains here is interpolated and less certain, between its shortest public run "
            "({shortest:count} tokens) and onecard's own comparisons of small models ({first:count} to "
            "{last:count} tokens of GPT-2's recipe)",
        ),
        sentence(
            "recipe-length-beyond",
            "what the modern recipe gains here is extrapolated and less certain: its longest public run has "
            "{longest:count} tokens, and the gain shrinks as runs grow",
        ),
        sentence(
            "small-run-recipe",
            "the modern recipe: no public run of it is this small, but in onecard's own it reached the loss of "
            "GPT-2's recipe with at most {first:percent} of its {short:count} tokens (prose, code and technical "
            "English), and with {last:percent} of {long:count} (code alone): its lead shrinks as runs grow "
            "(docs/performance.md)",
        ),
        sentence(
            "recipe-other-text",
            "the modern recipe: no public run compares the two on this text, but it leads in public runs on web "
            "text ({low:count} to {high:count} parameters), and in onecard's own small ones it reached the loss "
            "of GPT-2's recipe with at most {first:percent} of its {short:count} tokens (prose, code and technical "
            "English), and with {last:percent} of {long:count} (code alone): its lead shrinks as runs grow "
            "(docs/performance.md)",
        ),
    ]
)
