"""Kernel of TensorFlow loops over row blocks, in memory linear in the numbers of queries and keys, with gradients."""
