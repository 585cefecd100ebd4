"""The `dew` command line: options as data, subcommands found by entry point."""
