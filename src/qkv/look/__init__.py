"""Seeing attention: pictures of answers."""

from qkv.look.picture import draw, save

__all__ = ["draw", "save"]
