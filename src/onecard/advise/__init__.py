"""Advice by searching over the plan's own arithmetic: what to run, how to make it fit, whether it can be done at all."""

from onecard.advise.can import Answer, can
from onecard.advise.fit import Fitted, fit
from onecard.advise.recommend import Recommendation, recommend
from onecard.advise.review import Review, review
from onecard.advise.search import Budget
from onecard.advise.table import MemoryTable, memory_table

__all__ = [
    "Answer",
    "Budget",
    "Fitted",
    "MemoryTable",
    "Recommendation",
    "Review",
    "can",
    "fit",
    "memory_table",
    "recommend",
    "review",
]
