"""Translation models built from `qkv.nn`: `python -m examples.translate --help`.

pairs.py        sentence pairs from a file, split by English sentence
vocabulary.py   subwords
batches.py      sentences of like length together, in an order that a seed and an epoch number fix
recurrent.py    a GRU encoder and decoder, with attention of any score or with none
transformer.py  a small Transformer, with any score
models.py       what a model must do, and which there are
preparing.py    what a training starts from: subwords, and the sentences kept from it
training.py     the loop        checkpoints.py   what it needs to go on as if never interrupted
search.py       beam search     measuring.py     BLEU
aligning.py     is attention where a copied word came from?     pictures.py   alignments to look at
recorded.py     the runs behind the page; racing.py the speed of each score; page.py writes the tables
"""
