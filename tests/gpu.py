"""Run the contract suites of the kernels on the GPU of this machine; `make test-gpu` starts it."""

import sys

import pytest
import torch

SUITES = ("tests/kernels/test_on_cuda.py", "tests/kernels/test_cuda_graphs.py", "tests/plan/test_devices.py")


def main() -> int:
    if not torch.cuda.is_available():
        print("No GPU: PyTorch finds no CUDA device on this machine, so that nothing was tested.", file=sys.stderr)
        return 1
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}", flush=True)
    return int(pytest.main(["-q", "-m", "not long", *SUITES]))


if __name__ == "__main__":
    sys.exit(main())
