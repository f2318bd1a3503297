"""Page on which a query is moved over the rows of a table, while the answer and its evidence follow."""

from qkv.look.answers.answer_page import AnswerPage
from qkv.look.answers.answer_widget import explorer
from qkv.look.answers.table_source import TableSource

__all__ = ["AnswerPage", "TableSource", "explorer"]
