"""Published figures, run again here: a case for each, a verdict by a rule stated beforehand, pages made from both."""

from fairway.reproduce.case import Case, DataFile, Figure, Findings, ResultTable, Setting, Verdicts, Yardstick
from fairway.reproduce.registry import all_cases, chosen_cases

__all__ = [
    "Case",
    "DataFile",
    "Figure",
    "Findings",
    "ResultTable",
    "Setting",
    "Verdicts",
    "Yardstick",
    "all_cases",
    "chosen_cases",
]
