"""The subcommands of `dew` that read or write Hugging Face folders."""
