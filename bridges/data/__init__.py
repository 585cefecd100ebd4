"""Documents of any source, as packed rows of tokens with a report."""
