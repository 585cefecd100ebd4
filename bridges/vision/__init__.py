"""Images as the vision models read them, without torch."""
