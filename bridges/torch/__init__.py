"""Any `torch.nn.Module` on JAX: traced, then run without torch."""
