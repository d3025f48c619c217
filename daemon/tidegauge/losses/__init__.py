"""Losses, tensor errors, saturation and symptoms: pure functions of a pair of tensors."""
