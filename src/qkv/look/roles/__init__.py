"""Measure the roles of attention heads over many sentences, with confidence intervals and baselines.

    measure_roles(text_model, sentences)   score every head for every role
    read_gap(path), read_winobias(…)       read sentences with annotated pronouns
    read_conllu(path)                      read sentences with syntax trees

`RoleTable.labels` assigns a role to a head only if enough sentences were measured.
"""

from qkv.look.roles.annotations import (
    AnnotatedSentence,
    Question,
    count_neither,
    plain_sentences,
    read_conllu,
    read_gap,
    read_winobias,
)
from qkv.look.roles.measure import HeadScore, RoleTable, measure_roles

__all__ = [
    "AnnotatedSentence",
    "HeadScore",
    "Question",
    "RoleTable",
    "count_neither",
    "measure_roles",
    "plain_sentences",
    "read_conllu",
    "read_gap",
    "read_winobias",
]
