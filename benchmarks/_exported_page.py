"""The exported page of a BERT with random weights in a new process: size, time beside a forward pass, peak memory."""

from __future__ import annotations

import gc
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks._memory import in_fresh_process, status
from benchmarks._race import cpu_seconds

__all__ = ["exported_page"]


def exported_page(layers: int, heads: int, width: int, tokens: int, small: bool) -> dict[str, Any]:
    """Measurements of the process: bytes of the file, CPU seconds of a forward pass and of writing, peak bytes."""
    found: dict[str, Any] = in_fresh_process("benchmarks._exported_page", [layers, heads, width, tokens, small])
    return found


def _measure(layers: int, heads: int, width: int, tokens: int, small: bool) -> dict[str, Any]:
    import torch
    import transformers

    from qkv import look
    from qkv.look.html_export import export_html, html_pieces
    from qkv.look.page import Page
    from qkv.look.tiled_views import recorded_view

    torch.manual_seed(0)
    config = transformers.BertConfig(
        num_hidden_layers=layers,
        num_attention_heads=heads,
        hidden_size=heads * width,
        intermediate_size=4 * heads * width,
        vocab_size=1000,
        max_position_embeddings=tokens,
    )
    model = transformers.BertModel(config).eval()
    inputs = {"input_ids": torch.randint(0, 1000, (1, tokens))}
    with torch.no_grad():
        model(**inputs)
        began = cpu_seconds()
        model(**inputs)
        forward = cpu_seconds() - began
    view: Any
    if tokens > 512:
        axis = look.Axis.from_count(tokens)
        view = recorded_view(model, inputs, axis, name="long", model_name="BERT", layers=None)
    else:
        view, *_ = look.model(model, inputs)
    list(html_pieces(Page.from_views(look.View.from_weights([[[[1.0]]]], ["a"]))))
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    before = status("VmRSS")
    with tempfile.TemporaryDirectory(prefix="qkv-bench") as folder:
        began = cpu_seconds()
        size = export_html(Page.from_views(view), Path(folder) / "page.html", small=small).stat().st_size
        written = cpu_seconds() - began
    return {"size": size, "forward": forward, "written": written, "growth": status("VmHWM") - before}


if __name__ == "__main__":
    print(json.dumps(_measure(*json.loads(sys.argv[1]))))
