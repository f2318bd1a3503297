"""Queries over a store whose fragments belong to worker processes, on this machine or in a cluster of Ray."""
