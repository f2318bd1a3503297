"""Image retrieval by text: python -m examples.pictures

    weights = softmax(query · key / √width)          output = weights @ value

query   a wording, such as "a seven" or "the digit sept": text
key     the captions of the remembered pictures: text
value   the remembered pictures themselves: 64 numbers, how dark each pixel is

Queries meet captions only, so a picture need not be looked at to be found; what comes back is made of pixels
only: there is no way from the query to the output around the values. A Perceiver-style reader (one latent
that attends to the words) makes a vector of each wording and caption; cross-attention does the rest. The
output is then held against pictures that have no caption, through a small network on their pixels, and these
are ranked by it.

Nothing says which digit a picture shows but its caption, and that "7", "seven", "sept" and "sieben" mean the
same is learned from the pictures that bear these words. The pictures are scikit-learn's 1,797 handwritten
digits: half are remembered, the other half is looked for, by wordings that no caption had.

Source: Jaegle et al. (2021), Perceiver, https://arxiv.org/abs/2103.03206; the loss is that of Radford et al.
(2021), CLIP, section 2.3, https://arxiv.org/abs/2103.00020.
"""
