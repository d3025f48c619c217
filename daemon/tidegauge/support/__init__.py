"""The file that a person sends when they ask for help: what runs, how it is set, what it said, and no secret."""
