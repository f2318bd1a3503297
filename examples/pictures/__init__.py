"""Image retrieval by text: python -m examples.pictures

    weights = softmax(query · key / √width)          output = weights @ value

query   a wording, such as "a seven" or "the digit sept": text
key     the captions of the remembered pictures: text
value   the remembered pictures: the darkness of 64 pixels

Queries are compared with captions only, so pictures are found without being read; the output is a mean of
pictures, so it depends on the query through the weights only. A Perceiver-style encoder (one latent that attends
to the words) maps each wording and caption to a vector, and cross-attention gives the output. Pictures without
a caption are embedded by a small network on their pixels, and ranked by their cosine with the output.

Only the captions indicate which digit a picture shows; that "7", "seven", "sept" and "sieben" mean the same is
learned from the pictures with these captions. The pictures are scikit-learn's 1,797 handwritten digits: half of
them have captions, the other half are retrieved, by wordings that occur in no caption.

Source: Jaegle et al. (2021), Perceiver, https://arxiv.org/abs/2103.03206; the loss is that of Radford et al.
(2021), CLIP, section 2.3, https://arxiv.org/abs/2103.00020.
"""
