"""The command-line interface `qkv`, with one module per subcommand."""
