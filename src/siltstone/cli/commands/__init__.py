"""The commands, grouped by subject. Each module registers its own; what a command needs is imported when it runs."""
