"""The command `qkv`: one file per subcommand."""
