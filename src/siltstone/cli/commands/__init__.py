"""The commands, grouped by subject. Each module registers its own. A command imports what it needs when it runs."""
