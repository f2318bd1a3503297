"""What heads look at, measured over many sentences: roles with intervals, beside rules without a model.

    measure(reader, sentences)      every head against every role, at several lengths
    sentences.gap(path) …           annotated sentences: pronouns with two names, occupations, syntax trees

One sentence never gives a head a role: see `Table.labels`.
"""

from qkv.look.roles.annotations import Question, Sentence, conllu, gap, plain, winobias
from qkv.look.roles.measure import measure
from qkv.look.roles.role_table import Row, Table

__all__ = ["Question", "Row", "Sentence", "Table", "conllu", "gap", "measure", "plain", "winobias"]
