"""Words by which the search of the site finds a page that does not have them in its title, and pages it leaves out."""

from __future__ import annotations

from fnmatch import fnmatch

UNSEARCHED = ("decisions/*", "design/changelog.md", "design/modules.md", "mutation.md")
"""Pages with the words of every other page, which are read in order or from a link."""

KEYWORDS = {
    "ask.md": "ask a table, fuzzy lookup, nearest row, query, bandwidth, kernel regression",
    "ask/everyday.md": "filter, where, predicate, SQL, group by, date, time, category, missing value, votes",
    "ask/lines.md": "slope, gradient, local-linear, trend, extrapolation",
    "ask/many-queries.md": "batch, pandas, polars, export of answers, JSON, exit code",
    "ask/untidy-files.md": "CSV, delimiter, encoding, header, decimal comma, Excel",
    "ask/which-keys-match.md": "misspelt, misspelled, typo, fuzzy match, similarity, threshold, no match, Levenshtein",
    "encoders.md": "embedding, sentence vectors, LSA, latent semantic analysis, word vectors, contextual vectors",
    "estimators.md": "pipeline, cross-validation, cross validation, grid search, scikit-learn, sklearn, regression, "
    "classifier, prediction interval, confidence interval, uncertainty, standard error",
    "first-steps.md": "installation, install, setup, pip, requirements",
    "gallery/latent-semantics.md": "LSA, latent semantic analysis, SVD, topics",
    "guide/choosing.md": "which score, softmax, sparsemax, entmax, kernel function, causal mask, dropout",
    "guide/explain.md": "EXPLAIN, plan, why this kernel",
    "guide/extending.md": "custom score, own mask, own normalizer, own kernel, plug-in",
    "guide/memory.md": "slow, fast, speed, memory, out of memory, OOM, threads, budget",
    "guide/precision.md": "float16, bfloat16, NaN, rounding, accuracy, reproducible, seed",
    "gallery/transformer.md": "encoder, decoder, feed-forward, training",
    "huggingface.md": "BERT, GPT, Llama, transformers, pretrained model",
    "join.md": "record linkage, deduplicate, duplicates, fuzzy join, entity resolution, merge tables",
    "limitations.md": "not supported, known problems",
    "look.md": "visualise, visualize, heatmap, attention map, attention plot, notebook widget",
    "performance/index.md": "slow, faster, speed, benchmark, comparison",
    "roles.md": "interpretability, head analysis, ablation",
    "scale.md": "cluster, S3, object storage, distributed, many machines, ray",
    "search.md": "full-text search, BM25, retrieval, ranking, documents, RAG",
    "serve.md": "HTTP, REST, API, MCP, assistant, server",
    "stability.md": "stable, compatibility, deprecation, semantic versioning, renamed",
    "start/index.md": "quickstart, getting started, extras, install",
    "stores.md": "database, store, append, delete, version, larger than memory, Arrow, Lance, persist",
    "stores/verify-and-repair.md": "damaged, corrupt, repair, backup, checksum",
    "translate.md": "translation, sequence to sequence, seq2seq",
    "tutorials/analyst.md": "confidence interval, prediction interval, analyst",
    "tutorials/index.md": "tutorial, course, learn",
    "tutorials/lecturer.md": "lecture, teaching, class, course, slides",
    "tutorials/model-builder.md": "training loop, PyTorch",
}
"""Words and phrases by page of docs/; a query that equals one of them, or half of it, leads to the page first."""


def with_search_words(name: str, text: str) -> str:
    """Return the text of a page with the words by which it is found, or a note that it is not searched.

    Args:
        name: the path of the page on the site, or in docs/.
        text: the text, with its title in the first line.
    """
    if any(fnmatch(name, pattern) for pattern in UNSEARCHED):
        return f"---\nnosearch: true\n---\n\n{text}"
    if name not in KEYWORDS:
        return text
    title, _, rest = text.partition("\n")
    words = ", ".join(f"! {word}" for word in KEYWORDS[name].split(", "))
    return f"{title}\n\n```{{index}} {words}\n```\n{rest}"
