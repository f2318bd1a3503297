"""GPUs of arrays of JAX, and what JAX states of them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

from qkv.core.typing import Array, Shaped

if TYPE_CHECKING:
    import jax

__all__ = ["GpuProperties", "jax_gpu_of", "jax_gpus", "jax_properties"]


class GpuProperties(NamedTuple):
    """Name, bytes of memory, number of multiprocessors and compute capability, as in PyTorch's properties."""

    name: str
    total_memory: int
    multi_processor_count: int
    major: int
    minor: int


def jax_gpu_of(reference: Shaped[Array, "*_"]) -> jax.Device | None:
    """Return the GPU of an array of JAX, or None for other arrays and for arrays in other memory.

    An array that JAX traces counts as an array of the default device.
    """
    if "jax" not in sys.modules:
        return None
    import jax

    if not isinstance(reference, jax.Array):
        return None
    if jax.default_backend() == "cpu":  # without a GPU that is preferred; no array is asked, which takes longer
        return None
    tracer = isinstance(reference, jax.core.Tracer)
    found: jax.Device = jax.devices()[0] if tracer else min(reference.devices(), key=lambda device: device.id)
    return found if found.platform in ("gpu", "cuda") else None


def jax_gpus() -> list[jax.Device]:
    """Return the GPUs that JAX finds."""
    try:
        import jax

        return list(jax.devices("gpu"))
    except (ImportError, RuntimeError):
        return []


def jax_properties(device: jax.Device) -> GpuProperties:
    """Return what JAX states of a GPU. Its memory is what JAX may allocate."""
    major, _, minor = str(device.compute_capability).partition(".")
    memory = (device.memory_stats() or {}).get("bytes_limit", 0)
    count = int(getattr(device, "core_count", 0))
    return GpuProperties(str(device.device_kind), int(memory), count, int(major), int(minor or 0))
