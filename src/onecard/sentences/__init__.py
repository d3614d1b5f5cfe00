"""The English sentences of plans, advice and runs, by code: algorithms name a code and its figures, never words.

>>> SENTENCES["fit-same"]
'yours is already the fastest that fits'

They are below the rooms that use them because JSON answers carry them too; report/locales/ has them in other languages.
"""

from onecard.sentences.advice import ADVICE
from onecard.sentences.comparing import COMPARING
from onecard.sentences.findings import FINDINGS
from onecard.sentences.planning import PLANNING
from onecard.sentences.recipes import RECIPES
from onecard.sentences.tuning import TUNING

SENTENCES: dict[str, str] = {
    **PLANNING,
    **ADVICE,
    **RECIPES,
    **TUNING,
    **FINDINGS,
    **COMPARING,
}
