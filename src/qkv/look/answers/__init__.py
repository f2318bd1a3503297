"""Page on which a query is moved over the rows of a table, while the answer and its evidence follow."""

from qkv.look.answers.answer_page import AnswerPage
from qkv.look.answers.answer_settings import TableSource
from qkv.look.answers.answer_widget import explorer

__all__ = ["AnswerPage", "TableSource", "explorer"]
