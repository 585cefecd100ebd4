"""Files of weights and settings: read with suspicion, written so that old or new is whole."""
