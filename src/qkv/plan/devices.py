"""Class `Device`, which describes the processor on which a call runs: its memory, and for GPUs its throughput.

The throughput of a kind of GPU comes from the manufacturer's data sheets, not from measurements. A plan for a GPU can
therefore be made on a machine that has none.

Source: https://www.nvidia.com/en-us/data-center/ (data sheets of A100, A10, L4, L40S, H100, H200 and B200), and
https://docs.nvidia.com/cuda/cuda-c-programming-guide/#arithmetic-instructions (operations per clock).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

from qkv.core.typing import Array, Shaped
from qkv.errors import OptionError
from qkv.plan.cost import memory_text
from qkv.plan.jax_devices import GpuProperties, jax_gpu_of, jax_gpus, jax_properties

if TYPE_CHECKING:
    import jax
    import torch

__all__ = ["CPU", "DEFAULT_GPU", "GPUS", "Device", "GpuWork", "device_named", "device_of"]

_LAUNCH = 5e-6
"""Seconds to launch an operation of PyTorch from Python; the GPU waits if its operations take less."""
_EFFICIENCY = 0.6
"""Share of the peak throughput that a kernel is assumed to reach."""


@dataclass(frozen=True)
class GpuWork:
    """Amounts of work of a call on a GPU, from which its time is estimated.

    Attributes:
        matrix: operations of matrix products, two for each multiply-add.
        vector: other operations of numbers in single precision, two for each multiply-add.
        special: exponentials, reciprocals and other special functions.
        traffic: bytes read from and written to the memory of the GPU.
        launches: number of operations that are launched one after the other.
    """

    matrix: float
    vector: float
    special: float
    traffic: float
    launches: float


@dataclass(frozen=True)
class Device:
    """Processor on which a call runs.

    Attributes:
        name: "CPU", or the name of the kind of GPU.
        memory: bytes of memory; 0 for a CPU, whose memory the operating system states.
        bandwidth: bytes per second read from the memory.
        multiprocessors: number of streaming multiprocessors (SMs).
        clock: clock in hertz under load.
        capability: compute capability, such as (9, 0).
        half_products: multiply-adds of matrix products in bfloat16 per SM and clock, accumulated in float32.
        present: whether this machine has the GPU; otherwise plans for it are estimates for another machine.
    """

    name: str
    memory: int = 0
    bandwidth: float = 0.0
    multiprocessors: int = 0
    clock: float = 0.0
    capability: tuple[int, int] = (0, 0)
    half_products: int = 0
    present: bool = False

    @property
    def is_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.multiprocessors > 0

    @property
    def multiply_adds(self) -> int:
        """Number of single-precision multiply-adds outside of matrix products, per SM and clock."""
        return 64 if self.capability == (8, 0) else 128

    @property
    def special_functions(self) -> int:
        """Number of special functions per SM and clock."""
        return 16

    def seconds(self, work: GpuWork, dtype: str) -> float:
        """Return the estimated time of a call on this GPU.

        Launches and computation overlap, and so do matrix products, other arithmetic and reading of memory, so the
        time is that of the slowest.

        Args:
            work: amounts of work of the call.
            dtype: name of the dtype of the inputs, which determines the units that compute matrix products.
        """
        rate = self.multiprocessors * self.clock * _EFFICIENCY
        products = self.half_products if dtype in ("bfloat16", "float16") else self.multiply_adds
        slowdown = 2 if dtype == "float64" else 1
        return max(
            work.launches * _LAUNCH,
            slowdown * work.matrix / (2 * products * rate),
            slowdown * (work.vector / (2 * self.multiply_adds * rate) + work.special / (self.special_functions * rate)),
            work.traffic / (self.bandwidth * _EFFICIENCY),
        )

    def __str__(self) -> str:
        if not self.is_gpu:
            return self.name
        text = (
            f"{self.name}: {memory_text(self.memory)}, {self.bandwidth / 1e12:.3g} TB/s, {self.multiprocessors} "
            f"multiprocessors, compute capability {self.capability[0]}.{self.capability[1]}"
        )
        return text if self.present else f"{text}; not in this machine"


CPU = Device("CPU")

_GIB = 2**30

GPUS: dict[str, Device] = {
    gpu.name: gpu
    for gpu in (
        Device("A100", 80 * _GIB, 2.04e12, 108, 1.41e9, (8, 0), 1024),
        Device("A10", 24 * _GIB, 0.6e12, 72, 1.70e9, (8, 6), 512),
        Device("RTX 3090", 24 * _GIB, 0.936e12, 82, 1.70e9, (8, 6), 256),
        Device("L4", 24 * _GIB, 0.3e12, 58, 2.04e9, (8, 9), 512),
        Device("L40S", 48 * _GIB, 0.864e12, 142, 2.52e9, (8, 9), 512),
        Device("RTX 4090", 24 * _GIB, 1.01e12, 128, 2.52e9, (8, 9), 256),
        Device("H100", 80 * _GIB, 3.35e12, 132, 1.83e9, (9, 0), 2048),
        Device("H200", 141 * 10**9, 4.8e12, 132, 1.83e9, (9, 0), 2048),
        Device("B200", 180 * 10**9, 8.0e12, 148, 1.85e9, (10, 0), 4096),
    )
}
"""Kinds of GPU by name."""

DEFAULT_GPU = GPUS["A100"]
"""The kind of GPU that "cuda" stands for on a machine without a GPU."""

_BY_CAPABILITY = ("A100", "A10", "L4", "H100", "B200")
"""Names of the kinds whose throughput per multiprocessor is assumed for other GPUs of their compute capability."""


def device_named(name: str, library: str = "torch") -> Device:
    """Return the device of a name: "cpu", "cuda", "cuda:1", or the name of a kind of GPU such as "H100".

    Args:
        library: array library of the call; GPUs are planned for PyTorch and JAX.

    Raises:
        OptionError: the name is unknown, the machine has fewer GPUs, or it is a GPU for another library.

    Example:
        >>> device_named("H200").multiprocessors
        132
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
            present = _gpu_count() if library == "torch" else len(jax_gpus())
            if not present and index in ("", "0"):
                return DEFAULT_GPU
            if int(index or 0) < present:
                return _present_gpu(int(index or 0)) if library == "torch" else _jax_gpu(jax_gpus()[int(index or 0)])
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
    return _present_gpu(torch.cuda.current_device() if index is None else index)


def _gpu_count() -> int:
    try:
        import torch
    except ImportError:
        return 0
    return int(torch.cuda.device_count()) if torch.cuda.is_available() else 0


@cache
def _jax_gpu(device: jax.Device) -> Device:
    return from_properties(jax_properties(device))


@cache
def _present_gpu(index: int) -> Device:
    import torch

    return from_properties(torch.cuda.get_device_properties(index))


def from_properties(properties: torch._C._CudaDeviceProperties | GpuProperties) -> Device:
    """Return the device of the properties that PyTorch or JAX state; what it does not state is that of a similar GPU.

    Args:
        properties: name, total memory, number of multiprocessors and compute capability.
    """
    capability = (int(properties.major), int(properties.minor))
    words = str(properties.name).replace("-", " ")
    # Longer names first, because L4 is a part of L40S.
    similar = next((gpu for name, gpu in sorted(GPUS.items(), key=lambda item: -len(item[0])) if name in words), None)
    if similar is None:
        older = [GPUS[name] for name in _BY_CAPABILITY if GPUS[name].capability <= capability]
        similar = older[-1] if older else DEFAULT_GPU
        share = int(properties.multi_processor_count) / similar.multiprocessors
        similar = replace(similar, bandwidth=similar.bandwidth * min(1.0, share))
    return replace(
        similar,
        name=str(properties.name),
        memory=int(properties.total_memory),
        multiprocessors=int(properties.multi_processor_count),
        capability=capability,
        present=True,
    )
