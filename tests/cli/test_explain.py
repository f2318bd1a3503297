"""`qkv explain`: a plan from shapes."""

import pytest

SHAPES = ("--query", "8,1024,64", "--key", "8,4096,64")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "kernel"),
        (("--value", "8,4096,32"), "values 32 wide"),
        (("--score", "additive"), "Additive"),
        (("--score", "additive:16"), "16 numbers for each logit"),
        (("--score", "bilinear"), "Bilinear"),
        (("--score", "gated"), "Gated"),
        (("--score", "separable-gate"), "SeparableGate"),
        (("--score", "gaussian:0.5", "--normalizer", "topk:10"), "TopK(10)"),
        (("--causal",), "Causal()"),
        (("--causal", "--window", "128,0"), "Causal() & Window(128"),
        (("--readout", "entropy", "--readout", "top-weights:5"), "Entropy(), TopWeights(5)"),
        (("--library", "torch", "--gradient"), "with gradient"),
        (("--dtype", "float64"), "float64 in numpy"),
        (("--kernel", "numpy_blocks"), "named in the call"),
        (("--memory", "64 MiB"), "64 MiB allowed"),
        (("--library", "torch", "--dropout", "0.1"), "dropout"),
        (("--verbose",), "refused tiled: it supports torch arrays, not numpy arrays"),
    ],
)
def test_an_option_shows_in_the_plan(qkv, options, said):
    code, out, err = qkv("explain", *SHAPES, *options)
    assert (code, err) == (0, "")
    assert said in " ".join(out.split())


def test_text_has_no_width(qkv):
    code, out, _ = qkv("explain", "--query", "5", "--key", "20000", "--value", "20000,1", "--score", "jaro-winkler")
    assert code == 0
    assert "5 queries × 20,000 keys, text" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("explain",), "--query must be given"),
        (("explain", "--query", "1,2"), "--key must be given"),
        (("explain", "--query", "a,b", "--key", "1,2"), "got 'a,b'"),
        (("explain", "--query", "10,5", "--key", "20,7"), "got widths 5 and 7"),
        (("explain", *SHAPES, "--dtype", "int8"), "got 'int8'"),
        (("explain", *SHAPES, "--library", "mxnet"), "got 'mxnet'"),
        (("explain", *SHAPES, "--kernel", "magic"), "magic"),
        (("explain", *SHAPES, "--window", "3"), "got '3'"),
        (("explain", *SHAPES, "--readout", "aura"), "got 'aura'"),
        (("explain", *SHAPES, "--causal", "--align", "middle"), "got 'middle'"),
        (("explain", *SHAPES, "--dropout", "much"), "--dropout must be a number, got 'much'"),
        (("explain", *SHAPES, "--memory", "plenty"), "plenty"),
        (("explain", *SHAPES, "--normalizer", "sigmoid", "--readout", "entropy"), "weights that sum to 1 for Entropy"),
    ],
)
def test_invalid_input_is_reported_in_one_sentence_with_exit_code_2(qkv, arguments, said):
    code, out, err = qkv(*arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
