"""Tiny random models of every family that transformers maps, built by shrinking default configurations.

Numbers are shrunk by what they are called; what the rules get wrong stands in `OVERRIDES`.
"""

import importlib
import inspect
import re
from typing import Any

import torch

VOCABULARY = 99
LENGTH = 12

# The first rule whose pattern is found in the name of a number decides.
RULES: list[tuple[str, Any]] = [
    ("dropout|pdrop|drop_rate|layerdrop|drop_path|drop_prob", 0.0),
    ("mask_time_prob|mask_feature_prob", 0.0),
    ("^(initializer_range|init_std)$", 0.1),
    ("feat_extract|mamba|conv|ssm|linear_(key|value|num)|num_feature_levels", "as it is"),
    ("num_(key_value|kv|global_key_value)_?heads|multi_query_group_num", "kv"),
    ("^(n_heads|n_head|num_heads|num_attention_heads)$|attention_heads$|_num_heads$|_n_heads$", 4),
    ("^(qk_nope|qk_rope|v|qk|global|attention|swa|swa_v|index)?_?head_dim$|^(d_kv|kv_channels)$", 8),
    ("lora_rank|lora_dim|_rank$", 16),
    ("^(|text_|encoder_)vocab_size$", VOCABULARY),
    ("experts_per_tok|topk_group|num_experts_per|moe_topk|^top_k$|moe_k$|topk$|n_group$", 2),
    ("(num_|n_).*experts|moe_num", 4),
    ("shared_experts|first_k_dense|moe_layer_start|num_dense_layers|first_dense|n_dense", 1),
    ("^(num_hidden_layers|n_layers|n_layer|num_layers|depth|decoder_layers|encoder_layers)$", 2),
    ("num_.*layers$|_layers$|_depth$", 2),
    ("max_.*position|n_positions|max_seq|max_source|max_target|max_length", 64),
    ("intermediate|ffn|d_ff|n_inner|mlp_dim|feed_forward", 48),
    ("^(image|img)_size$", 16),
    ("^patch_size$", 4),
    ("^sliding_window(_size)?$|^attention_(window|chunk_size)$|^local_attention$|^window_size$", "window"),
    ("index_topk|index_n_heads", 4),
    ("hidden_size_per_layer_input", 8),
    ("(^|_)(hidden_size|d_model|n_embd|hidden_dim|embed_dim|embedding_size|projection_dim)$", 32),
    ("(^|_)(embedding_dim|width|emb_dim|model_dim|out_hidden_size|dim)$", 32),
    ("num_mel_bins|num_mel", 16),
]
_COMPILED = [(re.compile(pattern), to) for pattern, to in RULES]

OVERRIDES: dict[str, dict[str, Any]] = {
    "codegen": {"rotary_dim": 4},
    "esm": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "attention_layers": ["global", "local"]},
    "gptj": {"rotary_dim": 4},
    "mobilebert": {"intra_bottleneck_size": 32},
    "swin": {"image_size": 64, "window_size": 2, "initializer_range": 0.02},
    "yolos": {"image_size": [32, 32]},
}
LEFT_OUT = ("architectures", "transformers_version", "model_type", "dtype")
# What names layers that are no longer there.
STALE = ("per_layer_config", "out_features", "out_indices", "stage_names")


class UnbuiltError(Exception):
    """A tiny model of this family could not be made, or not be run."""


def mapped() -> dict[str, list[str]]:
    """Every model type that transformers maps, and its classes: first that with a head for text, if any."""
    auto = importlib.import_module("transformers.models.auto.modeling_auto")
    out: dict[str, list[str]] = {}
    for names in (
        auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        auto.MODEL_MAPPING_NAMES,
    ):  # fmt: skip
        for name in auto.MODEL_MAPPING_NAMES:
            if name in names:
                cls = names[name]
                out.setdefault(name, []).append(cls if isinstance(cls, str) else cls[0])
    return out


def config_of(kind: str) -> Any:
    """The default config of a model type, shrunk."""
    import transformers

    cls = transformers.CONFIG_MAPPING[kind]
    small = _shrunk(cls().to_dict())
    for name in LEFT_OUT:
        small.pop(name, None)
    for name, value in OVERRIDES.get(kind, {}).items():
        small[name] = {**small[name], **value} if isinstance(value, dict) else value
    return cls(**small)


def model_of(kind: str) -> Any:
    """A tiny random model in float32.

    Raises:
        UnbuiltError: why not.
    """
    import transformers

    said = ""
    for name in mapped()[kind]:
        try:
            config = config_of(kind)
            config._attn_implementation = "eager"
            cls = getattr(transformers, name)
            with torch.device("meta"):
                size = sum(p.numel() for p in cls(config).parameters())
            if size > 30_000_000:
                raise UnbuiltError(f"has {size / 1e6:.0f} million parameters after shrinking")
            torch.manual_seed(0)
            return cls(config).float().eval()
        except Exception as error:
            lines = str(error).strip().splitlines()
            alone = isinstance(error, UnbuiltError)
            said = said or ("" if alone else f"{type(error).__name__}: ") + (lines[0][:90] if lines else "")
    raise UnbuiltError(said)


def _shrunk(values: dict[str, Any], own: int = 0) -> dict[str, Any]:
    heads = next((v for k, v in values.items() if re.fullmatch(r"num_attention_heads|n_heads?", k)), None)
    layers = 2
    out: dict[str, Any] = {}
    for name, value in values.items():
        if name in STALE:
            continue
        if name == "head_dim" and value is None:
            out[name] = 8
        elif name == "intermediate_size" and isinstance(value, list):
            out[name] = [48] * layers
        elif isinstance(value, dict) and name not in ("id2label", "label2id") and "rope" not in name:
            out[name] = _shrunk(value)
        elif isinstance(value, dict) and "rope_type" in value:
            # Half of a head's width in three parts, for models of pictures and time; others pass it over.
            out[name] = {**value, "mrope_section": [2, 1, 1]}
        elif name in ("layer_types", "mlp_layer_types") and isinstance(value, list) and value:
            out[name] = sorted(set(value), key=value.index)[:layers]
            out[name] = (out[name] * layers)[:layers]
        elif name in ("num_heads", "num_attention_heads") and isinstance(value, list):
            # Widths double from stage to stage.
            out[name] = [2 ** (n + 1) for n in range(len(value))]
        elif name == "depths" and isinstance(value, list):
            out[name] = [min(n, 2) for n in value]
        else:
            out[name] = _number(name, value, heads)
    return out


def _number(name: str, value: Any, heads: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return value
    if re.search(r"token_id$|token_index$|_token$", name):
        return value if value < VOCABULARY else VOCABULARY - 9
    for pattern, to in _COMPILED:
        if not pattern.search(name):
            continue
        if to == "as it is":
            return value
        if to == "kv":
            return 2 if isinstance(heads, int) and value < heads else 4
        if to == "window":
            return min(value, 6) if value and value > 0 else value
        if isinstance(value, float) and isinstance(to, int):
            return value
        return min(value, to) if isinstance(to, int) else type(value)(to)
    return value


VARIANTS = ("text", "text and picture", "picture", "sound", "wave")


def inputs_of(model: Any, variant: str, pad: str) -> dict[str, Any]:
    """Inputs of two sequences, padded "left", "right" or not ("none").

    Raises:
        UnbuiltError: the model does not take such.
    """
    torch.manual_seed(1)
    config, takes = model.config, inspect.signature(model.forward).parameters
    given: dict[str, Any] = {}
    wanted = {
        "text": ["input_ids"], "text and picture": ["input_ids", "pixel_values"], "picture": ["pixel_values"],
        "sound": ["input_features"], "wave": ["input_values"],
    }[variant]  # fmt: skip
    if missing := [name for name in wanted if name not in takes]:
        raise UnbuiltError(f"takes no {missing[0]}")
    if "input_ids" in wanted:
        many = getattr(config.get_text_config(), "vocab_size", None)
        ids = torch.randint(5, min(80, many if isinstance(many, int) else 80), (2, LENGTH))
        given |= {"input_ids": ids, "attention_mask": real(pad)}
    if "pixel_values" in wanted:
        of = getattr(config, "vision_config", config)
        side = next((getattr(of, n) for n in ("image_size", "img_size") if hasattr(of, n)), 16)
        side = side if isinstance(side, int) else side[0]
        channels = getattr(of, "num_channels", getattr(of, "in_channels", 3))
        given["pixel_values"] = torch.randn(2, channels, side, side)
    if "input_features" in wanted:
        bins = getattr(config, "num_mel_bins", 16)
        given["input_features"] = torch.randn(2, bins, 2 * getattr(config, "max_source_positions", 32))
    if "input_values" in wanted:
        given["input_values"] = torch.randn(2, 2000)
    if config.is_encoder_decoder and "decoder_input_ids" in takes:
        given["decoder_input_ids"] = torch.randint(5, 60, (2, 7))
    return given


def real(pad: str) -> torch.Tensor:
    """Which tokens are no padding, (2, length): the second text is shorter where there is padding."""
    mask = torch.ones((2, LENGTH), dtype=torch.int64)
    if pad == "right":
        mask[1, LENGTH - 4 :] = 0
    elif pad == "left":
        mask[1, :4] = 0
    return mask
