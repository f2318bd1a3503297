"""PyTorch modules for attention. They hold parameters and options, and call `qkv.engine` to compute their output."""

from qkv.core.extras import require_packages

require_packages("qkv.nn needs", "torch", "torch")

from qkv.nn import positions
from qkv.nn.attention import Attention
from qkv.nn.cache import BlockPool, KeyValueCache, PagedCache, StateCache
from qkv.nn.feed_forward import FeedForward
from qkv.nn.hard_attention import HardAttention, HardAttentionOutput
from qkv.nn.head_layout import Head
from qkv.nn.latent_attention import LatentAttention
from qkv.nn.multihead import CrossAttention, MultiHeadAttention, SelfAttention
from qkv.nn.observe_model import ModelObservation, observe
from qkv.nn.packed import attend_jagged, attend_packed
from qkv.nn.protocols import AttentionOutput, Cache, KeyValue, Rotation
from qkv.nn.scores import learned, wrappers
from qkv.nn.scores.base import Initial, LearnedScore, LearnedWrapper
from qkv.nn.scores.learned import *
from qkv.nn.scores.wrappers import *
from qkv.nn.squeeze_excitation import SqueezeExcitation
from qkv.nn.torch_interop import torch_masks
from qkv.nn.transformer import Decoder, DecoderLayer, Encoder, EncoderLayer, Transformer

__all__ = [
    "Attention",
    "SelfAttention",
    "CrossAttention",
    "MultiHeadAttention",
    "Head",
    "AttentionOutput",
    "KeyValue",
    "Cache",
    "KeyValueCache",
    "PagedCache",
    "BlockPool",
    "StateCache",
    "positions",
    "FeedForward",
    "EncoderLayer",
    "DecoderLayer",
    "Encoder",
    "Decoder",
    "Transformer",
    "LatentAttention",
    "HardAttention",
    "HardAttentionOutput",
    "SqueezeExcitation",
    "observe",
    "ModelObservation",
    "Rotation",
    "LearnedScore",
    "Initial",
    "LearnedWrapper",
    "torch_masks",
    "attend_packed",
    "attend_jagged",
]
__all__ += learned.__all__
__all__ += wrappers.__all__
