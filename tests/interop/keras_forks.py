"""Run modules of these tests, each in a process forked from one that has imported Keras.

`python -m tests.interop.keras_forks` is that process. Each line of standard input is a module and its arguments as
JSON. What the module prints is followed by its exit code.
"""

import json
import os
import runpy
import sys
import traceback


def main() -> None:
    """Fork a process for each line, and print its exit code."""
    sys.modules["tensorflow"] = None  # type: ignore[assignment]  # Keras imports it on every backend, for seconds
    import keras  # noqa: F401

    import qkv.interop.keras  # noqa: F401

    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            os._exit(_run(*json.loads(line)))
        print("exit code", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _run(module: str, *arguments: str) -> int:
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__")
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    main()
