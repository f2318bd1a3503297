"""Settings for pytest at the root: array annotations are checked, and some modules hold no doctests.

Modules of Keras load it and its backend, which takes many seconds; their tests run in processes of their own.
"""

import tests.shapes

tests.shapes.check_shapes()

collect_ignore_glob = ["src/qkv/interop/keras/*"]
