"""The class `DeviceProducts`: products of stored vectors and queries on a GPU that keeps the vectors.

Vectors are copied to the GPU when they are first used, as many as half of its free memory holds; others are multiplied
on the processor. Vectors and queries keep their dtype, and PyTorch's products in float32 do not round to TF32 unless a
program asks for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from qkv.core.typing import Float

if TYPE_CHECKING:
    from qkv.core.typing import Tensor

__all__ = ["DeviceProducts"]


class DeviceProducts:
    """Products of the vectors of one version of a store, some of which stay on a device.

    Args:
        device: the device of PyTorch, such as "cuda".
        most_bytes: bytes of vectors that stay on the device; None: half of its free memory.
    """

    def __init__(self, device: str, most_bytes: int | None = None) -> None:
        import torch

        self.device, self._held = torch.device(device), dict[tuple[str, str, int], "Tensor"]()
        if most_bytes is None:
            most_bytes = torch.cuda.mem_get_info(self.device)[0] // 2
        self._free = most_bytes

    def multiply(
        self,
        name: tuple[str, str, int],
        matrix: Float[np.ndarray, "rows width"],
        rows: slice,
        query: Float[np.ndarray, "q width"],
    ) -> Float[np.ndarray, "q n"] | None:
        """Return the products of the queries and some rows of a matrix, or None if the matrix is not on the device.

        Args:
            name: block, column and first row of the matrix, which name it within the version of the store.
            matrix: the vectors of a tile.
            rows: the rows to multiply.
            query: the queries, of the same dtype.
        """
        import torch

        if name not in self._held:
            if matrix.nbytes > self._free or matrix.dtype not in (np.float32, np.float64):
                return None
            self._free -= matrix.nbytes
            self._held[name] = torch.tensor(matrix).to(self.device)
        left = torch.tensor(query).to(self.device)
        return np.asarray((left @ self._held[name][rows].mT).cpu().numpy())
