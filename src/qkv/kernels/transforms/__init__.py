"""Support for `torch.func`, where each call is one differentiable function with a batching rule."""
