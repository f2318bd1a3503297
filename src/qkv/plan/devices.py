"""Class `Device`, the processor on which a call runs. A plan for a known kind of GPU can be made on any machine."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from qkv.core.formatting import memory_text
from qkv.core.typing import Array, Shaped
from qkv.errors import OptionError

if TYPE_CHECKING:
    import jax


@dataclass(frozen=True)
class Device:
    """Processor on which a call runs.

    Attributes:
        name: "CPU", or the name of the kind of GPU.
        memory: bytes of memory; 0 for a CPU, whose memory the operating system states.
        capability: compute capability of a GPU, such as (9, 0).
        present: whether this machine has the GPU; otherwise plans for it are for another machine.
    """

    name: str
    memory: int = 0
    capability: tuple[int, int] = (0, 0)
    present: bool = False

    @property
    def is_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.capability > (0, 0)

    def __str__(self) -> str:
        if not self.is_gpu:
            return self.name
        text = f"{self.name}: {memory_text(self.memory)}, compute capability {self.capability[0]}.{self.capability[1]}"
        return text if self.present else f"{text}; not in this machine"


CPU = Device("CPU")

_GIB = 2**30

GPUS: dict[str, Device] = {
    gpu.name: gpu
    for gpu in (
        Device("A100", 80 * _GIB, (8, 0)),
        Device("A10", 24 * _GIB, (8, 6)),
        Device("RTX 3090", 24 * _GIB, (8, 6)),
        Device("L4", 24 * _GIB, (8, 9)),
        Device("L40S", 48 * _GIB, (8, 9)),
        Device("RTX 4090", 24 * _GIB, (8, 9)),
        Device("H100", 80 * _GIB, (9, 0)),
        Device("H200", 141 * 10**9, (9, 0)),
        Device("B200", 180 * 10**9, (10, 0)),
    )
}
"""Kinds of GPU by name."""

DEFAULT_GPU = GPUS["A100"]
"""The kind of GPU that "cuda" stands for on a machine without a GPU."""


def device_named(name: str, library: str = "torch") -> Device:
    """Return the device of a name: "cpu", "cuda", "cuda:1", or the name of a kind of GPU such as "H100".

    Args:
        library: array library of the call; GPUs are planned for PyTorch and JAX.

    Raises:
        OptionError: the name is unknown, the machine has fewer GPUs, or it is a GPU for another library.

    Example:
        >>> device_named("H200").capability
        (9, 0)
    """
    if isinstance(name, str):
        if name.lower() == "cpu":
            return CPU
        if library not in ("torch", "jax"):
            raise OptionError(
                f'device must be "cpu" for {library} arrays, got {name!r}. Pass library="torch" or "jax", or no device.'
            )
        for known, gpu in GPUS.items():
            if name.lower().replace(" ", "") == known.lower().replace(" ", ""):
                return gpu
        kind, _, index = name.partition(":")
        if kind == "cuda" and (not index or index.isdecimal()):
            number = int(index or 0)
            present = _torch_gpus() if library == "torch" else len(_jax_gpus())
            if not present and number == 0:
                return DEFAULT_GPU
            if number < present:
                return _torch_gpu(number) if library == "torch" else _jax_gpu(_jax_gpus()[number])
    kinds = ", ".join(GPUS)
    raise OptionError(
        f'device must be "cpu", "cuda", "cuda:N" for a GPU of this machine, or a kind of GPU, got {name!r}. '
        f"Known kinds are {kinds}."
    )


def device_of(reference: Shaped[Array, "*_"]) -> Device:
    """Return the device of an array. Arrays of other libraries than PyTorch and JAX, and of TPUs, count as CPU."""
    found = jax_gpu_of(reference)
    if found is not None:
        return _jax_gpu(found)
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(reference, torch.Tensor) or not reference.is_cuda:
        return CPU
    index = reference.device.index
    return _torch_gpu(torch.cuda.current_device() if index is None else index)


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


def _jax_gpus() -> list[jax.Device]:
    try:
        import jax

        return list(jax.devices("gpu"))
    except (ImportError, RuntimeError):
        return []


@cache
def _jax_gpu(device: jax.Device) -> Device:
    """Return what JAX states of a GPU. Its memory is what JAX may allocate."""
    major, _, minor = str(device.compute_capability).partition(".")
    memory = (device.memory_stats() or {}).get("bytes_limit", 0)
    return Device(str(device.device_kind), int(memory), (int(major), int(minor or 0)), present=True)


def _torch_gpus() -> int:
    try:
        import torch
    except ImportError:
        return 0
    return int(torch.cuda.device_count()) if torch.cuda.is_available() else 0


@cache
def _torch_gpu(index: int) -> Device:
    import torch

    stated = torch.cuda.get_device_properties(index)
    capability = int(stated.major), int(stated.minor)
    return Device(str(stated.name), int(stated.total_memory), capability, present=True)


@cache
def processor_name() -> str:
    """Return the name of the processor as the operating system states it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    import platform

    return platform.processor() or platform.machine()
