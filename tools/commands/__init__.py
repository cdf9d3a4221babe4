"""Commands of the command line, one room a group."""
