"""Modules for PyTorch: they hold parameters and say what is asked; the engine computes."""

from qkv.errors import MissingPackageError

try:
    import torch as _torch  # noqa: F401
except ImportError:
    raise MissingPackageError('qkv.nn is made of PyTorch modules. Run: pip install "qkv[torch]"') from None

from qkv.nn import positions
from qkv.nn.attention import Attention
from qkv.nn.cache import KeyValueCache
from qkv.nn.feed_forward import FeedForward
from qkv.nn.hard import Drawn, HardAttention
from qkv.nn.heads import Head
from qkv.nn.latent import LatentAttention
from qkv.nn.layers import DecoderLayer, EncoderLayer
from qkv.nn.multihead import MultiHeadAttention
from qkv.nn.observing import Observed, observe
from qkv.nn.protocols import Attended, Cache, KeyValue, Rotary
from qkv.nn.scores import (
    Additive,
    ALiBi,
    Biased,
    Bilinear,
    ClassTable,
    Cosine,
    Custom,
    Epanechnikov,
    Gated,
    Gaussian,
    Laplace,
    LearnedScore,
    Projected,
    QuadraticPosition,
    RelativePosition,
    SeparableGate,
    Softcap,
    SumOf,
    Triangular,
    WrapperScore,
)
from qkv.nn.self_cross import CrossAttention, SelfAttention
from qkv.nn.squeeze import SqueezeExcitation
from qkv.nn.torch_border import torch_masks
from qkv.nn.transformer import Decoder, Encoder, Transformer

__all__ = [
    "Attention",
    "SelfAttention",
    "CrossAttention",
    "MultiHeadAttention",
    "Head",
    "Attended",
    "KeyValue",
    "Cache",
    "KeyValueCache",
    "positions",
    "FeedForward",
    "EncoderLayer",
    "DecoderLayer",
    "Encoder",
    "Decoder",
    "Transformer",
    "LatentAttention",
    "HardAttention",
    "Drawn",
    "SqueezeExcitation",
    "observe",
    "Observed",
    "Rotary",
    "LearnedScore",
    "WrapperScore",
    "Additive",
    "Bilinear",
    "Gated",
    "SeparableGate",
    "Cosine",
    "Projected",
    "SumOf",
    "Gaussian",
    "Laplace",
    "Epanechnikov",
    "Triangular",
    "Softcap",
    "Biased",
    "ALiBi",
    "RelativePosition",
    "QuadraticPosition",
    "ClassTable",
    "Custom",
    "torch_masks",
]
