"""Translation models built from `qkv.nn`: `python -m examples.translate --help`.

pairs.py        sentence pairs from a file, split by English sentence
vocabulary.py   subwords
batches.py      batches of sentences of similar length, in an order determined by seed and epoch number
recurrent.py    a GRU encoder and decoder, with attention by any score, or without
transformer.py  a small Transformer, with any score
models.py       the interface of models, and their names
preparing.py    preparation of a run: subwords and held-out sentences
training.py     the training loop
checkpoints.py  state from which an interrupted run resumes exactly
search.py       beam search
measuring.py    BLEU
aligning.py     agreement of attention with the origin of copied words
pictures.py     plots of alignments
recorded.py     the runs of the pages; racing.py measures the speed of each score, page.py writes the tables
"""
