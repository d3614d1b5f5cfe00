"""Sentences about which recipe `recommend` takes, and what follows from it."""

from onecard.sentences.sentence import sentence

RECIPES = dict(
    [
        sentence(
            "recipe-modern",
            "the modern recipe: {gain:.2f} nats lower ({low:.2f} to {high:.2f}) than the "
            "best run of GPT-2's recipe, which ends at {loss:.2f} after {tokens:count} "
            "tokens here",
        ),
        sentence(
            "recipe-unproven",
            "GPT-2's recipe: no public run of the modern one has this size, length and data; "
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
            "{ours:.2f}: {gain:.2f} nats lower ({low:.2f} to {high:.2f})",
        ),
        sentence(
            "other-higher",
            "recipe = {recipe} should reach a loss of {loss:.2f} in the same budget instead of "
            "{ours:.2f}: {gain:.2f} nats higher ({low:.2f} to {high:.2f})",
        ),
        sentence(
            "modern-exports",
            "onecard and transformers load a model of the modern recipe; llama.cpp and "
            "nanoGPT load only GPT-2's",
        ),
        sentence(
            "recipe-rate",
            "{gain:.2f} nats of the difference come from GPT-2's cautious learning rate: "
            "with the best rate of the public runs it would end at {loss:.2f}",
        ),
        sentence(
            "recipe-runs",
            "the gain of the modern recipe is estimated from {runs:int} public runs of "
            "{sources:int} projects ({low:count} to {high:count} parameters), {near:int} of "
            "them between half and twice this size",
        ),
        sentence(
            "recipe-runs-far",
            "no public run of the modern recipe is between half and twice this size: its "
            "gain is estimated from {runs:int} runs of {low:count} to {high:count} "
            "parameters and is less certain",
        ),
        sentence(
            "small-run-recipe",
            "the modern recipe: no public run compares the two at this size or on this text, but in "
            "onecard's own runs of 1 M parameters on prose, code and technical English it reached the "
            "loss of GPT-2's recipe with {tokens:percent} of the tokens and {time:percent} of the time (docs/performance.md)",
        ),
    ]
)
