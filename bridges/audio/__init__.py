"""Sound as the speech models read it, without torch."""
