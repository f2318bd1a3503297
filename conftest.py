"""What `pytest` leaves out of the source: modules that load Keras and its backend, which take many seconds.

They hold no examples; their tests run them in processes of their own.
"""

collect_ignore_glob = ["src/qkv/interop/keras/*"]
